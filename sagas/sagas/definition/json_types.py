"""The types of JSON Schema, of values as Python has them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from types import NoneType
from typing import Any

from sagas.text.exact_numbers import is_whole

NUMBERS = frozenset({int, Decimal})

ANY_TYPE = frozenset({dict, list, str, int, Decimal, bool, NoneType, object})
"""The types of JSON values; `object` stands for all that is none, such as a tuple."""

TYPES: Mapping[str, frozenset[type]] = {
    "object": frozenset({dict}),
    "array": frozenset({list}),
    "string": frozenset({str}),
    "number": NUMBERS,
    "integer": NUMBERS,
    "boolean": frozenset({bool}),
    "null": frozenset({NoneType}),
}


def has_type(value: Any, kind: str) -> bool:
    """Return whether a JSON value has a type of JSON Schema, to which 12.0 is an integer."""
    return type_of(value) in TYPES.get(kind, ANY_TYPE) and (kind != "integer" or is_whole(value))


def type_of(value: Any) -> type:
    """The type of a JSON value; a subclass counts as the type of JSON that it is derived from."""
    return (
        type(value)
        if type(value) in ANY_TYPE
        else next((type_ for type_ in (bool, int, Decimal, str, dict, list) if isinstance(value, type_)), object)
    )
