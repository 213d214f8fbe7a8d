"""Parses and formats durations (`90s`, `10m`, `2h`, `7d`, `500ms`, `1h30m`) and timestamps."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache

from sagas.input_limits import MAX_DURATION

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH = 100

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_PATTERN = r"(\d+(\.\d+)?(ms|s|m|h|d))+"
DURATION_PATTERN = f"^{_PATTERN}$"


def parse_duration(text: str) -> float:
    """The duration in seconds. Raises ValueError if ``text`` is not a duration, or one of more than a century."""
    if len(text) > _LENGTH or not re.fullmatch(_PATTERN, text, re.ASCII):
        raise ValueError(f"`{text[:_LENGTH]}` is not a duration such as 3s, 10m or 1h30m")
    seconds = round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)), 6)
    if seconds > MAX_DURATION:
        raise ValueError(f"`{text}` is longer than 100 years")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest exact form: 90.0 → `90s`, 600.0 → `10m`."""
    for unit in ("d", "h", "m", "s"):
        count = seconds / _UNITS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{round(seconds * 1000, 3):g}ms"


_WITHOUT_ZONE = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?)?", re.ASCII)


@lru_cache(maxsize=4096)
def format_timestamp(at: float | None) -> str | None:
    """Seconds since the epoch as RFC 3339 in UTC. Cached, because the expressions of a run share few timestamps."""
    if at is None:
        return None
    return datetime.fromtimestamp(float(at), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_timestamp(text: str | None) -> datetime | None:
    """The time that :func:`format_timestamp` has written. Raises ValueError."""
    return None if text is None else datetime.fromisoformat(text)


def utc_if_naive(time: datetime) -> datetime:
    """The time with its time zone; without one it is in UTC."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def to_seconds(value: object) -> float:
    """Seconds from a duration of the language (``90s``) or a number of seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise ValueError(f"{value!r} is not a duration")
    if isinstance(value, str):
        return parse_duration(value)
    if value < 0:
        raise ValueError(f"{value!r} is negative")
    if not value <= MAX_DURATION:
        raise ValueError("the duration is longer than 100 years")
    return float(value)


def parse_timestamp(value: object) -> float:
    """An RFC 3339 string as seconds since the epoch, read as `timestamp()` reads it. Raises ValueError.

    Without a zone it would be another time for each reader, so it is refused.
    """
    # Imported here: the command line formats times without any expression.
    from sagas.expressions.errors import ExpressionError
    from sagas.expressions.values import timestamp_from_string

    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a timestamp such as 2026-05-01T10:30:00Z; write it as a string")
    try:
        return timestamp_from_string(value).timestamp()
    except ExpressionError as error:
        if _WITHOUT_ZONE.fullmatch(value):
            raise ValueError(f"'{value}' has no time zone: append Z for UTC, or an offset such as +02:00") from None
        raise ValueError(error.message) from None
