"""How much a saga may remember (rule 9): its state travels in one payload whenever the run continues as a new one.

The size of every value is estimated once, when it arrives, and added up; the state is never serialised for this. The
estimate stands for the compressed size, yet no compressor is asked: its output differs between versions, and a
replay on another worker must come to the same decision. Integers only, for the same reason.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

STATE_BUDGET = 3 * 512 * 1024
"""Bytes, compressed, for the input, the lists of all for_each and all results together (1.5 MiB)."""

ALWAYS_KEPT = 64
"""Bytes of JSON below which leaving a value out would save nothing."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def estimate(text: bytes) -> int:
    """The compressed size of a text in bytes, estimated from above.

    Shannon's code (1948): a byte that makes up the share p of the text takes ⌈log2 1/p⌉ bits. A real compressor
    also finds repetitions, so it needs less.
    """
    total = len(text)
    bits = sum(count * (-(-total // count) - 1).bit_length() for count in Counter(text).values())
    return -(-bits // 8)


def within(used: int, value: Any) -> tuple[Any, int]:
    """The value as it is kept, and the new total of what is kept.

    A value that no longer fits becomes ``{"omitted": "size", "bytes": n}``, n being its size as JSON. The step is
    DONE all the same: its effect is there, and the guard of a guarded step still has the result.
    """
    text = _json(value)
    if len(text) <= ALWAYS_KEPT:
        return value, used + len(text)
    more = estimate(text)
    if used + more <= STATE_BUDGET:
        return value, used + more
    return {"omitted": "size", "bytes": len(text)}, used + ALWAYS_KEPT


def size(value: Any) -> int:
    """What a value that is always kept takes (an input, the list of a for_each)."""
    return estimate(_json(value))


def _json(value: Any) -> bytes:
    return _ENCODER.encode(value).encode("utf-8", "surrogatepass")
