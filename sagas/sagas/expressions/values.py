"""The values of expressions and the two borders: JSON in, JSON out.

Inside there are None, bool, int, Decimal, str, list, dict (string keys), and datetime and timedelta for
``timestamp`` and ``duration``. There are no floats: arithmetic on money has to be exact and the same everywhere.
Containers of the context are not converted as a whole; :func:`pull` converts a value when it is looked at, since
an expression names a small part of what it could see.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sagas.expressions import times
from sagas.expressions.errors import ExpressionError, LimitError
from sagas.expressions.limits import DATA_DEPTH, RESULT_TEXT, RESULT_VALUES, checked_integer

DECIMAL_DIGITS = 1_000
_TRAPS = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow, decimal.Underflow]
EXACT = decimal.Context(
    prec=DECIMAL_DIGITS,
    rounding=decimal.ROUND_HALF_UP,
    Emax=DECIMAL_DIGITS,
    Emin=-DECIMAL_DIGITS,
    traps=[*_TRAPS, decimal.Inexact],
)
"""Adds, subtracts and multiplies without ever rounding. Python's own operators would round to the thread's context."""
ROUNDING = decimal.Context(prec=DECIMAL_DIGITS, Emax=DECIMAL_DIGITS, Emin=-DECIMAL_DIGITS, traps=_TRAPS)
DIVIDING = decimal.Context(
    prec=28, rounding=decimal.ROUND_HALF_UP, Emax=DECIMAL_DIGITS, Emin=-DECIMAL_DIGITS, traps=_TRAPS
)

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?", re.ASCII)
_PLAIN = frozenset({str, int, bool, type(None), dict, list, Decimal, datetime, timedelta})
_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    Decimal: "a decimal",
    str: "a string",
    list: "a list",
    dict: "a map",
    datetime: "a timestamp",
    timedelta: "a duration",
}


def kind_of(value: Any) -> str:
    """What a value is, for a sentence: ``a string``."""
    return _KINDS.get(value.__class__, "no JSON value")


def decimal_of_text(text: str) -> Decimal:
    """An exact decimal of ordinary or exponent notation; raises ExpressionError for anything else."""
    if len(text) > DECIMAL_DIGITS + 10 or not _DECIMAL.fullmatch(text):
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise ExpressionError(f"'{shown}' is not a decimal number")
    try:
        return EXACT.create_decimal(text)
    except decimal.DecimalException:
        raise LimitError(f"a decimal of more than {DECIMAL_DIGITS:,} digits is refused") from None


def plain(number: Decimal) -> str:
    """Without exponent and without a negative zero; raises ExpressionError for what no JSON number can be."""
    if not number.is_finite() or abs(number.adjusted()) > 2 * DECIMAL_DIGITS:
        raise ExpressionError("a decimal that is not finite or out of range is no JSON value")
    return format(number if number else number.copy_abs(), "f")


def pull(value: Any) -> Any:
    """A value of the context as expressions see it; raises ExpressionError when it is no JSON value."""
    return value if value.__class__ in _PLAIN else _converted(value)


def _converted(value: Any) -> Any:
    match value:
        case float():
            if not math.isfinite(value):
                raise ExpressionError(f"{value} is no JSON number")
            return decimal_of_text(repr(value))  # repr is the shortest text that reads back as the same number
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case Mapping():
            return dict(value)
        case tuple():
            return list(value)
    raise ExpressionError(f"a value of type {type(value).__name__} is no JSON value")


class _Leaving:
    """Copies one result to JSON; counts, because a small expression can name the same big value often."""

    def __init__(self) -> None:
        self._values = RESULT_VALUES
        self._text = RESULT_TEXT

    def leave(self, value: Any, level: int) -> Any:
        self._values -= 1
        if self._values < 0:
            raise LimitError(f"the result has more than {RESULT_VALUES:,} values")
        if level > DATA_DEPTH:
            raise LimitError(f"the result has more than {DATA_DEPTH} levels inside each other")
        value = pull(value)
        kind = value.__class__
        if kind is str:
            return self._counted(value)
        if kind is list:
            return [self.leave(item, level + 1) for item in value]
        if kind is dict:
            return {self._key(key): self.leave(item, level + 1) for key, item in value.items()}
        return leave_scalar(value)

    def _counted(self, text: str) -> str:
        self._text -= len(text)
        if self._text < 0:
            raise LimitError(f"the result has more than {RESULT_TEXT // 1_048_576} MiB of text")
        return text

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise ExpressionError(f"a map key is {kind_of(key)}; keys are strings")
        return self._counted(key)


def leave_scalar(value: Any) -> Any:
    """A value without parts as JSON: decimals, timestamps and durations leave as strings."""
    match value:
        case int():
            return checked_integer(value)
        case Decimal():
            return plain(value)
        case datetime():
            return times.write_timestamp(value)
        case timedelta():
            return times.write_duration(value)
    return value


def leave(value: Any) -> Any:
    """The result as JSON, independent of the context it came from."""
    if value.__class__ in (list, dict):
        return _Leaving().leave(value, 0)
    return leave_scalar(value)
