"""Points in time and lengths of time as the machine reads and writes them. It has no clock of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from sagas.definition.durations import parse_duration


@lru_cache(maxsize=4096)
def iso(at: float | None) -> str | None:
    """Seconds since the epoch as RFC 3339 in UTC. Every expression of a run sees the same few moments."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(value: object) -> float:
    """A duration of the language (``90s``) or a number of seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a duration")
    length = parse_duration(value) if isinstance(value, str) else float(value)
    if length < 0:
        raise ValueError(f"{value!r} is less than nothing")
    return length


def instant(value: object) -> float:
    """RFC 3339 text as seconds since the epoch; without an offset it is UTC. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a point in time")
    moment = datetime.fromisoformat(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
