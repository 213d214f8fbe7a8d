"""The settings ``[connections.NAME]`` with ``kind = "http"``, validated once.

Secrets are never part of these objects: a :class:`SecretSetting` holds only the location, and the worker reads it each
time it is needed, so a rotated file is picked up without a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from saga_activities.http.allowed_hosts import AllowedHosts, parse_allowed_hosts
from sagas.builtins.http_headers import DEFAULT_KEY_HEADER, KeyFormat
from sagas.errors import UsageError
from sagas.settings.addresses import split_base_url
from sagas.settings.connections import HttpService
from sagas.settings.http_auth import Auth
from sagas.settings.secrets import Secret, resolve_secret
from sagas.settings.wrong_setting import WrongSetting


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
class HttpSettings:
    """One HTTP participant. ``key_header`` is None if the participant does not support idempotency keys; none is sent.

    ``signing_secret``: all requests except reads are signed according to Standard Webhooks.
    """

    name: str
    url: str | None = None
    root: Path = Path()
    auth: Auth = field(default_factory=Auth)
    ca: Path | None = None
    key_header: str | None = DEFAULT_KEY_HEADER
    key_format: KeyFormat = "key"
    headers: Mapping[str, str] = field(default_factory=dict)
    signing_secret: SecretSetting | None = None
    allowed_hosts: AllowedHosts = field(default_factory=AllowedHosts)

    def credential(self, key: str, secret: Secret) -> SecretSetting:
        """The secret of a key of ``auth``, such as ``basic.password``."""
        return SecretSetting(f"connections.{self.name}.auth.{key}", secret, self.root)


def http_settings(service: HttpService) -> HttpSettings:
    """The connection as it is used; relative file names are relative to its project folder.

    Raises UsageError for anything unknown, missing or unsafe.
    """
    # `idempotent` and `settle` are defaults for steps, already applied when the definition was loaded.
    where, root, url = f"connections.{service.name}", service.root, service.url
    parts = split_base_url(f"{where}.url", url)
    try:
        service.refuse_plain_credentials(url)
    except WrongSetting as error:
        raise error.within(where) from None
    if service.auth.mtls is not None and parts.scheme != "https":
        raise UsageError(f"{where}.auth.mtls needs an https:// URL")
    signing = service.signing_secret
    return HttpSettings(
        service.name,
        url,
        root,
        service.auth,
        root / service.verify if isinstance(service.verify, str) else None,
        service.key_header,
        service.idempotency.format,
        service.headers,
        None if signing is None else SecretSetting(f"{where}.signing_secret", signing, root),
        _allowed_hosts(where, service.allowed_hosts),
    )


def _allowed_hosts(setting: str, entries: Sequence[str]) -> AllowedHosts:
    try:
        return parse_allowed_hosts(entries)
    except ValueError as error:
        raise UsageError(
            f"{setting}.allowed_hosts contains {str(error)!r}",
            help='it takes host names, "*.example.com" for those below, and addresses or networks such as 10.1.0.0/16',
        ) from None
