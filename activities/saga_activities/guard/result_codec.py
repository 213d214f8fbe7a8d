"""Results as JSON: stored in the guard's row, and returned to every later attempt."""

from __future__ import annotations

import dataclasses
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from sagas.text.exact_json import decode_json, encode_json
from sagas.text.json_values import MAX_DEPTH

MAX_RESULT_BYTES = 2 * 1024 * 1024 - 64 * 1024
"""Temporal refuses payloads above 2 MiB; the headroom is for the envelope of the result."""

MARKER_KEY = "saga:marker"
"""The key under which a row stores a marker of the guard instead of an action's result."""


class UnusableResult(ValueError):
    """A result that cannot be stored: too large, or not JSON."""


def to_json_value(value: Any, depth: int = 0) -> Any:
    """``value`` in JSON's own types: decimals as strings, times in ISO 8601, bytes in Base64.

    ``depth`` is the number of levels around it. Raises :class:`UnusableResult` for a type that has no such form, and
    for a value that is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise UnusableResult(f"a result must not be nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool() | int():
            return value
        case Enum():
            return to_json_value(value.value)
        case str():
            return str(value)
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise UnusableResult(f"a result must not contain {value}: JSON has no such number")
            return value
        case Decimal() | UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return b64encode(bytes(value)).decode("ascii")
        case Mapping():
            return {_json_key(key): to_json_value(item, depth + 1) for key, item in value.items()}
        case Sequence() | Set():
            return [to_json_value(item, depth + 1) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_json_value(getattr(value, field.name), depth + 1) for field in fields}
    dump = getattr(value, "model_dump", None)  # a pydantic model, without importing pydantic here
    if callable(dump):
        return to_json_value(dump(), depth)
    raise UnusableResult(f"JSON has no form for a value of type {type(value).__name__}")


def _json_key(key: Any) -> str:
    if not isinstance(key, str | int | Decimal | UUID | date):
        raise UnusableResult(f"a key of a result must be a string, not a {type(key).__name__}")
    return key if isinstance(key, str) else str(to_json_value(key))


def encode(result: Any) -> str | None:
    """The text of a row's ``result``; None stands for null. Raises :class:`UnusableResult`."""
    if result is None:
        return None
    plain = to_json_value(result)
    if isinstance(plain, dict) and MARKER_KEY in plain:
        raise UnusableResult(f"a result must not contain the key {MARKER_KEY!r}: it is reserved for the guard")
    data = encode_json(plain)
    if len(data) > MAX_RESULT_BYTES:
        raise UnusableResult(f"the result has {len(data)} bytes; at most {MAX_RESULT_BYTES} are allowed")
    return data.decode()


def decode(text: str | None) -> Any:
    """The result a row holds."""
    return None if text is None else decode_json(text)


def encode_marker(marker: str, **details: Any) -> str:
    """The text of a row that stores a marker of the guard."""
    return json.dumps({MARKER_KEY: marker, **details}, separators=(",", ":"))


def decode_marker(text: str | None) -> Mapping[str, Any] | None:
    """``{"saga:marker": marker, …}`` if the row holds a marker of the guard, else None."""
    if text is None or MARKER_KEY not in text:
        return None
    value = json.loads(text)
    return value if isinstance(value, dict) and MARKER_KEY in value else None
