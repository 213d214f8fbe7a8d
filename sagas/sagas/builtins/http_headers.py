"""The headers of an `http` request that the engine or the HTTP library sets; a definition may not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

DEFAULT_KEY_HEADER = "Idempotency-Key"

KeyFormat = Literal["key", "uuid", "sha256"]
KEY_FORMATS: tuple[KeyFormat, ...] = get_args(KeyFormat)

_ALWAYS = ("host", "content-length", "transfer-encoding", "connection", "saga-undoes")


def reserved_headers(of_connection: Iterable[str] = ()) -> frozenset[str]:
    """In lower case; ``of_connection``: those that the connection sets itself."""
    return frozenset((*_ALWAYS, *(name.lower() for name in of_connection)))
