"""Authorization of the HTTP API: the tokens of `[serve]`, with what each of them may do and how often."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sagas.errors import UsageError, did_you_mean
from sagas.settings import Settings
from sagas.settings.secrets import Secret, parse_secret, resolve_secret

Scope = Literal["read", "start"]
SCOPES: tuple[str, ...] = get_args(Scope)

DEFAULT_STARTS_PER_SECOND = 100

MIN_TOKEN = 16
"""Characters of a token below which a warning is logged."""

log = logging.getLogger("saga.serve")


class TokenBucket:
    """Allows ``rate`` events per second; after a pause as many at once. ``clock`` returns seconds."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._left, self._at = max(rate, 1.0), clock()

    def take(self) -> bool:
        """Return whether one more event is allowed now; it is counted if so."""
        now = self._clock()
        self._left = min(max(self._rate, 1.0), self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a token."""

    name: str
    scopes: frozenset[str]
    starts: TokenBucket


class Callers:
    """All tokens. Each is read again for every request, so that a changed one needs no restart."""

    def __init__(self, settings: Settings) -> None:
        """Raises UsageError if there is no token, or one cannot be read."""
        self._root = settings.root
        rate = settings.serve.get("starts_per_second", DEFAULT_STARTS_PER_SECOND)
        self._callers = [
            (setting, secret, Caller(name, frozenset(scopes), TokenBucket(rate)))
            for setting, name, secret, scopes in _tokens(settings.serve)
        ]
        if not self._callers:
            raise UsageError(
                "serve.token is missing; callers of `saga serve` need it",
                help='[serve] token = {env = "SAGA_SERVE_TOKEN"} or {file = "path"} in saga.toml',
            )
        for setting, secret, _ in self._callers:
            if len(self._read(setting, secret)) < MIN_TOKEN:
                log.warning("%s has fewer than %d characters, so it can be guessed", setting, MIN_TOKEN)

    @property
    def may_start(self) -> bool:
        """True if any token has the scope to start sagas."""
        return any("start" in caller.scopes for *_, caller in self._callers)

    def identify(self, authorization: str) -> Caller | None:
        """The caller with this Authorization header; None if no token fits. Raises UsageError as the constructor."""
        scheme, _, given = authorization.partition(" ")
        presented = given.strip().encode("latin-1", "replace")
        identified = None
        for setting, secret, caller in self._callers:
            # Compared in constant time, and all of them, so that the response time reveals nothing about a token.
            if hmac.compare_digest(presented, self._read(setting, secret).encode()):
                identified = identified or caller
        return identified if scheme.lower() == "bearer" else None

    def _read(self, setting: str, secret: Secret) -> str:
        text = resolve_secret(secret, setting=setting, root=self._root).strip()
        if not text:
            raise UsageError(f"{setting} is empty; callers of `saga serve` need it")
        return text


def _tokens(serve: Mapping[str, Any]) -> Sequence[tuple[str, str, Secret, Sequence[str]]]:
    """The dotted setting, the name, the secret and the scopes of each token. Raises UsageError."""
    tokens: list[tuple[str, str, Secret, Sequence[str]]] = []
    if (written := serve.get("token")) is not None:
        tokens.append(("serve.token", "token", parse_secret(written, "serve.token"), ("read",)))
    for name, table in serve.get("tokens", {}).items():
        setting = f"serve.tokens.{name}.secret"
        if "secret" not in table:
            raise UsageError(f"{setting} is missing", help='secret = {env = "NAME"} or {file = "path"}')
        scopes = table.get("scopes", ["read"])
        for scope in scopes:
            if scope not in SCOPES:
                raise UsageError(f"serve.tokens.{name}.scopes: unknown scope {scope}{did_you_mean(scope, SCOPES)}")
        tokens.append((setting, name, parse_secret(table["secret"], setting), scopes))
    return tokens
