"""Values of the rows of ``[[reconcile.effects]]``, also those that Python has no form for, such as ``infinity``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, isfinite, isnan
from typing import Any, cast

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from sqlalchemy.ext.asyncio import AsyncConnection

from sagas.definition.times import utc_if_naive
from sagas.errors import SagaError
from sagas.text.exact_json import decimal_problem, encode_json
from sagas.text.shortening import shorten

_MAX_SHOWN = 80
"""Characters of a value in a message."""

_LAST_YEAR_DIGITS = 4


def _text_where_python_fails(plain: type[Loader]) -> type[Loader]:
    class TimeLoader(Loader):
        """A time that Python cannot hold is the text of the database, which the database reads as the same time."""

        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self._plain = plain(oid, context)

        def load(self, data: Buffer) -> Any:
            try:
                return self._plain.load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return TimeLoader


_LOADERS = {
    name: _text_where_python_fails(cast("type[Loader]", plain))
    for name in ("date", "timestamp", "timestamptz")
    if (plain := psycopg.adapters.get_loader(psycopg.adapters.types[name].oid, Format.TEXT)) is not None
}


async def read_all_times(connection: AsyncConnection) -> None:
    """Let a connection to PostgreSQL give out times outside of the years 1 to 9999 as text."""
    if connection.dialect.name == "postgresql":
        raw = await connection.get_raw_connection()
        assert raw.driver_connection is not None
        for name, loader in _LOADERS.items():
            raw.driver_connection.adapters.register_loader(name, loader)


def row_key(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The columns that identify a row as a JSON object."""
    named = zip(columns, map(_json_value, values), strict=True)
    return encode_json(dict(named), default=str).decode()


def _json_value(value: Any) -> Any:
    """A number that JSON has no form for as text; anything else as it is."""
    match value:
        case float():
            return value if isfinite(value) else str(value)
        case Decimal():
            return value if decimal_problem(value) is None else str(value)
        case list():
            return [_json_value(item) for item in value]
    return value


def seconds_of_row(time: Any, table: str, key: str) -> float | None:
    """The time of a row in seconds since 1970: infinite for what lies outside of the years 1 to 9999.

    ``table`` and ``key`` name the row. Raises SagaError for what is not a time.
    """
    try:
        return _seconds(time)
    except (TypeError, ValueError):
        raise SagaError(
            f"[[reconcile.effects]] {table}: the time of the row {shorten(key, _MAX_SHOWN)} is "
            f"{shorten(repr(str(time)), _MAX_SHOWN)}, which is not a time",
            help="let `time` be SQL for a timestamp, a date, or the seconds since 1970",
        ) from None


def _seconds(value: Any) -> float | None:
    match value:
        case None:
            return None
        case datetime():
            return utc_if_naive(value).timestamp()
        case date():
            return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
        case str():
            return _text_seconds(value.strip())
        case bool():
            raise ValueError("a truth value")
    seconds = float(value)
    if isnan(seconds):
        raise ValueError("not a number")
    return seconds


def _text_seconds(text: str) -> float | None:
    if text in ("infinity", "-infinity"):
        return float(text)
    if text.endswith(" BC"):
        return -inf
    year = text.partition("-")[0]
    if year.isdecimal() and len(year) > _LAST_YEAR_DIGITS and "-" in text:
        return inf
    return _seconds(datetime.fromisoformat(text))


def database_time(connection: AsyncConnection, seconds: float) -> datetime:
    """A time as the database compares it with its own ones."""
    timestamp = datetime.fromtimestamp(seconds, UTC)
    return timestamp if connection.dialect.name == "postgresql" else timestamp.replace(tzinfo=None)
