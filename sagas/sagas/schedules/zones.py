"""The time zones of schedules: those of the IANA database.

Temporal decides at which time a scheduled start runs where the clocks of a zone change, see
:mod:`saga_workers.schedules.matching_times`.
"""

from __future__ import annotations

import zoneinfo


def read_zone(name: str) -> zoneinfo.ZoneInfo:
    """The time zone. Raises ValueError if there is none of that name."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(name) from None


def zone_names() -> tuple[str, ...]:
    """The names of all time zones, sorted."""
    return tuple(sorted(zoneinfo.available_timezones()))
