"""Integers as parameters of PostgreSQL: their type does not depend on their size, as it does for psycopg."""

from __future__ import annotations

from typing import Any

from psycopg.adapt import Dumper, PyFormat
from psycopg.types.numeric import Int4, Int8, Int8Dumper, IntDumper, IntNumeric, IntNumericDumper
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

_INTEGER, _BIGINT = 1 << 31, 1 << 63


class _BigintDumper(IntDumper):
    """Sends an integer as ``bigint``, or as ``numeric`` if it is larger.

    As ``smallint``, which psycopg chooses for a small one, 3 * 20000 would be out of range.
    """

    _bigint, _numeric = Int8Dumper(Int8), IntNumericDumper(IntNumeric)

    def upgrade(self, obj: int, format: PyFormat) -> Dumper:
        return self._bigint if -_BIGINT <= obj < _BIGINT else self._numeric


def send_integers_as_bigint(engine: AsyncEngine) -> None:
    """Let all connections of an engine for PostgreSQL send integers in one type."""
    event.listen(engine.sync_engine, "connect", _register)


def _register(connection: Any, _: Any) -> None:
    connection.driver_connection.adapters.register_dumper(int, _BigintDumper)


def as_written(value: Any) -> Any:
    """An integer, or a list of them, with the type that its digits have in SQL: ``integer`` if it fits."""
    if isinstance(value, list):
        items = [as_written(item) for item in value]
        return items if all(item is None or isinstance(item, Int4) for item in items) else value
    if type(value) is int and -_INTEGER <= value < _INTEGER:
        return Int4(value)
    return value
