"""The headers of an `http` request that the engine or the HTTP library sets; a definition may not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from sagas.builtins.callbacks import CALLBACK_HEADER

DEFAULT_KEY_HEADER = "Idempotency-Key"
UNDOES_HEADER = "Saga-Undoes"
CONFIRMS_HEADER = "Saga-Confirms"
"""The key of the forward request, in an undo and in a confirm."""
SAGA_ID_HEADER = "Saga-Id"
"""The id of the saga, next to a key that is sent as it is."""

KeyFormat = Literal["key", "uuid", "sha256"]
KEY_FORMATS: tuple[KeyFormat, ...] = get_args(KeyFormat)

_SET_BY_LIBRARY = ("host", "content-length", "transfer-encoding", "connection")
_SET_BY_ENGINE = tuple(name.lower() for name in (UNDOES_HEADER, CONFIRMS_HEADER, SAGA_ID_HEADER, CALLBACK_HEADER))


def reserved_headers(of_connection: Iterable[str] = ()) -> frozenset[str]:
    """In lower case; ``of_connection``: those that the connection sets itself."""
    return frozenset((*_SET_BY_LIBRARY, *_SET_BY_ENGINE, *(name.lower() for name in of_connection)))
