"""The ``[spark]`` and ``[catalogs.*]`` sections of saga.toml as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sagas.builtins.spark import FIXED_CONF, SESSION_ZONE
from sagas.definition.times import parse_duration
from sagas.errors import UsageError, did_you_mean
from sagas.settings import Settings
from sagas.settings.kafka import KafkaSettings

DEFAULT_RETENTION = "7d"
DEFAULT_WORK = ".saga/spark"

STAGING_SQL_CONF: Mapping[str, str] = {SESSION_ZONE: "UTC", **FIXED_CONF}
"""The properties of each session before the `conf` of a step, which may set another time zone for its job."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How jobs run and where they stage.

    ``master`` is Spark's (``local[2]``, ``spark://…``, ``yarn``, ``k8s://…``); ``remote`` is a Spark Connect address
    (``sc://host:15002``) and takes precedence. ``stage`` is a URI. ``memory`` is the driver's heap (``1g``). ``conf``
    are settings of the session. ``retention`` is how many seconds rejected output is kept for inspection. ``work`` is
    where runners keep logs and scratch files: a local folder that no other worker uses. After ``recycle_after`` runs (a
    step has up to three: its inputs, its job, its audit) a new runner is started. ``python_path`` are the folders from
    which jobs are imported.
    """

    root: Path
    master: str = "local[2]"
    remote: str | None = None
    stage: str = ""
    ledger: str | None = None
    memory: str = "1g"
    conf: Mapping[str, str] = field(default_factory=dict)
    retention: float = 7 * 86_400.0
    recycle_after: int = 200
    python_path: tuple[str, ...] = ()
    work: str = DEFAULT_WORK
    catalogs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    connections: Mapping[str, str] = field(default_factory=dict)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)

    @property
    def work_folder(self) -> Path:
        return self.root / self.work

    def catalog(self, name: str) -> Mapping[str, Any]:
        """The properties of a catalog for pyiceberg. Raises UsageError if it is not configured."""
        properties = self.catalogs.get(name)
        if properties is None:
            raise UsageError(
                f"the catalog {name} is not configured{did_you_mean(name, self.catalogs)}",
                help=f"[catalogs.{name}] in saga.toml",
            )
        if properties.get("type", "sql") == "sql" and "uri" not in properties:
            raise UsageError(
                f"the catalog {name} has no `uri`, and no embedded PostgreSQL stores it",
                help="saga dev up    (or set `uri` in saga.toml)",
            )
        return properties

    def connection(self, name: str) -> str:
        """The URL of a database, ``postgresql://…`` for psycopg. Raises UsageError if it is not configured."""
        url = self.connections.get(name)
        if url is None:
            raise UsageError(
                f"the SQL connection {name} is not configured{did_you_mean(name, self.connections)}",
                help=f"[connections.{name}] in saga.toml",
            )
        return url


def spark_settings(settings: Settings) -> SparkSettings:
    """Raises UsageError if ``[spark]`` has an invalid setting."""
    table = settings.spark
    stage = str(table.get("stage") or (settings.dev_folder / "spark" / "stage").as_uri())
    if "://" not in stage and not stage.startswith("file:"):
        stage = (settings.root / stage).resolve().as_uri()
    try:
        urlsplit(stage)
    except ValueError:
        raise UsageError("spark.stage must be a folder or a URI such as s3://bucket/stage") from None
    return SparkSettings(
        root=settings.root,
        master=str(table.get("master", "local[2]")),
        remote=table.get("remote"),
        stage=stage.rstrip("/"),
        ledger=settings.spark_ledger,
        memory=str(table.get("memory", "1g")),
        conf=dict(_conf(table.get("conf", {}))),
        retention=parse_duration(table.get("retention", DEFAULT_RETENTION)),
        recycle_after=int(table.get("recycle_after", 200)),
        python_path=tuple(str(settings.root / folder) for folder in table.get("python_path", ["."])),
        work=str(table.get("work", DEFAULT_WORK)),
        catalogs=settings.catalogs,
        kafka=settings.kafka,
        connections={
            connection.name: connection.url.replace("postgresql+psycopg://", "postgresql://")
            for connection in settings.sql_connections()
            if connection.url_setting is not None
        },
    )


def _conf(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """The Spark properties of ``[spark.conf]``: an unquoted name with dots is nested tables in TOML."""
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _conf(value, f"{name}.")
            continue
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str | int | Decimal):
            raise UsageError(f"spark.conf.{name} must be a string, a number, true or false")
        if not name.startswith("spark."):
            raise UsageError(f"spark.conf.{name} is no property of Spark, whose names start with spark. (mind the dot)")
        if str(value) != STAGING_SQL_CONF.get(name, str(value)):
            raise UsageError(f"spark.conf.{name} must stay {STAGING_SQL_CONF[name]}: staged files rely on it")
        yield name, str(value)
