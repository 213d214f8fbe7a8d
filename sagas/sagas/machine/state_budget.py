"""The budget for the values that a saga stores (rule 9), so that its state fits into one payload.

The size of every value is estimated once, when it is stored, and added up; the state is never serialised for this.
The compressed size is estimated without a compressor, whose output differs between versions: a replay on another
worker must come to the same decision. Integer arithmetic only, for the same reason.
"""

from __future__ import annotations

from typing import Any

from sagas.protocol.result_room import ALWAYS_KEPT, estimated_size
from sagas.protocol.size_limits import omitted
from sagas.text.exact_json import encode_json

STATE_BUDGET = 3 * 512 * 1024
"""Compressed bytes for the input, the lists of all for_each and all results together (1.5 MiB)."""

PARTS = 16
"""A call that others may run in parallel to is promised one part of so many of what is left."""

_ROUNDED_FROM = 64 * 1024
_ROUNDED_TO = 4 * 1024
"""Large rooms are rounded down, so that most sagas of a bulk workflow promise the same."""


def room_left(used: int, promised: int = 0) -> int:
    """Compressed bytes that are left, beside those that calls in flight are promised for their results."""
    return max(0, STATE_BUDGET - used - promised)


def room_of_call(used: int, promised: int, *, alone: bool) -> int:
    """The room that a guarded call is promised for its result. ``alone``: nothing can run in parallel to it."""
    left = room_left(used, promised)
    room = left if alone else left // PARTS
    return room - room % _ROUNDED_TO if room >= _ROUNDED_FROM else room


def fit_into_budget(used: int, value: Any, room: int) -> tuple[Any, int]:
    """Return the value to store and the new total of the budget in use. ``room``: compressed bytes that it may take.

    A value that does not fit becomes ``{"omitted": "size", "bytes": n}``, where n is its size as JSON. The step is
    still DONE: its effect exists.
    """
    if value is None:
        return None, used
    text = encode_json(value)
    if (more := _size(text)) <= max(room, ALWAYS_KEPT):
        return value, used + more
    placeholder = omitted(len(text))
    return placeholder, used + _size(encode_json(placeholder))


def budgeted_size(value: Any) -> int:
    """The budget taken by a value that is stored; nothing by null, which stands for no value."""
    return 0 if value is None else _size(encode_json(value))


def _size(text: bytes) -> int:
    return len(text) if len(text) <= ALWAYS_KEPT else estimated_size(text)
