"""The form of the addresses in saga.toml: URLs of HTTP connections and databases, and `host:port` of servers."""

from __future__ import annotations

import contextlib
import re
from urllib.parse import SplitResult, urlsplit

from sagas.errors import UsageError
from sagas.settings.masking import mask
from sagas.sql_text.dialects import dialect_of_url

_HOST_PORT = re.compile(r"(?:[A-Z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+):(?P<port>[0-9]{1,5})", re.ASCII)


def split_http_url(setting: str, url: str) -> SplitResult:
    """The parts of an absolute URL. Raises UsageError for anything else."""
    with contextlib.suppress(ValueError):  # brackets without an address between them, a port above 65535
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise UsageError(f'{setting} must be a complete URL such as "https://crm.shop", not {_shown(url)}')


def split_base_url(setting: str, url: str) -> SplitResult:
    """The parts of a URL to which paths are added. Raises UsageError for anything else."""
    parts = split_http_url(setting, url)
    if parts.username or parts.password:
        raise UsageError(f"{setting} contains a user or password", help="put it under auth = { basic = { … } }")
    if parts.query or parts.fragment:
        raise UsageError(f"{setting} must end before ? and #", help="put them into `query` of the step")
    return parts


def require_database_url(setting: str, url: str) -> None:
    """Raises UsageError for what is no URL of a database. Whether it is supported is asked where it is used."""
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise UsageError(f"{setting} must have the form postgresql://user@host:5432/name")


def require_supported_database(setting: str, url: str) -> None:
    """Raises UsageError for a URL of an unsupported database, too."""
    require_database_url(setting, url)
    if dialect_of_url(url) is None:
        scheme = url.partition("://")[0]
        raise UsageError(
            f"{setting}: databases of {_shown(scheme + '://')} are not supported",
            help='write kind = "http" for an HTTP participant'
            if scheme in ("http", "https")
            else "use postgresql://, mysql://, mariadb:// or sqlite:///",
        )


def require_host_ports(setting: str, text: str, *, several: bool = False) -> None:
    """Raises UsageError for what is not `host:port`, or with ``several`` a list of them with commas between, which may
    name the protocol of a listener of Kafka.
    """
    for address in text.split(",") if several else [text]:
        matched = _HOST_PORT.fullmatch(address.strip() if several else address)
        if matched is None or ("://" in address and not several) or not 0 < int(matched["port"]) < 65536:
            form = "host:port, or several with commas between them" if several else "host:port"
            raise UsageError(f"{setting} must be {form}, not {_shown(address)}")


def _shown(text: str) -> str:
    return f'"{mask(text)[:80]}"'
