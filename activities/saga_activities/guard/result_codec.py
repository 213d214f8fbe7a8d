"""Results as the guard's row stores them, and returns them to every later attempt.

A row holds a result, an encrypted result, or a marker of the guard. A result that has a key by which the engine tells
these apart is stored within another object, so that every JSON value can be a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saga_activities.guard.unreadable_rows import ChangedRow
from saga_activities.json_results import UnusableResult, to_json_value
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.protocol.result_room import require_room
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.json_values import has_more_values

MARKER_KEY = "saga:marker"
"""The key under which a row stores a marker of the guard instead of an action's result."""

ENCRYPTED_KEY = "saga:encrypted"
"""The key under which a row stores the encrypted text of a result."""

VALUE_KEY = "saga:value"
"""The key under which a row stores a result that has itself one of these keys."""

_RESERVED_KEYS = {MARKER_KEY, ENCRYPTED_KEY, VALUE_KEY}


def encode(result: Any, room: int | None = None) -> str | None:
    """The text of a row's ``result``; None stands for null.

    Raises :class:`UnusableResult`, and :class:`sagas.errors.DefiniteFailure` for a result beyond the ``room`` that the
    saga has for it.
    """
    if result is None:
        return None
    plain = to_json_value(result)
    if isinstance(plain, dict) and not _RESERVED_KEYS.isdisjoint(plain):
        plain = {VALUE_KEY: plain}
    data = encode_json(plain)
    if len(data) > MAX_PAYLOAD_BYTES:
        raise UnusableResult(f"the result has {len(data)} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")
    if has_more_values(data, MAX_RESULT_VALUES):
        raise UnusableResult(f"the result has more than {MAX_RESULT_VALUES:,} values: return fewer, or one text")
    if room is not None:
        require_room(data, room)
    return data.decode()


def decode(text: str | None) -> Any:
    """The result a row holds. Raises ChangedRow for a text that is not JSON."""
    if text is None:
        return None
    value = _decode_json(text)
    return value[VALUE_KEY] if isinstance(value, dict) and VALUE_KEY in value else value


def encode_marker(marker: str, **details: Any) -> str:
    """The text of a row that stores a marker of the guard."""
    return encode_json({MARKER_KEY: marker, **details}).decode()


def encode_encrypted(key_id: str, data: str) -> str:
    """The text of a row that stores an encrypted result: the id of its key, and the data in Base64."""
    return encode_json({ENCRYPTED_KEY: {"key": key_id, "data": data}}).decode()


def decode_encrypted(text: str | None) -> tuple[str, str] | None:
    """The arguments of :func:`encode_encrypted`; None for a row that is not encrypted. Raises ChangedRow."""
    if text is None or not text.startswith(f'{{"{ENCRYPTED_KEY}":'):
        return None
    match _decode_json(text)[ENCRYPTED_KEY]:
        case {"key": str() as key_id, "data": str() as data}:
            return key_id, data
    raise ChangedRow


REJECTED = "rejected"
"""The marker of a seal that keeps a rejection, with its reason and details."""


def holds_values(text: str) -> bool:
    """True for the text of a result or of a rejection; other markers have no value of a saga."""
    marker = decode_marker(text)
    return marker is None or marker[MARKER_KEY] == REJECTED


def decode_marker(text: str | None) -> Mapping[str, Any] | None:
    """``{"saga:marker": marker, …}`` if the row holds a marker of the guard, else None. Raises ChangedRow for a text
    that is not JSON.
    """
    if text is None or MARKER_KEY not in text:
        return None
    value = _decode_json(text)
    return value if isinstance(value, dict) and MARKER_KEY in value else None


def _decode_json(text: str) -> Any:
    try:
        return decode_json(text)
    except (ValueError, RecursionError):
        raise ChangedRow from None
