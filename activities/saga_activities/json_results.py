"""Values of authors as JSON, such as results, inputs that are enqueued, and events: exact numbers, times in ISO 8601,
and an error for a value without a JSON form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic_core import to_jsonable_python

from saga_activities.result_columns import DatabaseInterval
from sagas.input_limits import MAX_JSON_DEPTH
from sagas.text.exact_json import decimal_problem
from sagas.text.exact_numbers import has_too_many_digits
from sagas.text.json_values import names_problem


class UnusableResult(ValueError):
    """A result that cannot be stored: too large, or not JSON. ``field`` is the place within the result."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(f"{problem} (field {field})" if field else problem)
        self.problem = problem
        self.field = field

    def within(self, name: str | int) -> UnusableResult:
        """Return the problem as seen from the object or list around it."""
        inner = f".{self.field}" if self.field and not self.field.startswith("[") else self.field
        return UnusableResult(self.problem, (f"[{name}]" if isinstance(name, int) else name) + inner)


def to_json_value(value: Any, depth: int = 0) -> Any:
    """``value`` in JSON's own types: exact numbers, times in ISO 8601, intervals of a database as its text.

    A ``Decimal`` stays one; a ``float`` becomes the decimal with the fewest digits that denotes it. ``depth`` is the
    number of levels around the value. Raises :class:`UnusableResult`, which names the field, for a type that has no
    such form, for a number that JSON does not have, and for a value that is nested too deeply.
    """
    if depth > MAX_JSON_DEPTH:
        raise UnusableResult(f"values must not be nested deeper than {MAX_JSON_DEPTH} levels")
    match value:
        case None | bool():
            return value
        case Enum():
            return to_json_value(value.value)
        case str():
            return str(value)
        case int() | float() | Decimal():
            return json_number(value)
        case UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case DatabaseInterval():
            return value.text
        case timedelta():
            return _duration(value)
        case bytes() | bytearray() | memoryview():
            raise UnusableResult(
                "JSON has no form for bytes: give text, such as encode(x, 'hex') on PostgreSQL, hex(x) on MySQL,"
                " MariaDB and SQLite, and x.hex() in Python"
            )
        case Mapping():
            require_names(value.keys(), _json_key)
            return _object(value.items(), depth)
        case Sequence() | Set():
            return [_item(number, item, depth) for number, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(((field.name, getattr(value, field.name)) for field in dataclasses.fields(value)), depth)
    dump = getattr(value, "model_dump", None)  # a pydantic model, without importing pydantic here
    if callable(dump):
        return to_json_value(dump(), depth)
    raise UnusableResult(
        f"JSON has no form for a value of type {type(value).__name__}: give text, such as `v::text as v` of a column"
        " of PostgreSQL, which takes it back, or str(v) in Python"
    )


def json_number(value: int | float | Decimal) -> int | Decimal:
    """The number with its exact digits. Raises :class:`UnusableResult` for one that JSON cannot express, or nobody
    could read again."""
    if isinstance(value, int):
        if has_too_many_digits(value):
            raise UnusableResult("an integer must not have more than 4,000 digits")
        return int(value)
    number = Decimal(float.__repr__(value)) if isinstance(value, float) else value
    if not number.is_finite():
        raise UnusableResult(f"{value} cannot be stored: JSON has no such number, so give null or a string")
    if (problem := decimal_problem(number)) is not None:
        raise UnusableResult(f"a value cannot be stored: {problem}")
    return number


def require_names(keys: Collection[Any], name: Callable[[Any], str]) -> None:
    """Raises :class:`UnusableResult` if two keys have one ``name``."""
    if (problem := names_problem(keys, name)) is not None:
        raise UnusableResult(f"a value cannot be stored: {problem}")


def _object(items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
    return {(name := _json_key(key)): _item(name, item, depth) for key, item in items}


def _item(name: str | int, value: Any, depth: int) -> Any:
    try:
        return to_json_value(value, depth + 1)
    except UnusableResult as error:
        raise error.within(name) from None


def _duration(length: timedelta) -> str:
    """ISO 8601 with days as the largest unit: pydantic would write 365 days as a year, which has another length."""
    if abs(length) < timedelta(days=365):
        return str(to_jsonable_python(length))
    days, within_day = divmod(abs(length), timedelta(days=1))
    return f"{'-' if length < timedelta(0) else ''}P{days}D{to_jsonable_python(within_day)[1:]}"


def _json_key(key: Any) -> str:
    if not isinstance(key, str | int | Decimal | UUID | date):
        raise UnusableResult(f"the key of an object must be a string, not a {type(key).__name__}")
    return key if isinstance(key, str) else str(to_json_value(key))
