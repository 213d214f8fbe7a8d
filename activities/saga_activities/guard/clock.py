"""The clock of a database, asked in its own words."""

from __future__ import annotations

_NOW = {
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}


def now_sql(dialect: str) -> str:
    """A SQL expression for the time now, seconds since the epoch, by the clock of the database."""
    return _NOW.get(dialect, "unix_timestamp(now(6))")
