"""Reads cron expressions as Temporal's schedules do.

Five fields (minute, hour, day of the month, month, day of the week), six (a year at the end), or seven (seconds at the
beginning, a year at the end). Unlike most cron programs, Temporal runs only on days that match both fields of days.
"""

from __future__ import annotations

import calendar
import itertools
import re
from dataclasses import dataclass
from typing import NoReturn

from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

MAX_CRON_LENGTH = 256
"""Characters. A field with every value of its range is shorter."""

FIRST_YEAR, LAST_YEAR = 2000, 2100
"""The years that Temporal accepts in a schedule."""

SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM = re.compile(r"(?:(\*)|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?")


class CronError(ValueError):
    """The text is not a cron expression, or one that never matches. ``help`` says what to write."""

    def __init__(self, message: str, help: str) -> None:
        super().__init__(message)
        self.help = help


@dataclass(frozen=True, slots=True)
class _FieldRange:
    name: str
    first: int
    last: int
    words: tuple[str, ...] = ()

    def number(self, text: str) -> int:
        """The value of a number or a name. Raises CronError."""
        if text in self.words:
            return self.words.index(text) + (self.first if len(self.words) == self.last else 0)
        if not text.isdigit() or not self.first <= int(text) <= self.last:
            names = f" or {self.words[0]} to {self.words[-1]}" if self.words else ""
            raise CronError(
                f"`{text}` is not a valid {self.name}",
                f"the {self.name} is a number from {self.first} to {self.last}{names}",
            )
        return int(text)


_SECOND = _FieldRange("second", 0, 59)
_MINUTE = _FieldRange("minute", 0, 59)
_HOUR = _FieldRange("hour", 0, 23)
_DAY = _FieldRange("day of the month", 1, 31)
_MONTH = _FieldRange("month", 1, 12, _MONTHS)
_WEEKDAY = _FieldRange("day of the week", 0, 7, _WEEKDAYS)
_YEAR = _FieldRange("year", FIRST_YEAR, LAST_YEAR)

_OF_FIVE = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)
_FIELDS = {5: _OF_FIVE, 6: (*_OF_FIVE, _YEAR), 7: (_SECOND, *_OF_FIVE, _YEAR)}


@dataclass(frozen=True, slots=True)
class Cron:
    """The values at which each field matches, ascending. ``weekdays``: 0 is Sunday. ``years``: None for every year."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    years: tuple[int, ...] | None = None

    @property
    def restricts_both_days(self) -> bool:
        """True if a day must match the day of the month and the day of the week, which other programs read as `or`."""
        return len(self.days) < 31 and len(self.weekdays) < 7


def parse_cron(text: str) -> Cron:
    """Read a cron expression. Raises CronError."""
    if len(text) > MAX_CRON_LENGTH:
        raise CronError(
            f"the cron expression has {len(text)} characters; the maximum is {MAX_CRON_LENGTH}",
            "write ranges and steps, such as `*/5` or `1-5`",
        )
    written = text.strip().lower()
    if written.startswith("@"):
        if written not in SHORTHANDS:
            _refuse_shorthand(written)
        written = SHORTHANDS[written]
    if written.startswith(("cron_tz=", "tz=")):
        raise CronError(f"{_shown(text)} names a time zone", "write it as `timezone`, for example Europe/Berlin")
    parts = written.split()
    ranges = _FIELDS.get(len(parts))
    if ranges is None:
        raise CronError(
            f"{_shown(text)} has {len(parts)} fields, not 5, 6 or 7",
            "write minute, hour, day of the month, month and day of the week, for example `30 3 * * *`",
        )
    values = {field.name: _values(part, field) for part, field in zip(parts, ranges, strict=True)}
    years = values.get(_YEAR.name)
    cron = Cron(
        seconds=values.get(_SECOND.name, (0,)),
        minutes=values[_MINUTE.name],
        hours=values[_HOUR.name],
        days=values[_DAY.name],
        months=values[_MONTH.name],
        weekdays=tuple(sorted({weekday % 7 for weekday in values[_WEEKDAY.name]})),
        years=None if years is None or len(years) > LAST_YEAR - FIRST_YEAR else years,
    )
    if not _has_a_day(cron):
        raise CronError(f"{_shown(text)} never matches: there is no such day", "correct the day, the month or the year")
    return cron


def _has_a_day(cron: Cron) -> bool:
    years = range(FIRST_YEAR, LAST_YEAR + 1) if cron.years is None else cron.years
    for year, month in itertools.product(years, cron.months):
        length = calendar.monthrange(year, month)[1]
        for day in cron.days:
            if day <= length and (calendar.weekday(year, month, day) + 1) % 7 in cron.weekdays:
                return True
    return False


def _refuse_shorthand(written: str) -> NoReturn:
    if written.startswith("@every"):
        raise CronError(f"{_shown(written)} is not a cron expression", "write a step, such as `*/5 * * * *`")
    raise CronError(f"{_shown(written)} is not known", f"the shorthands are {', '.join(SHORTHANDS)}")


def _values(part: str, field: _FieldRange) -> tuple[int, ...]:
    """The values of one field: items of a number, a range, `*`, each with a step, separated by commas."""
    chosen: set[int] = set()
    for item in part.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            help = "write numbers, ranges such as 1-5, lists such as 1,3 and steps such as */15"
            if item == "?" or re.search("[l#wh]", item):
                help = f"{help}; `?`, `L`, `W`, `#` and `H` of other programs are not known"
            raise CronError(f"{_shown(item)} is not a valid {field.name}", help)
        star, low, high, step = match.groups()
        last = 6 if field is _WEEKDAY and (star or high is None) else field.last
        first = field.first if star else field.number(low)
        if not star and (high is not None or step is None):
            last = field.number(high or low)
        if last < first:
            raise CronError(f"`{item}` ends before it begins", f"write {low} to {field.last} and the rest as two items")
        width = 1 if step is None else int(step)
        if width < 1:
            raise CronError(f"`{item}` has a step of zero", "write a step of at least 1")
        chosen.update(range(first, last + 1, width))
    return tuple(sorted(chosen))


def _shown(text: str) -> str:
    return f"`{printable_line(shorten(text))}`"
