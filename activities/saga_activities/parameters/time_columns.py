"""Columns of times and dates: which part of a value they would drop without an error.

PostgreSQL rounds digits after the second that a column does not hold, MariaDB cuts them off; a date drops a time of
day, a time the date, and a column without a time zone of PostgreSQL the offset from UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from saga_activities.parameters.iso_times import iso_problem
from sagas.text.exact_json import number_text

_CLOCK = re.compile(
    r"(?P<clock>(?<!\d)\d+:\d{2}(?::\d{2})?|(?<=T)\d{2,6}|(?<=^\d{8})\d{6}(?!\d))(?:[.,](?P<fraction>\d+))?"
    r"\s*(?P<zone>[+-]\d{1,2}(?::?\d{2}){0,2}|(?!(?:UTC|GMT)\b)[A-Za-z]{3,}[\w/]*)?",
    re.ASCII | re.IGNORECASE,
)
"""A time of day in ISO 8601, as SQL and MySQL write it, and what follows it."""

_DATE = re.compile(r"\d([-/.])\d{1,2}\1\d|\d{8}T|^\d{14}", re.ASCII)

_SECONDS = re.compile(r"(?::\d{2}[.,](\d+)|\d[.,](\d+)\s*s(?:ec(?:ond)?s?)?\b)", re.ASCII | re.IGNORECASE)
"""The digits after the second in an interval."""

_LEAP_SECOND = re.compile(r"\d+:\d{2}:60|\d{4}60", re.ASCII)

_DATE_DIGITS, _CLOCK_DIGITS, _TIME_DIGITS = 8, 6, 7
"""Digits of YYYYMMDD, HHMMSS and HHHMMSS."""


def in_utc(value: Any) -> Any:
    """The time that the engine's sessions make of text with `::timestamptz`; any other value as it is."""
    try:
        read = datetime.fromisoformat(value.strip()) if isinstance(value, str) else None
    except ValueError:  # the database reads it, or refuses it itself
        return value
    if read is None:
        return value
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


_UTC_TEXT = re.compile(
    r"(?P<time>.*\d{2}:\d{2}(?::\d{2}(?:[.,]\d*)?)?)\s*(?:Z|[+-]00(?::?00(?::?00)?)?)\s*", re.ASCII | re.I
)


def without_utc(value: Any) -> Any:
    """Text in UTC as MySQL and MariaDB read it, whose sessions have this time zone; any other value as it is."""
    in_utc = _UTC_TEXT.fullmatch(value) if isinstance(value, str) else None
    return value if in_utc is None else in_utc["time"]


def time_text(value: Any) -> str | None:
    """The text of a value of which a column of times may hold only a part; None for any other value."""
    match value:
        case str() if _CLOCK.search(value) or _SECONDS.search(value):
            return value
        case datetime() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
    return None


@dataclass(frozen=True, slots=True)
class HeldTime:
    """The range of a column of times. ``digits`` are those after the second; ``is_interval``: it has intervals.

    ``is_text``: the database stores the text as it is, as SQLite does.
    """

    digits: int = 0
    date: bool = False
    clock: bool = False
    zone: bool = False
    is_interval: bool = False
    is_text: bool = False

    @property
    def type_name(self) -> str:
        """The name of the type of PostgreSQL with this range."""
        return next(name for name, held in _HELD.items() if held == replace(self, digits=0))

    def form_problem(self, value: Any) -> str | None:
        """The sentence about text that is not in ISO 8601 form; None for any other value."""
        if self.is_interval or not isinstance(value, str):
            return None
        return iso_problem(value, date=self.date, is_stored=self.is_text)

    def problem(self, value: Any) -> str | None:
        """The part of a value that the column would drop; None if it holds all of it, or if its database refuses it."""
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = value.astimezone(UTC)  # of which the database takes the date
        if self.is_text or (text := time_text(value)) is None:
            return None
        if self.is_interval:
            seconds = _SECONDS.search(text)
            return None if seconds is None else self._rounded(seconds[1] or seconds[2])
        if (clock := _CLOCK.search(text)) is None:
            return None
        if _LEAP_SECOND.fullmatch(clock["clock"]):
            return "has no leap seconds and would hold the next minute"
        fraction = clock["fraction"] or ""
        if not self.clock and (clock["clock"] + fraction).strip(":0"):
            return "holds a date and would drop the time of day"
        if not self.date and _DATE.search(text):
            return "holds a time of day and would drop the date"
        # The driver sends a time of Python with its zone, and the database converts it.
        zone = clock["zone"] if isinstance(value, str) and not self.zone else None
        if zone is not None and zone.strip("+-:0"):
            return f"holds no time zone and would drop {zone}"
        return self._rounded(fraction) if self.clock else None

    def number_problem(self, number: Decimal) -> str | None:
        """The part of a number that MySQL and MariaDB would drop, which read it as YYYYMMDD, HHMMSS or both."""
        if self.is_text or self.is_interval:
            return None
        whole, _, fraction = number_text(abs(number)).partition(".")
        if not self.clock:
            is_midnight = not fraction.strip("0") and (
                len(whole) <= _DATE_DIGITS or not whole[-_CLOCK_DIGITS:].strip("0")
            )
            return None if is_midnight else "holds a date and would drop the time of day"
        if not self.date and len(whole) > _TIME_DIGITS:
            return "holds a time of day and would drop the date"
        return self._rounded(fraction)

    def compared_problem(self, text: str) -> str | None:
        """The part of text that MySQL and MariaDB would drop or add to compare it with a value of this range.

        A date is compared as the midnight that it is, and digits after the second with all of them.
        """
        clock, date = _CLOCK.search(text), _DATE.search(text)
        if self.date and clock is not None and date is None:
            return "has a date, which the text does not have"
        return replace(self, digits=9, clock=True, zone=False).problem(text)

    def _rounded(self, fraction: str) -> str | None:
        if len(fraction.rstrip("0")) <= self.digits:
            return None
        return f"holds {self.digits} digits after the second and would drop the others"


_HELD = {
    "date": HeldTime(date=True),
    "time": HeldTime(clock=True),
    "timetz": HeldTime(clock=True, zone=True),
    "timestamp": HeldTime(date=True, clock=True),
    "timestamptz": HeldTime(date=True, clock=True, zone=True),
    "interval": HeldTime(is_interval=True),
}


def postgresql_time(base: str, modifier: int) -> HeldTime | None:
    """The range of a column of this type and type modifier; None for a type that has no times."""
    digits = modifier & 0xFFFF  # an interval has its fields in the bits above
    return _with_digits(_HELD.get(base), 6 if modifier < 0 or digits > 6 else digits)


def mysql_time(base: str, digits: int | None) -> HeldTime | None:
    """The range of a column of this type of MySQL and MariaDB; they refuse offsets, or convert them."""
    if base in ("datetime", "timestamp"):
        return _with_digits(_HELD["timestamptz"], digits or 0)
    return _with_digits(_HELD.get(base), digits or 0) if base in ("date", "time") else None


def sqlite_time(declared: str) -> HeldTime | None:
    """The range of a column that is declared with this type in SQLite, which has no types of times."""
    is_date = "DATE" in declared or "TIMESTAMP" in declared
    return HeldTime(date=is_date, is_text=True) if is_date or "TIME" in declared else None


def _with_digits(held: HeldTime | None, digits: int) -> HeldTime | None:
    if held is None or not (held.clock or held.is_interval):
        return held
    return replace(held, digits=digits)
