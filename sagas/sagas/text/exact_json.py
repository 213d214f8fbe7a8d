"""JSON whose numbers keep every digit: an integer is an ``int``, every other number a ``Decimal``, never a ``float``.

All JSON of the engine is read and written here, so that no value passes through a binary float on its way. What comes
from outside is read with :func:`sagas.text.json_values.parse_json`, which also checks its bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

MAX_DIGITS = 1_000
"""The longest decimal that is read: so many digits, and so many places before or after the decimal point."""

_NOT_ASCII = re.compile("[^\x00-\x7f]")


def exact_number(text: str) -> Decimal:
    """The number of a literal with a fraction or an exponent. Raises ValueError above :data:`MAX_DIGITS`."""
    if len(text) > MAX_DIGITS + 10:
        raise ValueError(f"a number of more than {MAX_DIGITS:,} digits is refused: {text[:20]}…")
    number = Decimal(text)
    if abs(number.adjusted()) > MAX_DIGITS:
        raise ValueError(f"{text[:20]} is too large or too small for a number")
    return number


_DECODER = msgspec.json.Decoder(float_hook=exact_number)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_CANONICAL = msgspec.json.Encoder(decimal_format="number", order="deterministic")


def decode_json(data: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError if it is none, RecursionError if it is nested too deeply."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError, ValueError):
        # Python's module reads half a surrogate pair, which msgspec refuses, and says better what is wrong.
        return json.loads(data, parse_float=exact_number, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def encode_json(value: Any, *, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON in UTF-8; ``default`` converts what is not JSON.

    Raises TypeError or ValueError if it is not JSON, RecursionError if it is nested too deeply. A ``float`` that is not
    finite becomes null, so it must be refused where it comes in.
    """
    encoder = _ENCODER if default is None else msgspec.json.Encoder(decimal_format="number", enc_hook=default)
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can hold
        return _encode_with_escapes(value, default, sort=False).encode()


def canonical_json(value: Any) -> str:
    """A value as JSON with sorted keys, for hashes and comparisons: equal values have equal texts.

    Numbers are compared as written: 1.10 and 1.1 differ here. Raises as :func:`encode_json`.
    """
    try:
        return _CANONICAL.encode(value).decode()
    except UnicodeEncodeError:
        return _encode_with_escapes(value, None, sort=True)


def to_ascii(text: str) -> str:
    """The JSON text with every character beyond ASCII as an escape."""
    return _NOT_ASCII.sub(lambda match: json.dumps(match.group())[1:-1], text)


def _encode_with_escapes(value: Any, default: Callable[[Any], Any] | None, *, sort: bool) -> str:
    match value:
        case dict():
            items = sorted(value.items()) if sort else value.items()
            pairs = (f"{json.dumps(str(key))}:{_encode_with_escapes(item, default, sort=sort)}" for key, item in items)
            return "{" + ",".join(pairs) + "}"
        case list() | tuple():
            return "[" + ",".join(_encode_with_escapes(item, default, sort=sort) for item in value) + "]"
        case str():
            return json.dumps(value)
        case None | bool() | int() | float() | Decimal():
            return _ENCODER.encode(value).decode()
    if default is None:
        raise TypeError(f"JSON has no form for a value of type {type(value).__name__}")
    return _encode_with_escapes(default(value), default, sort=sort)
