"""The settings ``[connections.NAME]`` with ``kind = "http"``, validated once.

Secrets are never part of these objects: a :class:`SecretSetting` holds only the location, and the worker reads it each
time it is needed, so a rotated file is picked up without a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saga_activities.http.allowed_hosts import AllowedHosts, parse_allowed_hosts
from saga_activities.http.request import is_header_name
from sagas.errors import UsageError, did_you_mean
from sagas.settings.addresses import split_base_url, split_http_url
from sagas.settings.http import refuse_plain_credentials
from sagas.settings.model import Connection
from sagas.settings.secrets import Secret, parse_secret, resolve_secret

DEFAULT_KEY_HEADER = "Idempotency-Key"
_FIELDS = {
    *("auth", "verify", "idempotency", "headers", "idempotent", "remembers_rejections", "settle", "signing_secret"),
    *("allow_plain_http", "allowed_hosts"),
}


@dataclass(frozen=True, slots=True)
class SecretSetting:
    """A secret of this connection: the dotted name of its setting, and its location."""

    setting: str
    secret: Secret
    root: Path

    def resolve(self) -> str:
        """Return what its location contains. Raises UsageError if that is missing."""
        return resolve_secret(self.secret, setting=self.setting, root=self.root)

    def read(self) -> str:
        """The secret itself. Raises UsageError, which names the location, never the value."""
        text = self.resolve()
        if not text.isascii() or not text.isprintable() or not text:
            raise UsageError(f"{self.setting} is empty or contains characters that cannot be sent in a header")
        return text


@dataclass(frozen=True, slots=True)
class BearerAuth:
    token: SecretSetting


@dataclass(frozen=True, slots=True)
class BasicAuth:
    user: str | SecretSetting
    password: SecretSetting


@dataclass(frozen=True, slots=True)
class HeaderAuth:
    name: str
    value: SecretSetting


@dataclass(frozen=True, slots=True)
class OAuth2Auth:
    """Client credentials (RFC 6749 section 4.4). ``in_body`` sends id and secret in the form instead of Basic."""

    token_url: str
    client_id: str | SecretSetting
    client_secret: SecretSetting
    scope: str | None = None
    audience: str | None = None
    in_body: bool = False


@dataclass(frozen=True, slots=True)
class MutualTLS:
    """The worker's client certificate and key, PEM files. ``password`` decrypts an encrypted key."""

    certificate: Path
    key: Path
    password: SecretSetting | None = None


Auth = BearerAuth | BasicAuth | HeaderAuth | OAuth2Auth


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """One HTTP participant. ``key_header`` None: the participant does not support idempotency keys; none is sent.

    ``signing_secret``: all requests except reads are signed according to Standard Webhooks.
    """

    name: str
    url: str | None = None
    auth: Auth | None = None
    mtls: MutualTLS | None = None
    ca: Path | None = None
    key_header: str | None = DEFAULT_KEY_HEADER
    headers: Mapping[str, str] = field(default_factory=dict)
    signing_secret: SecretSetting | None = None
    allowed_hosts: AllowedHosts = field(default_factory=AllowedHosts)


def http_settings(connection: Connection) -> HttpSettings:
    """Parse one connection of saga.toml; relative file names are relative to its project folder.

    Raises UsageError for anything unknown, missing or unsafe.
    """
    where, options, root = f"connections.{connection.name}", connection.options, connection.root
    # `idempotent` and `settle` are defaults for steps, already applied when the definition was loaded.
    _check_fields(where, options, _FIELDS)
    url = connection.url
    parts = split_base_url(f"{where}.url", url)
    refuse_plain_credentials(connection.name, url, options)
    auth, mtls = _auth(f"{where}.auth", options.get("auth"), root)
    if mtls is not None and parts.scheme != "https":
        raise UsageError(f"{where}.auth.mtls needs an https:// URL")
    header = _text(where, "idempotency", options.get("idempotency", DEFAULT_KEY_HEADER))
    if not is_header_name(header):
        raise UsageError(f"{where}.idempotency is not a header name")
    key_header = None if header.lower() == "none" else header
    signing = options.get("signing_secret")
    return HttpSettings(
        connection.name,
        url,
        auth,
        mtls,
        _ca(where, options.get("verify"), root),
        key_header,
        _headers(where, options),
        None if signing is None else _secret(f"{where}.signing_secret", signing, root),
        _allowed_hosts(where, options.get("allowed_hosts", [])),
    )


def _ca(setting: str, verify: Any, root: Path) -> Path | None:
    if verify is None or verify is True:
        return None
    if not isinstance(verify, str):
        raise UsageError(
            f"{setting}.verify cannot be switched off",
            help="name the PEM file of the certificate authority that signed the participant's certificate",
        )
    return root / verify


def _allowed_hosts(setting: str, entries: Any) -> AllowedHosts:
    try:
        if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
            return parse_allowed_hosts(entries)
        wrong = entries
    except ValueError as error:
        wrong = str(error)
    raise UsageError(
        f"{setting}.allowed_hosts contains {wrong!r}",
        help='it takes host names, "*.example.com" for those below, and addresses or networks such as "10.1.0.0/16"',
    )


def _headers(setting: str, options: Mapping[str, Any]) -> Mapping[str, str]:
    headers = options.get("headers", {})
    if not isinstance(headers, Mapping) or not all(isinstance(value, str) for value in headers.values()):
        raise UsageError(f"{setting}.headers must be a table of strings", help="put secrets under auth")
    for name, value in headers.items():
        if not is_header_name(name) or not value.isascii() or not value.isprintable():
            raise UsageError(f"{setting}.headers.{name} is not a header; it takes a name and printable ASCII")
    return {name.lower(): value.strip(" ") for name, value in headers.items()}


def _auth(setting: str, table: Any, folder: Path) -> tuple[Auth | None, MutualTLS | None]:
    if table is None:
        return None, None
    if not isinstance(table, Mapping) or not table:
        raise UsageError(f"{setting} must be a table such as {{ bearer = {{ env = … }} }}")
    _check_fields(setting, table, {"bearer", "basic", "header", "oauth2", "mtls"})
    mtls = _mtls(f"{setting}.mtls", table["mtls"], folder) if "mtls" in table else None
    others = [kind for kind in table if kind != "mtls"]
    if len(others) > 1:
        raise UsageError(f"{setting} names {' and '.join(others)}; give only one (besides mtls)")
    if not others:
        return None, mtls
    kind, value = others[0], table[others[0]]
    key = f"{setting}.{kind}"
    if kind == "bearer":
        return BearerAuth(_secret(key, value, folder)), mtls
    if not isinstance(value, Mapping):
        raise UsageError(f"{key} must be a table")
    if kind == "basic":
        _check_fields(key, value, {"user", "password"})
        user = _text_or_secret(key, "user", value.get("user"), folder)
        return BasicAuth(user, _secret(f"{key}.password", value.get("password"), folder)), mtls
    if kind == "header":
        _check_fields(key, value, {"name", "value"})
        header = _text(key, "name", value.get("name"))
        if not is_header_name(header):
            raise UsageError(f"{key}.name is not a header name")
        return HeaderAuth(header, _secret(f"{key}.value", value.get("value"), folder)), mtls
    return _oauth2(key, value, folder), mtls


def _oauth2(setting: str, table: Mapping[str, Any], folder: Path) -> OAuth2Auth:
    _check_fields(setting, table, {"token_url", "client_id", "client_secret", "scope", "audience", "send"})
    token_url = _text(setting, "token_url", table.get("token_url"))
    split_http_url(f"{setting}.token_url", token_url)
    send = table.get("send", "basic")
    if send not in ("basic", "body"):
        raise UsageError(f'{setting}.send must be "basic" or "body"')
    return OAuth2Auth(
        token_url,
        _text_or_secret(setting, "client_id", table.get("client_id"), folder),
        _secret(f"{setting}.client_secret", table.get("client_secret"), folder),
        _text(setting, "scope", table["scope"]) if "scope" in table else None,
        _text(setting, "audience", table["audience"]) if "audience" in table else None,
        send == "body",
    )


def _mtls(setting: str, table: Any, folder: Path) -> MutualTLS:
    if not isinstance(table, Mapping):
        raise UsageError(f"{setting} must be a table with certificate and key")
    _check_fields(setting, table, {"certificate", "key", "password"})
    password = _secret(f"{setting}.password", table["password"], folder) if "password" in table else None
    certificate, key = (_file(setting, name, table.get(name), folder) for name in ("certificate", "key"))
    return MutualTLS(certificate, key, password)


def _file(setting: str, name: str, value: Any, folder: Path) -> Path:
    """A file name, plain or in the same ``{ file = … }`` form as a secret."""
    if isinstance(value, Mapping) and set(value) == {"file"}:
        value = value["file"]
    return folder / _text(setting, name, value)


def _secret(setting: str, value: Any, folder: Path) -> SecretSetting:
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{setting} must name where the secret is stored, not contain it",
            help='write { env = "NAME" } or { file = "path" }; it is read on the worker',
        )
    return SecretSetting(setting, parse_secret(value, setting), folder)


def _text_or_secret(setting: str, name: str, value: Any, folder: Path) -> str | SecretSetting:
    if isinstance(value, Mapping):
        return _secret(f"{setting}.{name}", value, folder)
    return _text(setting, name, value)


def _text(setting: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{setting} needs {name}, a string")
    return value


def _check_fields(setting: str, table: Mapping[str, Any], known: set[str]) -> None:
    for name in table:
        if name not in known:
            raise UsageError(f"{setting} has no field {name}{did_you_mean(name, tuple(sorted(known)))}")
