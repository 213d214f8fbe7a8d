"""The settings of Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sagas.errors import Unequipped, did_you_mean
from sagas.settings import Settings
from sagas.settings.kafka import KafkaSettings
from sagas.settings.spark import SparkTable


class SparkSettings(SparkTable):
    """The table ``[spark]`` with absolute paths, ``stage`` as a URI, and what jobs use of other tables."""

    root: Path = Path()
    stage: str = ""
    python_path: tuple[str, ...] = ()
    catalogs: Mapping[str, Mapping[str, Any]] = {}
    connections: Mapping[str, str] = {}
    trusted_roles: Mapping[str, tuple[str, ...]] = {}
    kafka: KafkaSettings = KafkaSettings()

    @property
    def work_folder(self) -> Path:
        return self.root / self.work

    def catalog(self, name: str) -> Mapping[str, Any]:
        """The properties of a catalog for pyiceberg. Raises Unequipped if it is not configured."""
        properties = self.catalogs.get(name)
        if properties is None:
            raise Unequipped(
                f"the catalog {name} is not configured{did_you_mean(name, self.catalogs)}",
                help=f"[catalogs.{name}] in saga.toml",
            )
        if properties.get("type", "sql") == "sql" and "uri" not in properties:
            raise Unequipped(
                f"the catalog {name} has no `uri`, and no embedded PostgreSQL stores it",
                help="saga dev up    (or set `uri` in saga.toml)",
            )
        return properties

    def connection(self, name: str) -> str:
        """The URL of a database, ``postgresql://…`` for psycopg. Raises Unequipped if it is not configured."""
        url = self.connections.get(name)
        if url is None:
            raise Unequipped(
                f"the SQL connection {name} is not configured{did_you_mean(name, self.connections)}",
                help=f"[connections.{name}] in saga.toml",
            )
        return url

    def roles_trusted_at(self, uri: str) -> tuple[str, ...]:
        """The trusted roles of the connections to the database of this URL."""
        database = _database_of(uri)
        named = [name for name, url in self.connections.items() if _database_of(url) == database]
        return tuple(sorted({role for name in named for role in self.trusted_roles.get(name, ())}))


def _database_of(url: str) -> tuple[object, object, str | None] | None:
    """Host (or folder of the Unix socket), port and name of a database; None if the URL cannot be read."""
    try:
        read = urlsplit(url)
        options = dict(parse_qsl(read.query))
        host, port = read.hostname or options.get("host"), read.port or options.get("port")
        return host, port, read.path.removeprefix("/")
    except ValueError:
        return None


def spark_settings(settings: Settings) -> SparkSettings:
    """Raises UsageError if the URL of a database cannot be read."""
    spark, stage = settings.spark, settings.spark.stage
    if "://" not in stage and not stage.startswith("file:"):
        stage = (settings.root / stage).resolve().as_uri()
    own = {
        "root": settings.root,
        "stage": stage.rstrip("/"),
        "ledger": settings.spark_ledger,
        "python_path": tuple(str(settings.root / folder) for folder in spark.python_path),
        "catalogs": settings.catalogs,
        "kafka": settings.kafka,
        "trusted_roles": {
            connection.name: tuple(connection.trusted_roles) for connection in settings.sql_connections()
        },
        "connections": {
            connection.name: connection.url.replace("postgresql+psycopg://", "postgresql://")
            for connection in settings.sql_connections()
            if connection.url_setting is not None
        },
    }
    return SparkSettings(**{**dict(spark), **own})
