"""The values of expressions, and their conversion from and to JSON.

The types are None, bool, int, Decimal, str, list, dict (string keys), and datetime and timedelta for ``timestamp`` and
``duration``. There are no floats: arithmetic on money must be exact and deterministic. Containers of the context are
not converted as a whole; :func:`to_cel` converts a value when it is read, because an expression uses only a small
part of its context.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sagas.expressions.errors import ExpressionError, LimitError
from sagas.expressions.limits import (
    CHARACTERS_PER_STEP,
    MAX_DATA_DEPTH,
    MAX_RESULT_CHARACTERS,
    MAX_RESULT_VALUES,
    VALUES_PER_STEP,
    Evaluation,
    WorkMeter,
    check_integer,
)
from sagas.input_limits import MAX_DECIMAL_DIGITS
from sagas.text.exact_json import decimal_problem, number_text
from sagas.text.shortening import shorten

DECIMAL_DIGITS = MAX_DECIMAL_DIGITS
_TRAPS = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow, decimal.Underflow]
EXACT = decimal.Context(
    prec=DECIMAL_DIGITS,
    rounding=decimal.ROUND_HALF_UP,
    Emax=DECIMAL_DIGITS,
    Emin=-DECIMAL_DIGITS,
    traps=[*_TRAPS, decimal.Inexact],
)
"""Addition, subtraction and multiplication without rounding; Python's operators round to the thread's context."""
ROUNDING = decimal.Context(prec=DECIMAL_DIGITS, Emax=DECIMAL_DIGITS, Emin=-DECIMAL_DIGITS, traps=_TRAPS)
DIVIDING = decimal.Context(
    prec=28, rounding=decimal.ROUND_HALF_UP, Emax=DECIMAL_DIGITS, Emin=-DECIMAL_DIGITS, traps=_TRAPS
)
"""Division, rounded to 28 digits; halves are rounded away from zero."""

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?", re.ASCII)
_NATIVE_TYPES = frozenset({str, int, bool, type(None), dict, list, Decimal, datetime, timedelta})
_CONVERTED = frozenset({float, Decimal, datetime, timedelta})
_CONVERTING = 16
"""The work of checking or writing one of these."""

_TYPE_NAMES = {
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


def type_name(value: Any) -> str:
    """The type of a value with its article, for messages: ``a string``."""
    return _TYPE_NAMES.get(value.__class__, "not a JSON value")


def parse_decimal(text: str) -> Decimal:
    """An exact decimal in plain or exponent notation; raises ExpressionError for anything else."""
    if len(text) > DECIMAL_DIGITS + 10 or not _DECIMAL.fullmatch(text):
        raise ExpressionError(f"'{shorten(text, 40)}' is not a decimal number")
    try:
        return EXACT.create_decimal(text)
    except decimal.DecimalException:
        raise LimitError(f"a decimal of more than {DECIMAL_DIGITS:,} digits is refused") from None


def format_decimal(number: Decimal) -> str:
    """The digits of the number without exponent; raises ExpressionError if JSON has no form for it."""
    return number_text(_checked_decimal(number))


def _checked_decimal(number: Decimal) -> Decimal:
    problem = decimal_problem(number)
    if problem is not None:
        raise ExpressionError(f"the result is not a number that can be passed on: {problem}")
    return number


@dataclass(frozen=True, slots=True)
class UnusableValue:
    """Stands in a context for a value that is not certain; ``why`` is the message of an expression that reads it."""

    why: str


class OmittedValue(UnusableValue):
    """A value that was too large to be kept. Nothing absorbs the error: a result without it would be a wrong one."""

    __slots__ = ()


def to_cel(value: Any) -> Any:
    """Convert a value of the context; raises ExpressionError if it is not a JSON value."""
    return value if value.__class__ in _NATIVE_TYPES else _convert(value)


def _convert(value: Any) -> Any:
    match value:
        case float():
            if not math.isfinite(value):
                raise ExpressionError(f"{value} is not a JSON number")
            return parse_decimal(repr(value))  # repr is the shortest string that parses to the same float
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case Mapping():
            return dict(value)
        case tuple():
            return list(value)
        case OmittedValue(why):
            raise LimitError(why)
        case UnusableValue(why):
            raise ExpressionError(why)
    raise ExpressionError(f"a value of type {type(value).__name__} is not a JSON value")


class _ResultEncoder:
    """Copies a result to JSON and counts its size, because a small expression can repeat a large value many times."""

    def __init__(self, run: Evaluation, steps_left: int) -> None:
        self._run = run
        self._values = self._max_values = VALUES_PER_STEP * steps_left
        self._text = MAX_RESULT_CHARACTERS

    @property
    def steps(self) -> int:
        """The work so far, in steps of an evaluation."""
        characters = MAX_RESULT_CHARACTERS - self._text
        return (self._max_values - self._values) // VALUES_PER_STEP + characters // CHARACTERS_PER_STEP

    def encode(self, value: Any, level: int) -> Any:
        self._values -= 1
        if self._values < 0:
            raise LimitError(f"the results of one value have more than {MAX_RESULT_VALUES:,} values")
        if level > MAX_DATA_DEPTH:
            raise LimitError(f"the result is nested deeper than {MAX_DATA_DEPTH} levels")
        if value.__class__ in _CONVERTED:
            self._run.charge_work(_CONVERTING)
        value = to_cel(value)
        kind = value.__class__
        if kind is str:
            return self._counted(value)
        if kind is list:
            return [self.encode(item, level + 1) for item in value]
        if kind is dict:
            return {self._key(key): self.encode(item, level + 1) for key, item in value.items()}
        if kind is int:
            self._count(value.bit_length() // 3)
        if kind is Decimal:
            self._count(len(str(value)))
        made = scalar_from_cel(value)
        return self._counted(made) if made.__class__ is str else made

    def _counted(self, text: str) -> str:
        self._count(len(text))
        return text

    def _count(self, characters: int) -> None:
        self._text -= characters
        if self._text < 0:
            raise LimitError(f"the result has more than {MAX_RESULT_CHARACTERS // 1_048_576} MiB of strings")

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise ExpressionError(f"a map key is {type_name(key)}; keys are strings")
        return self._counted(key)


def scalar_from_cel(value: Any) -> Any:
    """A value that is not a container, as JSON; timestamps and durations become strings."""
    match value:
        case int():
            return check_integer(value)
        case Decimal():
            return _checked_decimal(value)
        case datetime():
            return timestamp_to_string(value)
        case timedelta():
            return duration_to_string(value)
    return value


def from_cel(run: Evaluation, value: Any, steps: int, meter: WorkMeter) -> Any:
    """The result as JSON, sharing no containers with the context. ``meter`` counts what this takes.

    Raises LimitError if it takes more than these steps.
    """
    if value.__class__ not in (list, dict):
        return scalar_from_cel(value)
    encoder = _ResultEncoder(run, steps)
    try:
        return encoder.encode(value, 0)
    finally:
        meter.steps += encoder.steps


# Timestamps (RFC 3339, kept in UTC) and durations (``1h30m``, ``1.5s``), with microsecond precision
_DATE_PATTERN = r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
_TIME_PATTERN = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})"
_TIMESTAMP = re.compile(f"{_DATE_PATTERN}[Tt ]{_TIME_PATTERN}", re.ASCII | re.IGNORECASE)
_DATE_ONLY = re.compile(_DATE_PATTERN, re.ASCII)
_DURATION = re.compile(r"([+-]?)((?:[0-9]{1,12}(?:\.[0-9]{1,9})?(?:h|ms|m|s|us|ns|d))+)", re.ASCII)
DURATION_LENGTH = 100
_DURATION_PART = re.compile(r"([0-9]+)(?:\.([0-9]+))?(h|ms|m|s|us|ns|d)", re.ASCII)
_NANOSECONDS = {
    "d": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
_MICROSECOND = timedelta(microseconds=1)


def timestamp_from_string(text: str) -> datetime:
    """The timestamp in UTC; raises ExpressionError for other notations and for fractions below a microsecond."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ExpressionError(f"'{text[:40]}' is not a timestamp such as 2026-05-01T10:30:00Z")
    *numbers, fraction, zone = match.groups()
    fraction = (fraction or "").ljust(9, "0")
    if fraction[6:] != "000":
        raise ExpressionError(f"'{text[:40]}' is finer than a microsecond")
    offset = timedelta(0)
    if zone not in ("Z", "z"):
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6])) * (-1 if zone[0] == "-" else 1)
    try:
        year, month, day, hour, minute, second = (int(number) for number in numbers)
        return datetime(year, month, day, hour, minute, second, int(fraction[:6]), UTC) - offset
    except (ValueError, OverflowError):
        raise ExpressionError(f"'{text[:40]}' is not a date and time of the calendar") from None


def timestamp_to_string(timestamp: datetime) -> str:
    if timestamp.tzinfo is None:
        raise ExpressionError("a timestamp without a time zone is not a JSON value")
    text = timestamp.astimezone(UTC).replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if "." in text else text) + "Z"


def date_from_string(text: str) -> str:
    """``YYYY-MM-DD`` of a date, or of a timestamp in UTC."""
    day = _DATE_ONLY.fullmatch(text)
    if day is None:
        return timestamp_from_string(text).date().isoformat()
    try:
        return datetime(int(day[1]), int(day[2]), int(day[3]), tzinfo=UTC).date().isoformat()
    except ValueError:
        raise ExpressionError(f"'{text}' is not a day of the calendar") from None


def duration_from_string(text: str) -> timedelta:
    """Parse a duration; raises ExpressionError for other notations and for fractions below a microsecond."""
    match = _DURATION.fullmatch(text) if len(text) <= DURATION_LENGTH else None
    if match is None:
        raise ExpressionError(f"'{text[:40]}' is not a duration such as 90s or 1h30m")
    total = 0
    for whole, fraction, unit in _DURATION_PART.findall(match[2]):
        scaled = int(whole + fraction) * _NANOSECONDS[unit]
        if scaled % 10 ** len(fraction):
            raise ExpressionError(f"'{text[:40]}' is finer than a nanosecond")
        total += scaled // 10 ** len(fraction)
    if total % 1_000:
        raise ExpressionError(f"'{text[:40]}' is finer than a microsecond")
    try:
        return timedelta(microseconds=total // 1_000) * (-1 if match[1] == "-" else 1)
    except OverflowError:
        raise ExpressionError(f"'{text[:40]}' is longer than the calendar") from None


def duration_to_string(length: timedelta) -> str:
    """Seconds, as in CEL and Protocol Buffers: ``5400s``, ``1.5s``."""
    microseconds = length // _MICROSECOND
    sign, (seconds, fraction_digits) = "-" if microseconds < 0 else "", divmod(abs(microseconds), 1_000_000)
    fraction = f".{fraction_digits:06d}".rstrip("0") if fraction_digits else ""
    return f"{sign}{seconds}{fraction}s"
