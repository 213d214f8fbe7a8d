"""Dates and times as text: in ISO 8601 form, which each database reads as the same time. Pure.

Other forms depend on settings and databases: 1.5.2026 is the fifth of January for PostgreSQL with ``DateStyle`` MDY,
01/02/03 the third of February 2001 for MariaDB, and SQLite stores any text.
"""

from __future__ import annotations

import re
from datetime import date as calendar_day

DATE_WORDS = (
    r"jan[a-z]*|feb[a-z]*|mar[a-z]*|apr[a-z]*|may|jun[a-z]*|jul[a-z]*|aug[a-z]*|sep[a-z]*|oct[a-z]*|nov[a-z]*|dec[a-z]*"
    r"|mon[a-z]*|tue[a-z]*|wed[a-z]*|thu[a-z]*|fri[a-z]*|sat[a-z]*|sun[a-z]*|am|pm|ad|bc|t|z|j|jd|julian|y|m|d|h|mm|s"
    r"|at|on"
)
CLOCK_WORDS = "now|today|tomorrow|yesterday|epoch|allballs"
# Each character has one way to match: a repetition in the repetition would take exponential time.
_READABLE = re.compile(
    rf"\s*(?:{CLOCK_WORDS})\s*"
    rf"|(?=\D*\d)(?!\W*\d{{1,2}}\W*$)(?:[^a-z]|(?<![a-z])(?:{DATE_WORDS})(?![a-z]))+(?:(?<=\s)[a-z_/]+)?",
    re.ASCII | re.IGNORECASE,
)
"""Text in which some database may read a date or a time: the clock's words, or numbers, separators and month names."""

_LONGEST = 64

_ZONE = r"\s*(?:Z|[+-]\d{2}(?::?\d{2}(?::\d{2})?)?)?"
_CLOCK = rf"\d{{2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d*)?)?{_ZONE}"
_DAY = r"\d{4,}-\d{2}-\d{2}"
_DATE = re.compile(rf"\s*(?:{_DAY}(?:(?:T|\s+){_CLOCK})?(?:\s+BC)?|[-+]?infinity)\s*", re.ASCII | re.IGNORECASE)
_BASIC = re.compile(rf"\d{{8}}(?:T\d{{4}}(?:\d{{2}}(?:[.,]\d+)?)?{_ZONE})?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(
    rf"\s*(?:(?:{_DAY}(?:T|\s+)|T)?{_CLOCK}|-?\d{{2,3}}:\d{{2}}(?::\d{{2}}(?:\.\d*)?)?)\s*", re.ASCII | re.IGNORECASE
)


def may_be_time(value: object) -> bool:
    """Return whether a database may read text as a date or a time, although it is not a date in ISO 8601 form."""
    if not isinstance(value, str) or len(value) > _LONGEST or _READABLE.fullmatch(value) is None:
        return False
    return _DATE.fullmatch(value) is None


def _exists(day: str) -> bool:
    try:
        return bool(calendar_day.fromisoformat(day))
    except ValueError:
        return False


def iso_problem(text: str, *, date: bool, is_stored: bool) -> str | None:
    """The sentence about text that is not a time in ISO 8601 form; None for any other text.

    ``date``: a date is wanted, with or without a time of day; otherwise a time. ``is_stored``: the database stores the
    text as it is, so that the date must exist, and has hyphens.
    """
    wanted = _DATE if date else _TIME
    is_form = len(text) <= _LONGEST and (wanted.fullmatch(text) or (date and not is_stored and _BASIC.fullmatch(text)))
    if is_form and (not is_stored or not date or _exists(text.strip()[:10])):
        return None
    kind, example = ("a date", "2026-05-01 or 2026-05-01T10:00:00Z") if date else ("a time", "10:00:00")
    return f"{kind} is text in ISO 8601 form there: give it such as {example}"
