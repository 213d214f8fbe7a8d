"""The form of the addresses in saga.toml: URLs of services and databases, and `host:port` of servers.

No message quotes an address: what is wrong with it may have made a part of a password its host or port. `${NAME}` is
the name of a value that a deployment fills in; it may be a host or a port.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sagas.settings.wrong_setting import WrongSetting
from sagas.sql_text.dialects import dialect_of_url

_PLACEHOLDER = re.compile(r"\$\{\w+\}")
_ADDRESS = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?P<colon>:(?P<port>.*))?", re.DOTALL)
_NOT_IN_A_HOST = re.compile(r"[\s/:@\[\]?#,;\\\"'<>^`|{}%]")
_DATABASE = re.compile(
    r"(?P<scheme>[A-Za-z][\w+]*)://(?:[^:/]*(?::[^@]*)?@)?(?P<address>\[[^/?]*\](?::[^/?]*)?|[^/?]*)"
    r"(?P<path>/[^?]*)?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
"""A URL as SQLAlchemy divides it: a password may contain a slash, and a host with a colon stands in brackets."""

_LOCAL_MASTER = re.compile(r"local(\[ *(\d+|\*) *(, *\d+ *)?\]|-cluster\[ *\d+ *, *\d+ *, *\d+ *\])?|yarn", re.ASCII)

_BAD_HOST = "its host is empty, or has a space or another character that no host has"
_BAD_PORT = "its port is not a number from 1 to 65535"
_NO_PORT = "it has no port"
_UNENCODED = "there is an @ after its host, so a character of its user or password is not percent-encoded"
_PROTOCOL = "it begins with a protocol, which does not belong there"


def split_http_url(setting: str, url: str) -> SplitResult:
    """The parts of an absolute URL. Raises WrongSetting for anything else."""
    what = 'must be a complete URL such as "https://crm.shop"'
    try:
        parts = urlsplit(_PLACEHOLDER.sub("1", url))
    except ValueError:  # brackets without an address between them
        raise WrongSetting(setting, f"{what}: {_BAD_HOST}") from None
    problem = _problem(parts.netloc.rpartition("@")[2].removesuffix(":"), needs_port=False)
    if parts.scheme not in ("http", "https"):
        raise WrongSetting(setting, what)
    if problem is None and (" " in url or not url.isprintable()):
        problem = "it contains a space or a control character"
    if problem is not None:
        raise WrongSetting(setting, f"{what}: {problem}")
    return urlsplit(url)


def split_base_url(setting: str, url: str) -> SplitResult:
    """The parts of a URL to which paths are added. Raises WrongSetting for anything else."""
    parts = split_http_url(setting, url)
    if parts.username or parts.password:
        raise WrongSetting(setting, "contains a user or password", help="put it under auth = { basic = { … } }")
    if parts.query or parts.fragment:
        raise WrongSetting(setting, "must end before ? and #", help="put them into `query` of the step")
    return parts


def require_database_url(setting: str, url: str) -> None:
    """Raises WrongSetting for what is not a URL of a database. :func:`require_supported_database` asks for more."""
    what = "must have the form postgresql://user@host:5432/name"
    matched = _DATABASE.fullmatch(_PLACEHOLDER.sub("1", url))
    if matched is None:
        raise WrongSetting(setting, what)
    problem = "it contains a control character" if any(ord(char) < 32 or ord(char) == 127 for char in url) else None
    help = "in a user or password, write @ as %40, / as %2F and : as %3A; several hosts are ?host=a:5432&host=b:5432"
    if matched["scheme"].startswith("sqlite"):
        what, help = "must have the form sqlite:///file.db", None
        if matched["address"]:
            problem = "after two slashes there is a host, and SQLite has none, so its database would be in memory"
    elif problem is None:
        problem = _database_problem(matched)
    if problem is not None:
        raise WrongSetting(setting, f"{what}: {problem}", help=help)


def _database_problem(matched: re.Match[str]) -> str | None:
    address = matched["address"]
    several = address.split(",") if matched["scheme"].startswith("postgres") and ":" not in address else [address]
    problems = [_problem(part, needs_port=False) for part in several if address]
    if "@" in (matched["path"] or ""):
        problems.append(_UNENCODED)
    for name, value in parse_qsl(matched["query"] or "", keep_blank_values=True):
        if "@" in name:
            problems.append(_UNENCODED)
        for part in value.split(","):
            if name == "host" and part and not part.startswith(("/", "@")) and not _is_ipv6(part):  # else a socket
                problems.append(_problem(part, needs_port=False))
            elif name == "port" and part and not _is_port(part):
                problems.append(_BAD_PORT)
    return next(filter(None, problems), None)


def require_supported_database(setting: str, url: str) -> None:
    """Raises WrongSetting, also for a URL of an unsupported database."""
    require_database_url(setting, url)
    if dialect_of_url(url) is None:
        scheme = url.partition("://")[0]
        raise WrongSetting(
            setting,
            f': databases of "{scheme[:80]}://" are not supported',
            help='write kind = "http" for an HTTP participant'
            if scheme in ("http", "https")
            else "use postgresql://, mysql://, mariadb:// or sqlite:///",
        )


def require_host_port(setting: str, text: str) -> None:
    """Raises WrongSetting for what is not `host:port`."""
    _require_addresses(setting, "must be host:port", [text])


def split_listen_address(option: str, text: str) -> tuple[str, int]:
    """Host and port to listen on: without a host this machine alone, with port 0 a free one.

    Raises WrongSetting for what is not `host:port`; ``option`` names where it was written.
    """
    host, colon, port = text.rpartition(":")
    host = host or "127.0.0.1"
    problem = _problem(f"{host}:{1 if port == '0' else port}" if colon else text, needs_port=True)
    if problem is not None:
        raise WrongSetting(option, f"must be host:port: {problem}", help=f"for example {option} 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def require_brokers(setting: str, text: str) -> None:
    """Raises WrongSetting for what is not `host:port`, or a list of them with commas between; each may name the
    protocol of its listener.
    """
    parts = [re.sub(r"^[A-Z_]+://", "", part.strip()) for part in text.split(",")]
    _require_addresses(setting, "must be host:port, or several with commas between them", parts)


def require_http_url(setting: str, url: str) -> None:
    """Raises WrongSetting as :func:`split_http_url`."""
    split_http_url(setting, url)


def require_spark_master(setting: str, master: str) -> None:
    """Raises WrongSetting for what is not a master of Spark."""
    scheme, separator, hosts = master.partition("://")
    what = "must be local[N], spark://host:7077, yarn or k8s://https://host:6443"
    if scheme == "spark" and separator:
        _require_addresses(setting, what, hosts.split(","))
    elif scheme == "k8s" and separator:
        require_http_url(setting, hosts if "://" in hosts else f"https://{hosts}")
    elif not _LOCAL_MASTER.fullmatch(master):
        raise WrongSetting(setting, what)


def require_spark_remote(setting: str, url: str) -> None:
    """Raises WrongSetting for what is not an address of a Spark Connect server; parameters may follow it."""
    what = "must be the address of a Spark Connect server, such as sc://spark:15002"
    address, slash, parameters = url.removeprefix("sc://").partition("/")
    if not url.startswith("sc://") or (slash and parameters and not parameters.startswith(";")):
        raise WrongSetting(setting, what)
    _require_addresses(setting, what, [address], needs_port=False)


def check_catalog_addresses(catalog: Mapping[str, Any]) -> None:
    """Raises WrongSetting for a `uri` that is not an address of a catalog, or a wrong URL of a service that it uses.

    A catalog of another class decides itself what its properties mean.
    """
    if "py-catalog-impl" in catalog:
        return
    kind = catalog.get("type")
    for name, value in catalog.items():
        if not isinstance(value, str):
            continue
        if name == "uri" and (kind == "hive" or value.startswith("thrift:")):
            what = "must have the form thrift://host:9083"
            if not all(part.strip().startswith("thrift://") for part in value.split(",")):
                raise WrongSetting(name, what)
            _require_addresses(name, what, [part.strip().removeprefix("thrift://") for part in value.split(",")])
        elif name == "uri" and kind != "rest" and not value.startswith(("http:", "https:")):
            require_database_url(name, value)
        elif name in ("uri", "oauth2-server-uri") or (name.endswith(".endpoint") and "://" in value):
            require_http_url(name, value)


def _require_addresses(setting: str, what: str, addresses: list[str], *, needs_port: bool = True) -> None:
    for address in addresses:
        if (problem := _problem(_PLACEHOLDER.sub("1", address), needs_port=needs_port)) is not None:
            raise WrongSetting(setting, f"{what}: {problem}")


def _problem(address: str, *, needs_port: bool) -> str | None:
    """Return what is wrong with `host:port`; None if nothing is."""
    matched = _ADDRESS.fullmatch(address)
    if "://" in address:
        return _PROTOCOL
    if matched is None:
        return _BAD_HOST
    host = matched["host"]
    is_right = _is_ipv6(host[1:-1]) if host.startswith("[") else host.isprintable() and not _NOT_IN_A_HOST.search(host)
    if not host or not is_right:
        return _BAD_HOST
    if not matched["colon"]:
        return _NO_PORT if needs_port else None
    return None if _is_port(matched["port"]) else _BAD_PORT


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
