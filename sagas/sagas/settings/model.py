"""The settings of a project, as immutable values.

Secrets stay references (``{env = "X"}``, ``{file = "…"}``) until their value is needed, so that a command that needs
no secret works where the secret is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sagas.errors import UsageError, did_you_mean
from sagas.settings.addresses import require_supported_database
from sagas.settings.definition_keys import DefinitionKeys, WorkerSettings, load_keys
from sagas.settings.kafka import KafkaSettings
from sagas.settings.secrets import Secret, resolve_secret

DEFAULT_NAMESPACE = "default"
DEFAULT_TASK_QUEUE = "sagas"


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to the Temporal server. Paths name PEM files, relative to the project folder."""

    server_name: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class TemporalSettings:
    """How to reach Temporal. None means not set here, so the Temporal profile decides; the address has no default.

    ``embedded`` is True if the address is the one that ``saga dev up`` wrote. A Temporal profile, which may hold an API
    key for Temporal Cloud, must not be applied to that server.
    """

    address: str | None = None
    namespace: str | None = None
    task_queue: str = DEFAULT_TASK_QUEUE
    api_key: str | Secret | None = field(default=None, repr=False)
    tls: bool | Tls | None = None
    profile: str | None = None
    web_ui: str | None = None
    embedded: bool = False


@dataclass(frozen=True, slots=True)
class Connection:
    """One participant: a database (``sql``) or an HTTP service.

    ``options`` holds the other keys of its table as written (``auth``, ``idempotency``, ``schema`` …).
    ``embedded`` is True for a database on the embedded PostgreSQL, ``keeps_outputs`` for the ledger of Spark steps,
    ``keeps_ledger`` for that of ``[ledger]``, ``keeps_locks`` for the database of semantic locks.
    """

    name: str
    kind: Literal["sql", "http"]
    root: Path
    url_setting: str | Secret | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    embedded: bool = False
    keeps_outputs: bool = False
    keeps_ledger: bool = False
    keeps_locks: bool = False

    @property
    def url(self) -> str:
        """The URL with its secret resolved; for a database, with an asynchronous driver.

        Raises:
            UsageError: the connection has no URL, or its secret is missing.
        """
        setting = f"connections.{self.name}.url"
        if self.url_setting is None:
            if self.kind == "http":
                raise UsageError(f"{setting} is missing in saga.toml")
            raise UsageError(
                f"the connection {self.name} has no url, and no embedded PostgreSQL runs for it",
                help="run saga dev up, or set its url in saga.toml",
            )
        text = resolve_secret(self.url_setting, setting=setting, root=self.root)
        return async_url(text, self.root, setting=setting) if self.kind == "sql" else text

    @property
    def url_scheme(self) -> str | None:
        """The scheme of its URL, with a colon; None: the URL is a secret that is not here."""
        try:
            text = resolve_secret(self.url_setting or "", setting=f"connections.{self.name}.url", root=self.root)
        except UsageError:
            return None
        return f"{text.partition(':')[0]}:"

    @property
    def schema_file(self) -> Path | None:
        """The SQL file that `saga setup` and `saga dev up` apply; it must be idempotent."""
        written = self.options.get("schema")
        return self.root / written if written else None

    def secret(self, option: str) -> str | None:
        """The value of an option that may be a secret; None if it is not set."""
        value = self.options.get(option)
        if value is None:
            return None
        return resolve_secret(value, setting=f"connections.{self.name}.{option}", root=self.root)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a project. ``root`` is the project folder, or the current folder without a project.

    ``ledger``, ``locks``, ``spark``, ``catalogs``, ``reconcile`` and ``serve`` are the tables as written, for the parts
    that use them; ``embedded_catalogs`` names the catalogs on the embedded PostgreSQL.
    """

    root: Path
    config_file: Path | None = None
    definitions: tuple[Path, ...] = ()
    actions: tuple[str, ...] = ()
    temporal: TemporalSettings = TemporalSettings()
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    connections: Mapping[str, Connection] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ledger: Mapping[str, Any] = field(default_factory=dict)
    locks: Mapping[str, Any] = field(default_factory=dict)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    spark: Mapping[str, Any] = field(default_factory=dict, repr=False)
    catalogs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    embedded_catalogs: tuple[str, ...] = ()
    reconcile: Mapping[str, Any] = field(default_factory=dict)
    serve: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def spark_ledger(self) -> str | None:
        """The connection that holds the guard and fence rows of Spark steps: ``[spark] ledger``, else the ledger."""
        return spark_ledger(self.spark, self.ledger)

    @property
    def lock_connection(self) -> str | None:
        """The connection that holds the semantic locks: ``[locks] connection``, else the ledger."""
        return lock_connection(self.locks, self.ledger)

    @property
    def dev_folder(self) -> Path:
        return self.root / ".saga"

    def definition_keys(self, *, create: bool = True) -> DefinitionKeys:
        """The keys that sign definitions; ``create``: make the project's key file if there is none yet.

        Raises:
            UsageError: the setting cannot be resolved, or a key is too short.
        """
        return load_keys(self.worker, self.root, create=create)

    def connection(self, name: str) -> Connection:
        """The connection with this name.

        Raises:
            UsageError: it does not exist.
        """
        connection = self.connections.get(name)
        if connection is None:
            raise UsageError(
                f"there is no connection {name} in the settings{did_you_mean(name, self.connections)}",
                help=f"add [connections.{name}] to saga.toml",
            )
        return connection

    def sql_connections(self) -> list[Connection]:
        return [connection for connection in self.connections.values() if connection.kind == "sql"]


def lock_connection(locks: Mapping[str, Any], ledger: Mapping[str, Any]) -> str | None:
    """See :attr:`Settings.lock_connection`."""
    return locks.get("connection") or ledger.get("connection")


def spark_ledger(spark: Mapping[str, Any], ledger: Mapping[str, Any]) -> str | None:
    """See :attr:`Settings.spark_ledger`."""
    return spark.get("ledger") or ledger.get("connection")


# Database URLs. Only drivers that cannot work asynchronously are replaced; other explicit drivers are kept.
_ASYNC_DRIVER = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg2": "postgresql+psycopg",
    "mysql": "mysql+asyncmy",
    "mysql+pymysql": "mysql+asyncmy",
    "mysql+mysqldb": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
    "mariadb+pymysql": "mariadb+asyncmy",
    "sqlite": "sqlite+aiosqlite",
    "sqlite+pysqlite": "sqlite+aiosqlite",
}


def async_url(url: str, root: Path, *, setting: str = "a database URL") -> str:
    """The URL with an asynchronous driver; a relative SQLite path is relative to the project folder.

    Raises:
        UsageError: ``url`` is not a URL.
    """
    require_supported_database(setting, url)
    scheme, _, rest = url.partition("://")
    driver = _ASYNC_DRIVER.get(scheme, scheme)
    if driver.startswith("sqlite"):
        rest = _sqlite_path(rest, root)
    return f"{driver}://{rest}"


def _sqlite_path(rest: str, root: Path) -> str:
    """Resolve a relative path (three slashes; four are absolute), because commands run from any folder."""
    path, question, query = rest.removeprefix("/").partition("?")
    if not path or path.startswith((":memory:", "/", "file:")):
        return rest
    return f"/{root / path}{question}{query}"
