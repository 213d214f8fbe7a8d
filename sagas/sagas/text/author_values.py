"""Values that an author's code gives to its exceptions, in a form that can be stored, sent and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any

from sagas.input_limits import MAX_INTEGER_DIGITS, MAX_JSON_DEPTH
from sagas.text.exact_numbers import has_too_many_digits
from sagas.text.json_values import encodable, json_problem

RAISED_AT = "raised_at"
"""The field of an error's details with the file and the line in the author's code that raised it."""


def text_of(value: Any) -> str:
    """The text of any value, also of an exception; never raises.

    An exception that is a dataclass has no text of its own: its fields are.
    """
    if isinstance(value, int) and has_too_many_digits(value):
        return f"(an integer of more than {MAX_INTEGER_DIGITS:,} digits)"
    try:
        text = str(value)
        if not text and isinstance(value, BaseException) and dataclasses.is_dataclass(value):
            return ", ".join(f"{field.name}={getattr(value, field.name)!r}" for field in dataclasses.fields(value))
        return text
    except Exception as error:  # noqa: BLE001 - `__str__` is the author's code
        return f"(a {type(value).__name__} without a text: its __str__ raised {type(error).__name__})"


def named_error(error: BaseException) -> str:
    """The class and the text of an exception: `ValueError: no such order`."""
    return f"{type(error).__name__}: {text_of(error)}"


def reportable(details: Any) -> dict[str, Any]:
    """``details`` as a JSON object that any database and UTF-8 can hold; what is not JSON becomes a string.

    A sentence takes the place of a field that is nested too deeply, or cannot be read.
    """
    if not isinstance(details, Mapping):
        details = {} if details is None else {"details": details}
    return {encodable(text_of(name)): _field(item) for name, item in details.items()}


def _field(value: Any) -> Any:
    try:
        return _plain(value, 1)
    except _TooDeepError:
        return f"(left out: it is nested deeper than {MAX_JSON_DEPTH} levels)"
    except Exception as error:  # noqa: BLE001 - a mapping or a model is the author's code
        return f"(left out: reading it raised {type(error).__name__})"


class _TooDeepError(Exception):
    pass


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_JSON_DEPTH:
        raise _TooDeepError
    match value:
        case None | bool():
            return value
        case Enum():
            return _plain(value.value, depth)
        case int() | float() | Decimal() if json_problem(value) is None:
            return value
        case str():
            return encodable(value)
        case date() | time():
            return value.isoformat()
        case Mapping():
            return {encodable(text_of(key)): _plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item, depth + 1) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name), depth + 1) for field in fields}
    if callable(dump := getattr(value, "model_dump", None)):  # a pydantic model
        return _plain(dump(), depth)
    return encodable(text_of(value))
