"""The moments at which the clocks of a time zone change, within a range."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

_DAY = timedelta(days=1)
_PRECISION = timedelta(seconds=1)


def clock_changes(zone: ZoneInfo, first: datetime, last: datetime) -> Iterator[datetime]:
    """The changes after ``first`` and up to ``last``, in UTC, ascending; of two within a day it may find none."""
    before = first.astimezone(UTC)
    while before < last:
        after = min(before + _DAY, last.astimezone(UTC))
        if _offset(zone, before) != _offset(zone, after):
            yield _change(zone, before, after)
        before = after


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    old = _offset(zone, before)
    while after - before > _PRECISION:
        middle = before + (after - before) / 2
        if _offset(zone, middle) == old:
            before = middle
        else:
            after = middle
    return after.replace(microsecond=0)


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()
