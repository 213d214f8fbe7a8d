"""The room for the result of a guarded call: its part of what all results of a saga may take together (rule 9).

The saga promises it to the call, and the guard keeps to it before the commit: a result beyond it is the definite
failure :data:`RESULT_TOO_LARGE`, so that no effect exists whose result the saga cannot keep. Both compute the size
alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sagas.errors import DefiniteFailure

RESULT_TOO_LARGE = "ResultTooLarge"
"""The failure type. Its details are ``bytes`` (of the JSON), ``compressed`` (the estimate) and ``room``."""

ALWAYS_KEPT = 64
"""Bytes of JSON up to which a value is always stored, because a placeholder would save nothing."""

RETURN_LESS = "return fewer columns or rows, or write them to a table or a file and return a reference to it"
"""The advice about a result that is too large."""


def estimated_size(data: bytes) -> int:
    """An upper estimate of the compressed size of ``data``, in bytes.

    Shannon's code (1948): a byte with relative frequency p takes ⌈log2 1/p⌉ bits. A real compressor also finds
    repetitions, so it needs less.
    """
    total = len(data)
    bits = sum(count * (-(-total // count) - 1).bit_length() for count in Counter(data).values())
    return min(-(-bits // 8), total)


def require_room(text: bytes, room: int) -> None:
    """Raise :class:`DefiniteFailure` if the JSON of a result takes more than the ``room`` of its call."""
    if len(text) <= max(room, ALWAYS_KEPT):
        return
    compressed = estimated_size(text)
    if compressed > room:
        size = size_words(len(text), compressed)
        message = f"its result has {size}, and the saga has {room:,} left for it: {RETURN_LESS}"
        details = {"bytes": len(text), "compressed": compressed, "room": room}
        raise DefiniteFailure(RESULT_TOO_LARGE, message, **details)


def size_words(size: int, compressed: int) -> str:
    """The words for the size of a result."""
    return f"{size:,} bytes as JSON, about {compressed:,} compressed"


def told_sizes(details: Mapping[str, Any]) -> tuple[int, int] | None:
    """The bytes of a result, plain and compressed, that the details of a failure tell; None if they do not."""
    match details:
        case {"bytes": int() as size, "compressed": int() as compressed}:
            return size, compressed
    return None
