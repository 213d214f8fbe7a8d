"""``[connections.NAME]`` of saga.toml: the participants of sagas, databases and HTTP services."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from sagas.builtins.http_headers import DEFAULT_KEY_HEADER, KEY_FORMATS, KeyFormat
from sagas.builtins.http_statuses import status_range
from sagas.errors import UsageError
from sagas.settings.addresses import require_database_url, require_supported_database, split_base_url
from sagas.settings.circuit_breaker import CircuitBreaker
from sagas.settings.forms import (
    FLAG,
    SECRET,
    TABLE,
    Count,
    Flag,
    Form,
    OptionalText,
    Texts,
    duration,
    one_of,
    text,
    text_or_secret,
)
from sagas.settings.http_auth import Auth, require_header_name
from sagas.settings.secrets import Secret, resolve_secret
from sagas.settings.table import Table, setting
from sagas.settings.wrong_setting import WrongSetting
from sagas.text.header_names import is_header_name


class Connection(Table):
    """One participant, named by the project. ``url_setting`` is the URL as it is written, or a reference to it."""

    name: str = ""
    root: Path = Path()
    kind: Any = None
    url_setting: str | Secret | None = None
    circuit_breaker: CircuitBreaker | None = None

    def _resolved_url(self) -> str | None:
        if self.url_setting is None:
            return None
        return resolve_secret(self.url_setting, setting=f"connections.{self.name}.url", root=self.root)

    @property
    def url_scheme(self) -> str | None:
        """The scheme of its URL, with a colon; None: the URL is a secret that is not here."""
        try:
            return f"{(self._resolved_url() or '').partition(':')[0]}:"
        except UsageError:
            return None


_CIRCUIT_BREAKER = (
    "holds the steps that need the connection while it fails, without using up their attempts; `{}` has the defaults "
    'of `failures = "50%"`, `minimum = 5`, `window = "30s"` and `probe_every = "5s"`. Needs `[ledger]`. See '
    "[circuit breakers](../how-to/pause-a-saga.md#circuit-breakers)"
)


class SqlConnection(Connection):
    """A database.

    ``embedded`` is True for a database on the embedded PostgreSQL, ``keeps_outputs`` for the ledger of Spark steps,
    ``keeps_ledger`` for that of ``[ledger]``, ``keeps_locks`` for the database of semantic locks,
    ``keeps_enqueued`` for those of ``[enqueue]``. ``codec_key``: the keys of ``[codec]``, which encrypt the values in
    the engine's tables, with ``encrypts_outbox`` also those of events.
    """

    heading = "connections.shop"
    title = "[connections.NAME], a database"
    summary = (
        "A database that takes part in sagas: PostgreSQL, MySQL, MariaDB or SQLite. Tested are PostgreSQL 18, MariaDB "
        "10.11 and SQLite 3.40. MySQL 8 has the code of MariaDB, and was never tested: no test of the project has run "
        "on a MySQL server. Try each kind of step that you use there, above all `compensate: auto` and `two_phase`, "
        "before you rely on it."
    )

    embedded: bool = False
    keeps_outputs: bool = False
    keeps_ledger: bool = False
    keeps_locks: bool = False
    codec_key: str | Secret | None = Field(default=None, repr=False)
    encrypts_outbox: bool = False
    keeps_enqueued: bool = False
    kind: Annotated[Literal["sql"], text()] = setting("sql", "`sql`")
    url_setting: Annotated[str | Secret | None, text_or_secret(require_database_url)] = setting(
        None,
        "an SQLAlchemy URL; synchronous drivers are replaced by asynchronous ones. Without it, the database of "
        "that name on the PostgreSQL of `saga dev up`. Its scheme is the dialect in which `saga validate` reads "
        "[SQL](../how-to/write-sql.md)",
        {"env": "SHOP_URL"},
        alias="url",
        repr=False,
    )
    schema_setting: OptionalText = setting(
        None, "an SQL file that `saga setup` applies; it must be idempotent", "schema.sql", alias="schema"
    )
    pool_size: Count = setting(20, "the maximum number of open connections of a worker")
    isolation: OptionalText = setting(
        None,
        "the isolation level of the guard's transactions; default: the database's own on PostgreSQL, `READ "
        "COMMITTED` on MySQL and MariaDB; on SQLite they are always serializable",
        "READ COMMITTED",
    )
    trusted_roles: Texts = setting(
        (),
        "other roles of PostgreSQL that may run code as the role of the connection, such as the one that owns the "
        "tables; their members also may. Others are logged, and `saga doctor` fails for them, see "
        "[who may do what](../explanation/security.md#who-may-do-what)",
        ["migrator"],
    )
    prepared_warn_after: Annotated[float, duration(1.0)] = setting(
        300.0,
        "the age from which a prepared transaction of a step with [`two_phase`](../how-to/two-phase-commit.md) counts "
        "as stuck, in `saga doctor`, `saga list --stuck` and the metric `saga_prepared_old`: others wait for its "
        "locks. Nothing else happens",
        "5m",
    )
    circuit_breaker: CircuitBreaker | None = setting(None, _CIRCUIT_BREAKER, {"failures": "50%", "minimum": 10})

    @property
    def url(self) -> str:
        """The URL with its secret resolved and an asynchronous driver.

        Raises:
            UsageError: the connection has no URL, its secret is missing, or the database is not supported.
        """
        if (url := self._resolved_url()) is None:
            raise UsageError(
                f"the connection {self.name} has no url, and no embedded PostgreSQL runs for it",
                help="run saga dev up, or set its url in saga.toml",
            )
        return async_url(url, self.root, setting=f"connections.{self.name}.url")

    @property
    def schema_file(self) -> Path | None:
        """The SQL file that `saga setup` and `saga dev up` apply; it must be idempotent."""
        return self.root / self.schema_setting if self.schema_setting else None


def _read_verify(written: str | bool) -> str | bool:
    if written is False:
        help = "name the PEM file of the certificate authority that signed the participant's certificate"
        raise WrongSetting("", "cannot be switched off", help=help)
    return written


def _read_statuses(written: list[Any]) -> tuple[Any, ...]:
    for pattern in written:
        if isinstance(pattern, bool) or status_range(pattern) is None:
            raise WrongSetting("", f"contains {pattern!r}; write a status (409) or a class (4xx)", shows_example=True)
    return tuple(written)


_STATUSES = Form(
    "list",
    lambda written: isinstance(written, list),
    "a list of statuses",
    _read_statuses,
    {"type": "array", "items": {"type": ["integer", "string"]}},
)


class Idempotency(Table):
    """How a service receives the idempotency key."""

    header: Annotated[str, text(require_header_name)] = setting(
        DEFAULT_KEY_HEADER, "the header that carries the key; `none`: the service has no such header"
    )
    format: Annotated[KeyFormat, one_of(*KEY_FORMATS)] = setting(
        "key",
        "`key`: as it is; `uuid`: its UUID of version 5; `sha256`: its SHA-256, for a service whose keys are short or "
        "of one form. `Saga-Undoes` has the same format",
    )


def _read_idempotency(written: str | Mapping[str, Any]) -> Idempotency:
    if not isinstance(written, str):
        return Idempotency.read(written)
    require_header_name("", written)
    return Idempotency(header=written)


def _read_headers(written: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(value, str) for value in written.values()):
        raise WrongSetting("", "must be a table of strings", help="put secrets under auth")
    for name, value in written.items():
        if not is_header_name(name) or not value.isascii() or not value.isprintable():
            raise WrongSetting(name, "is not a header; it takes a name and printable ASCII")
    return {name.lower(): value.strip(" ") for name, value in written.items()}


class HttpService(Connection):
    """An HTTP service. ``settle`` is in seconds."""

    heading = "connections.crm"
    title = "[connections.NAME], an HTTP service"
    summary = "An HTTP service that takes part in sagas, see [call-http](../how-to/call-http.md)."

    kind: Annotated[Literal["http"], text()] = setting("http", "`http` (required)")
    url_setting: Annotated[str | Secret | None, text_or_secret(split_base_url)] = setting(
        None, "the base URL (required)", "https://crm.shop", alias="url", repr=False
    )
    auth: Auth = setting(
        Auth(),
        "credentials: one of `bearer`, `basic`, `header`, `oauth2`, and optionally `mtls`, see "
        "[credentials](../how-to/call-http.md#credentials)",
        {"bearer": {"env": "CRM_TOKEN"}},
        repr=False,
    )
    idempotency: Annotated[
        Idempotency,
        Form(
            "string or table",
            lambda written: text().allows(written) or TABLE.allows(written),
            "a string or a table",
            _read_idempotency,
            {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object"}]},
            is_text=True,
        ),
    ] = setting(
        Idempotency(),
        "the header that carries the idempotency key, or `none`; as a table, `header` and `format`: `key`, `uuid` or "
        "`sha256`, see [keys](../how-to/call-http.md#what-the-service-must-do)",
        DEFAULT_KEY_HEADER,
    )
    done: Annotated[tuple[Any, ...] | None, _STATUSES] = setting(
        None, "statuses that mean done, for requests without `done`; default `2xx`", ["2xx"]
    )
    rejected: Annotated[tuple[Any, ...] | None, _STATUSES] = setting(
        None, "statuses that mean a definite no, for requests without `rejected`; default 409 and 422", [404, 409, 422]
    )
    idempotent: Flag = setting(True, "`false`: the service does not honour the key")
    remembers_rejections: Annotated[bool | None, FLAG] = setting(
        None,
        "`true`: after it has rejected a key, no request with that key has an effect, not even one that was sent "
        "earlier; see [rejections](../how-to/call-http.md#rejections)",
        False,
    )
    settle: Annotated[float | None, duration()] = setting(
        None,
        "how long after the end of the last attempt an effect may still appear; default: one minute or twice the "
        "step's timeout, the longer",
        "2m",
    )
    headers: Annotated[Mapping[str, str], replace(TABLE, read=_read_headers)] = setting(
        {}, "headers of every request; not for secrets", {"accept": "application/json"}, repr=False
    )
    verify: Annotated[
        str | bool | None,
        Form(
            "string or boolean",
            lambda written: FLAG.allows(written) or text().allows(written),
            "a string, true or false",
            _read_verify,
            is_text=True,
        ),
    ] = setting(
        None,
        "PEM file of the certificate authority; `true`: the system's. Verification cannot be disabled",
        "certificates/crm.pem",
    )
    allow_plain_http: Flag = setting(
        False, "`true`: send credentials over http:// to another machine, where the network between is trusted"
    )
    allowed_hosts: Texts = setting(
        (),
        "further hosts that a `url` may name, see [hosts](../how-to/call-http.md#hosts-that-come-from-data)",
        ["files.crm.shop", "*.customers.shop"],
    )
    signing_secret: Annotated[Secret | None, SECRET] = setting(
        None,
        "signs every request except reads, see [signatures](../how-to/notify.md#signatures)",
        {"file": "secrets/crm"},
    )
    circuit_breaker: CircuitBreaker | None = setting(None, _CIRCUIT_BREAKER, {"failures": "50%", "minimum": 10})

    @property
    def url(self) -> str:
        """The URL with its secret resolved. Raises UsageError if it is missing."""
        if (url := self._resolved_url()) is None:
            raise UsageError(f"connections.{self.name}.url is missing in saga.toml")
        return url

    @property
    def key_header(self) -> str | None:
        """The header that carries the idempotency key; None: the service has none."""
        header = self.idempotency.header
        return None if header.lower() == "none" else header

    @property
    def promises(self) -> dict[str, Any]:
        """The declared properties of the service, by the names of the step's fields; others are absent."""
        promises = {
            "idempotent": self.idempotent and self.key_header is not None,
            "remembers_rejections": self.remembers_rejections,
            "settle": self.settle,
            "done": self.done,
            "rejected": self.rejected,
        }
        return {name: value for name, value in promises.items() if value is not None}

    def refuse_plain_credentials(self, url: str) -> None:
        """Raises WrongSetting if the connection would send credentials over http:// to another machine."""
        if self.allow_plain_http:
            return
        in_headers = any(header in _SECRET_HEADERS for header in self.headers)
        targets = {"url": url if in_headers or self.auth.kinds else ""}
        if self.auth.oauth2 is not None:
            targets["auth.oauth2.token_url"] = self.auth.oauth2.token_url
        for name, target in targets.items():
            if _is_plain(target):
                raise WrongSetting(
                    name,
                    "is http://, so the credentials would be readable on the network; use https://",
                    help="allow_plain_http = true sends them anyway, for example where a service mesh encrypts",
                )


_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")


def _is_plain(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False  # reported where the URL is parsed
    if parts.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def read_connection(written: Mapping[str, Any]) -> SqlConnection | HttpService:
    """Read one connection of the file. Raises WrongSetting."""
    kind = written.get("kind", "sql")
    if kind == "sql":
        return SqlConnection.read(written)
    if kind != "http":
        raise WrongSetting("kind", f"must be sql or http, not {kind}")
    service = HttpService.read(written)
    if isinstance(service.url_setting, str):
        service.refuse_plain_credentials(service.url_setting)
    return service


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
    scheme, _, address = url.partition("://")
    driver = _ASYNC_DRIVER.get(scheme, scheme)
    if driver.startswith("sqlite"):
        address = _sqlite_path(address, root)
    return f"{driver}://{address}"


def _sqlite_path(address: str, root: Path) -> str:
    """Resolve a relative path (three slashes; four are absolute), because commands run from any folder."""
    path, question, query = address.removeprefix("/").partition("?")
    if not path or path.startswith((":memory:", "/", "file:")):
        return address
    return f"/{root / path}{question}{query}"
