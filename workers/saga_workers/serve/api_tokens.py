"""Authorization of the HTTP API: the tokens of `[serve]`, with what each of them may do and how often."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sagas.errors import UsageError
from sagas.settings import Settings
from sagas.settings.secrets import Secret, resolve_secret
from sagas.settings.serve import ServeSettings, ServeToken

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
        rate = settings.serve.starts_per_second
        self._callers = [
            (setting, token.secret, Caller(name, frozenset(token.scopes), TokenBucket(rate)))
            for setting, name, token in _tokens(settings.serve)
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


def _tokens(serve: ServeSettings) -> Iterator[tuple[str, str, ServeToken]]:
    """The dotted setting, the name and the token of each caller."""
    if serve.token is not None:
        yield "serve.token", "token", ServeToken(secret=serve.token)
    for name, token in serve.tokens.items():
        yield f"serve.tokens.{name}.secret", name, token
