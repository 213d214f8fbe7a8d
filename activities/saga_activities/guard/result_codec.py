"""Results as the guard's row stores them, and returns them to every later attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_activities.json_results import UnusableResult, to_json_value
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.json_values import has_more_values

MARKER_KEY = "saga:marker"
"""The key under which a row stores a marker of the guard instead of an action's result."""


def encode(result: Any) -> str | None:
    """The text of a row's ``result``; None stands for null. Raises :class:`UnusableResult`."""
    if result is None:
        return None
    plain = to_json_value(result)
    if isinstance(plain, dict) and MARKER_KEY in plain:
        raise UnusableResult(f"a result must not contain the key {MARKER_KEY!r}: it is reserved for the guard")
    data = encode_json(plain)
    if len(data) > MAX_PAYLOAD_BYTES:
        raise UnusableResult(f"the result has {len(data)} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")
    if has_more_values(data, MAX_RESULT_VALUES):
        raise UnusableResult(f"the result has more than {MAX_RESULT_VALUES:,} values: return fewer, or one text")
    return data.decode()


def decode(text: str | None) -> Any:
    """The result a row holds."""
    return None if text is None else decode_json(text)


def encode_marker(marker: str, **details: Any) -> str:
    """The text of a row that stores a marker of the guard."""
    return encode_json({MARKER_KEY: marker, **details}).decode()


REJECTED = "rejected"
"""The marker of a seal that keeps a rejection, with its reason and details."""


def holds_values(text: str) -> bool:
    """True for the text of a result or of a rejection; other markers have no value of a saga."""
    marker = decode_marker(text)
    return marker is None or marker[MARKER_KEY] == REJECTED


def decode_marker(text: str | None) -> Mapping[str, Any] | None:
    """``{"saga:marker": marker, …}`` if the row holds a marker of the guard, else None."""
    if text is None or MARKER_KEY not in text:
        return None
    value = decode_json(text)
    return value if isinstance(value, dict) and MARKER_KEY in value else None
