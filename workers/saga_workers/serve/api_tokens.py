"""Authorization of the HTTP API: the tokens of `[serve]`, with what each of them may do and how often."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from saga_workers.input_limits import MAX_WRONG_TOKENS, WRONG_TOKENS_PER_SECOND
from sagas.errors import UsageError
from sagas.settings import Settings
from sagas.settings.secrets import Secret, resolve_secret
from sagas.settings.serve import ServeSettings, ServeToken

MIN_TOKEN = 16
"""Characters of a token below which a warning is logged."""

_BUCKETS = 4096

log = logging.getLogger("saga.serve")


class TokenBucket:
    """Allows ``rate`` events per second; after a pause ``most`` at once, by default as many as in a second.

    ``clock`` returns seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic, *, most: float | None = None) -> None:
        self._rate, self._clock = rate, clock
        self._most = max(rate, 1.0) if most is None else most
        self._left, self._at = self._most, clock()

    @property
    def is_empty(self) -> bool:
        """True if no more event is allowed now."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left < 1.0

    def take(self) -> bool:
        """Return whether one more event is allowed now; it is counted if so."""
        if self.is_empty:
            return False
        self._left -= 1.0
        return True


class TooManyFailures(Exception):
    """Too many wrong tokens have come from this address."""


class FailedTokens:
    """Limits the wrong tokens of each address, in constant memory: addresses share buckets, by a hash with a secret."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._salt = secrets.token_bytes(16)
        self._buckets = [TokenBucket(WRONG_TOKENS_PER_SECOND, clock, most=MAX_WRONG_TOKENS) for _ in range(_BUCKETS)]

    def of(self, address: str) -> TokenBucket:
        """The bucket of an address; a host has a whole network of addresses in IPv6."""
        with contextlib.suppress(ValueError):
            if (ip := ipaddress.ip_address(address)).version == 6:
                address = str(ipaddress.ip_network((ip, 64), strict=False))
        digest = hashlib.blake2b(address.encode(), key=self._salt, digest_size=4).digest()
        return self._buckets[int.from_bytes(digest, "big") % _BUCKETS]


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
        self._failed = FailedTokens()
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

    @property
    def may_operate(self) -> bool:
        """True if any token has the scope to operate sagas."""
        return any("operate" in caller.scopes for *_, caller in self._callers)

    def identify(self, authorization: str, address: str) -> Caller | None:
        """The caller with this Authorization header; None if no token fits. Raises UsageError as the constructor.

        Raises TooManyFailures after too many wrong tokens from this address. A token that nobody can guess is accepted
        then as well, because callers with other tokens may have the same address: that of a proxy.
        """
        caller, presented = self._find(authorization)
        failed = self._failed.of(address)
        if (caller is None and not failed.take()) or (len(presented) < MIN_TOKEN and failed.is_empty):
            raise TooManyFailures
        return caller

    def caller_of(self, authorization: str) -> Caller | None:
        """The caller with a header that :meth:`identify` has accepted before; None if the token is not valid any more.

        Raises UsageError as the constructor.
        """
        return self._find(authorization)[0]

    def failed(self, address: str) -> TokenBucket:
        """The bucket of the wrong tokens from this address."""
        return self._failed.of(address)

    def _find(self, authorization: str) -> tuple[Caller | None, bytes]:
        scheme, _, given = authorization.partition(" ")
        presented = given.encode("latin-1", "replace").strip()
        identified = None
        for setting, secret, caller in self._callers:
            # Compared in constant time, and all of them, so that the response time reveals nothing about a token.
            if hmac.compare_digest(presented, self._read(setting, secret).encode()):
                identified = identified or caller
        return identified if scheme.lower() == "bearer" else None, presented

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
