"""Timestamps (RFC 3339, kept in UTC) and durations (``1h30m``, ``1.5s``), exact to the microsecond."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sagas.expressions.errors import ExpressionError

_DATE = r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
_CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})"
_TIMESTAMP = re.compile(f"{_DATE}[Tt ]{_CLOCK}", re.ASCII | re.IGNORECASE)
_DAY = re.compile(_DATE, re.ASCII)
_DURATION = re.compile(r"([+-]?)((?:[0-9]{1,12}(?:\.[0-9]{1,9})?(?:h|ms|m|s|us|ns|d))+)", re.ASCII)
_PIECE = re.compile(r"([0-9]+)(?:\.([0-9]+))?(h|ms|m|s|us|ns|d)", re.ASCII)
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


def read_timestamp(text: str) -> datetime:
    """The moment in UTC; raises ExpressionError for other notations and for fractions below a microsecond."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ExpressionError(f"'{text[:40]}' is not a timestamp such as 2026-05-01T10:30:00Z")
    *numbers, fraction, zone = found.groups()
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
        raise ExpressionError(f"'{text[:40]}' is not a moment of the calendar") from None


def write_timestamp(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ExpressionError("a timestamp without a time zone is no JSON value")
    text = moment.astimezone(UTC).replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if "." in text else text) + "Z"


def read_day(text: str) -> str:
    """``YYYY-MM-DD`` of a date or, in UTC, of a timestamp."""
    day = _DAY.fullmatch(text)
    if day is None:
        return read_timestamp(text).date().isoformat()
    try:
        return datetime(int(day[1]), int(day[2]), int(day[3]), tzinfo=UTC).date().isoformat()
    except ValueError:
        raise ExpressionError(f"'{text}' is not a day of the calendar") from None


def read_duration(text: str) -> timedelta:
    """A length of time; raises ExpressionError for other notations and for parts below a microsecond."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ExpressionError(f"'{text[:40]}' is not a duration such as 90s or 1h30m")
    total = 0
    for whole, fraction, unit in _PIECE.findall(found[2]):
        scaled = int(whole + fraction) * _NANOSECONDS[unit]
        if scaled % 10 ** len(fraction):
            raise ExpressionError(f"'{text[:40]}' is finer than a nanosecond")
        total += scaled // 10 ** len(fraction)
    if total % 1_000:
        raise ExpressionError(f"'{text[:40]}' is finer than a microsecond")
    try:
        return timedelta(microseconds=total // 1_000) * (-1 if found[1] == "-" else 1)
    except OverflowError:
        raise ExpressionError(f"'{text[:40]}' is longer than the calendar") from None


def write_duration(length: timedelta) -> str:
    """Seconds, as CEL and Protocol Buffers write them: ``5400s``, ``1.5s``."""
    microseconds = length // _MICROSECOND
    sign, (seconds, rest) = "-" if microseconds < 0 else "", divmod(abs(microseconds), 1_000_000)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{sign}{seconds}{fraction}s"
