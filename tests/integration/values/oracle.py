"""JSON values as texts, and the rules of the language for them, computed on the digits alone.

Nothing of the engine is used here, nor Decimal: a number is the text in which it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


@dataclass(frozen=True)
class Number:
    """A number of JSON. ``digits`` times ten to the ``exponent`` is its amount."""

    text: str

    @property
    def parts(self) -> tuple[str, str, int]:
        """Sign, digits without leading zeros, exponent."""
        match = _NUMBER.fullmatch(self.text)
        assert match is not None, f"{self.text!r} is not a number"
        sign, whole, fraction, power = match.groups()
        digits = (whole + (fraction or "")).lstrip("0") or "0"
        return sign, digits, int(power or 0) - len(fraction or "")

    @property
    def is_integer(self) -> bool:
        """Written as an integer."""
        return self.text.lstrip("-").isdigit()

    @property
    def value(self) -> tuple[str, str, int]:
        """Equal for equal amounts."""
        sign, digits, exponent = self.parts
        kept = digits.rstrip("0")
        return (sign, kept, exponent + len(digits) - len(kept)) if kept else ("", "0", 0)

    @property
    def is_whole(self) -> bool:
        return self.value[2] >= 0

    @property
    def whole(self) -> Number:
        """The integer, of a number without a fraction."""
        sign, digits, exponent = self.value
        return Number(sign + digits + "0" * exponent)

    @property
    def plain(self) -> str:
        """Inside text: the digits as written, without an exponent."""
        sign, digits, exponent = self.parts
        if exponent >= 0:
            text = digits + "0" * exponent if digits != "0" else "0"
        else:
            padded = digits.rjust(1 - exponent, "0")
            text = f"{padded[:exponent]}.{padded[exponent:]}"
        return text if not text.strip("0.") else sign + text

    def plus(self, other: int) -> Number:
        """The sum, with as many digits after the point as this number has."""
        sign, digits, exponent = self.parts
        scale = max(-exponent, 0)
        amount = int(sign + digits + "0" * max(exponent, 0)) + other * 10**scale
        text = str(abs(amount)).rjust(scale + 1, "0")
        text = f"{text[:-scale]}.{text[-scale:]}" if scale else text
        return Number(("-" if amount < 0 else "") + text)


@dataclass(frozen=True)
class Text(Number):
    """Text where a number should be."""

    @property
    def is_whole(self) -> bool:
        return False


Json = Any
"""None, bool, str, Number, list or dict of them."""


def write_json(value: Json) -> str:
    """The JSON text, in which numbers are as they are and all but ASCII is escaped."""
    match value:
        case Number():
            return value.text
        case list():
            return "[" + ", ".join(map(write_json, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{json.dumps(name)}: {write_json(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def read_json(text: str | bytes) -> Json:
    """The value of a JSON text; numbers as they are written."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=refuse)


def same(value: Json, other: Json) -> bool:
    """True for the same type and the same digits: 1.10 is not 1.1, and 1e2 is 1E+2 but neither 100 nor 1.0e2."""
    if isinstance(value, Number) and isinstance(other, Number):
        if value.parts[1:] == other.parts[1:] == ("0", 0):
            return True  # an integer of zero has no sign
        return value.parts == other.parts
    if type(value) is not type(other):
        return False
    if isinstance(value, list):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same(item, other[name]) for name, item in value.items())
    return value == other


def with_integers(value: Json) -> Json:
    """The value where its schema says `integer` for each number without a fraction."""
    return map_numbers(value, lambda number: number.whole if number.is_whole else number)


def map_numbers(value: Json, change: Any) -> Json:
    if isinstance(value, list):
        return [map_numbers(item, change) for item in value]
    if isinstance(value, dict):
        return {name: map_numbers(item, change) for name, item in value.items()}
    return change(value) if isinstance(value, Number) else value


def schema_of(value: Json, *, integers: bool) -> Mapping[str, Any]:
    """A schema that says what each value in the document is; `integer` only if it may."""
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case str():
            return {"type": "string"}
        case Number():
            return {"type": "integer" if integers and value.is_whole else "number"}
        case []:
            return {"type": "array"}
        case list():
            return {"type": "array", "prefixItems": [schema_of(item, integers=integers) for item in value]}
    return {
        "type": "object",
        "properties": {name: schema_of(item, integers=integers) for name, item in value.items()},
        "additionalProperties": False,
    }


def text_of(value: Json) -> str:
    """A scalar inside text."""
    match value:
        case bool():
            return "true" if value else "false"
        case Number():
            return value.plain
    assert isinstance(value, str)
    return value


def is_scalar(value: Json) -> bool:
    return isinstance(value, bool | str | Number)


def has_nul(value: Json) -> bool:
    """True if a text or a name has the character U+0000, which PostgreSQL stores neither in text nor in jsonb."""
    return "\\u0000" in write_json(value)
