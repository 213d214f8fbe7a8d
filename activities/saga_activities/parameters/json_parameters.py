"""Lists, objects and JSON as parameters of SQL: bound as the receiver reads them, or refused before the statement runs.

On PostgreSQL a list whose items have one type is an array, and any other list and every object is JSON text, as both
are elsewhere. A parameter with a cast to JSON, and a list or object for a column of JSON, is the value as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from sagas.errors import UsageError
from sagas.sql_text.calls import EnclosingCall
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import cast_types
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.json_values import json_problem

_SCALAR = re.compile(r'\s*(?:"|-?[0-9]|(?:true|false|null)\s*\Z)')
_WRITES_JSON = re.compile("jsonb?_(?:array|array_insert|group_array|group_object|insert|object|quote|replace|set)")
_JSON_TYPES = ("json", "jsonb")
_HAS_JSON_CAST = ("postgresql", "mysql")

JSON_OF_TEXT: Mapping[str, tuple[str, str]] = {
    "postgresql": ("{}::jsonb", "{}::text::jsonb"),
    "mysql": ("cast({} as json)", "json_extract({}, '$')"),
    "mariadb": ("json_quote({})", "json_compact({})"),
    "sqlite": ("json_quote({})", "json({})"),
}
"""How a statement stores a string as JSON, and how text that is JSON already."""


class UnusableParameter(UsageError):
    """A parameter has a value that its receiver would store as another one."""


def needs_form(value: Any, dialect: str) -> bool:
    """Return whether a value may be stored as another one in a column of JSON or of an array."""
    if isinstance(value, str):
        return _SCALAR.match(value) is not None
    return isinstance(value, list | dict) or (isinstance(value, bool) and dialect != "postgresql")


@lru_cache(maxsize=1024)
def json_places(statement: ParsedSql) -> frozenset[int]:
    """The placeholders, counted from 0, that are cast to JSON."""
    if statement.dialect not in _HAS_JSON_CAST or "json" not in statement.source.lower():
        return frozenset()
    return frozenset(place for place, type in enumerate(cast_types(statement)) if type in _JSON_TYPES)


def as_json(name: str, value: Any) -> str | None:
    """The text of a value as JSON; null stays SQL's NULL. Raises UnusableParameter."""
    if value is None:
        return None
    if (problem := json_problem(value, half_pairs=True)) is not None:
        raise UnusableParameter(f"the parameter {name} cannot be written as JSON: {problem}")
    if (path := _path_of_bytes(name, value)) is not None:
        raise UnusableParameter(
            f"the parameter {name} cannot be written as JSON: {path} is bytes, which JSON does not have: give"
            " text, such as its hexadecimal digits"
        )
    try:
        return encode_json(value).decode()
    except (TypeError, ValueError) as error:
        raise UnusableParameter(
            f"the parameter {name} cannot be written as JSON ({type(value).__name__}): give it strings, numbers,"
            " booleans, null, lists and objects only"
        ) from error


_BYTES = (bytes, bytearray, memoryview)
_PLAIN = (str, int, float, Decimal, type(None))


def _path_of_bytes(name: str, value: Any) -> str | None:
    """The path in a value to bytes, of which the writer of JSON makes text in base64; None if it has none."""
    waiting = [(name, value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, _BYTES):
            return path
        if not isinstance(item, (*_PLAIN, dict, list, tuple)):
            try:
                item = msgspec.to_builtins(item, builtin_types=_BYTES)  # such as a dataclass or a set
            except (TypeError, ValueError):
                continue  # refused by the writer
        if isinstance(item, dict):
            waiting += [(f"{path}.{key}", child) for key, child in item.items()]
        elif isinstance(item, list | tuple):
            waiting += [(f"{path}[{index}]", child) for index, child in enumerate(item)]
    return None


def without_target(name: str, value: Any, dialect: str) -> Any:
    """A list or an object as it is bound where nothing is known about the receiver."""
    if isinstance(value, dict) or (isinstance(value, list) and not (dialect == "postgresql" and is_array(value))):
        return as_json(name, value)
    return value


def is_array(items: list[Any]) -> bool:
    """Return whether the items of a list have one type, nulls aside."""
    kinds = {Decimal if type(item) is int else type(item) for item in items if item is not None}
    return len(kinds) <= 1 and not kinds & {dict, list}


def for_json_column(name: str, value: Any, dialect: str, column: str) -> Any:
    """A value for a column of JSON. Raises UnusableParameter for text that the database would read as JSON."""
    if isinstance(value, list | dict):
        return as_json(name, value)
    if isinstance(value, bool) and dialect != "postgresql":
        return "true" if value else "false"
    if isinstance(value, str) and _is_json(value):
        of_string, of_text = (form.format(f":{name}") for form in JSON_OF_TEXT[dialect])
        raise UnusableParameter(
            f"the parameter {name} is text, and the column {column} of JSON would read a value from it: write"
            f" `{of_string}` to store a string, or `{of_text}` if it is JSON already"
        )
    return value


def refuse_json_boolean(name: str, value: Any, calls: Sequence[EnclosingCall], dialect: str) -> None:
    """Refuse a boolean that a function of SQLite would write into JSON as 1 or 0. Raises UnusableParameter."""
    function = calls[0] if dialect == "sqlite" and isinstance(value, bool) and calls else None
    if function is not None and function.direct and _WRITES_JSON.fullmatch(function.name.lower()):
        raise UnusableParameter(
            f"the parameter {name} is a boolean, which {function.name} of SQLite would write as a number: write"
            f" `json(iif(:{name}, 'true', 'false'))`"
        )


def for_array_column(name: str, value: Any, column: str, *, of_text: bool) -> Any:
    """A value for a column of an array on PostgreSQL. Raises UnusableParameter for items of other types."""
    if isinstance(value, dict):
        raise UnusableParameter(f"the parameter {name} is an object, and the column {column} is an array: give a list")
    if not isinstance(value, list) or any(isinstance(item, list) for item in value):
        return value  # the database reads its own text of an array, and arrays of arrays
    if not is_array(value):
        raise UnusableParameter(
            f"the parameter {name} is a list of different types, and the items of the column {column} have one: give"
            " items of this type"
        )
    if of_text and any(isinstance(item, int | float | Decimal) for item in value):
        raise UnusableParameter(
            f"the parameter {name} is a list of numbers or booleans, and the column {column} has strings: write each"
            " with string(x)"
        )
    return value


def _is_json(text: str) -> bool:
    try:
        decode_json(text)
    except ValueError:
        return False
    return True
