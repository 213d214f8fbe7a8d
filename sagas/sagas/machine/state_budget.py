"""The budget for the values that a saga stores (rule 9), so that its state fits into one payload.

The size of every value is estimated once, when it is stored, and added up; the state is never serialised for this.
The compressed size is estimated without a compressor, whose output differs between versions: a replay on another
worker must come to the same decision. Integer arithmetic only, for the same reason.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sagas.protocol.size_limits import omitted
from sagas.text.exact_json import encode_json

STATE_BUDGET = 3 * 512 * 1024
"""Compressed bytes for the input, the lists of all for_each and all results together (1.5 MiB)."""

ALWAYS_KEPT = 64
"""Bytes of JSON up to which a value is always stored, because a placeholder would save nothing."""


def estimated_size(data: bytes) -> int:
    """An upper estimate of the compressed size of ``data``, in bytes.

    Shannon's code (1948): a byte with relative frequency p takes ⌈log2 1/p⌉ bits. A real compressor also finds
    repetitions, so it needs less.
    """
    total = len(data)
    bits = sum(count * (-(-total // count) - 1).bit_length() for count in Counter(data).values())
    return -(-bits // 8)


def fit_into_budget(used: int, value: Any) -> tuple[Any, int]:
    """Return the value to store and the new total of the budget in use.

    A value that does not fit becomes ``{"omitted": "size", "bytes": n}``, where n is its size as JSON. The step is
    still DONE: its effect exists, and the guard of a guarded step keeps the result.
    """
    text = encode_json(value)
    if len(text) <= ALWAYS_KEPT:
        return value, used + len(text)
    more = estimated_size(text)
    if used + more <= STATE_BUDGET:
        return value, used + more
    return omitted(len(text)), used + ALWAYS_KEPT


def budgeted_size(value: Any) -> int:
    """The budget taken by a value that is always stored (an input, the list of a for_each)."""
    return estimated_size(encode_json(value))
