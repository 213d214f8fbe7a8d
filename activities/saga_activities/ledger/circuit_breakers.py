"""The circuit breakers that are open: a row of the ledger for each, which all workers read.

Its times are those of the ledger's database, so clocks of workers may differ. Only one that has opened while that does
not answer keeps the time of its worker.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.database_clock import database_datetime
from saga_activities.guard.tables import now_sql
from saga_activities.ledger.tables import circuit_breaker_table
from sagas.definition.times import format_timestamp
from sagas.protocol.standing_pause import CIRCUIT_BREAKER, StandingPause

_ROW = circuit_breaker_table.c


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """The open circuit breaker of a connection.

    ``due_in``: seconds until an attempt may be made. ``probing``: an attempt is being made, which has that time; the
    circuit breaker is half-open. ``age``: seconds since it has opened, when it was read.
    """

    connection: str
    opened_at: datetime
    reason: str
    due_in: float
    probing: bool = False
    age: float = 0.0

    @property
    def pause(self) -> StandingPause:
        """The pause for whose end a step waits that is held back."""
        since = format_timestamp(self.opened_at.timestamp()) or ""
        return StandingPause("circuit_breaker", self.connection, since, CIRCUIT_BREAKER, self.reason)


async def read_breakers(engine: AsyncEngine) -> list[OpenBreaker]:
    """The circuit breakers that are open, the oldest first."""
    now = _now(engine).label("now")
    query = sa.select(_ROW.connection, _ROW.opened_at, _ROW.reason, _ROW.probe_at, _ROW.probing, now)
    async with engine.connect() as connection:
        rows = (await connection.execute(query.order_by(_ROW.opened_at))).all()
    return [
        OpenBreaker(
            row.connection,
            row.opened_at,
            row.reason,
            due_in=float(row.probe_at) - float(row.now),
            probing=row.probing == 1,
            age=float(row.now) - row.opened_at.timestamp(),
        )
        for row in rows
    ]


async def current_time(engine: AsyncEngine) -> datetime:
    """The time for :attr:`OpenBreaker.opened_at`."""
    async with engine.connect() as connection:
        return await database_datetime(connection)


async def insert_breaker(engine: AsyncEngine, breaker: OpenBreaker) -> None:
    """Open it for all workers; nothing if it is open already."""
    row = {
        "connection": breaker.connection,
        "opened_at": breaker.opened_at,
        "reason": breaker.reason,
        "probe_at": _now(engine) + breaker.due_in,
        "probing": 0,
    }
    async with _autocommit(engine).connect() as connection:
        with contextlib.suppress(IntegrityError):
            await connection.execute(sa.insert(circuit_breaker_table).values(row))


async def claim_probe(engine: AsyncEngine, name: str, seconds: float) -> bool:
    """Return whether this worker may make the next attempt, for which it has these seconds."""
    now = _now(engine)
    return await _update(engine, sa.and_(_ROW.connection == name, _ROW.probe_at <= now), now + seconds, probing=1)


async def end_probe(engine: AsyncEngine, breaker: OpenBreaker, due_in: float) -> None:
    """The attempt has not succeeded: the next one may be made after these seconds."""
    await _update(engine, _same(breaker), _now(engine) + due_in, probing=0)


async def close_breaker(engine: AsyncEngine, breaker: OpenBreaker) -> bool:
    """Close it; False if it is closed already."""
    return await _delete(engine, _same(breaker))


async def close_breaker_of(engine: AsyncEngine, connection: str) -> bool:
    """Close the circuit breaker of a connection, whenever it has opened; False if it is closed."""
    return await _delete(engine, _ROW.connection == connection)


def _same(breaker: OpenBreaker) -> sa.ColumnElement[bool]:
    """The row of this opening of the circuit breaker, which may have closed and opened again."""
    return sa.and_(_ROW.connection == breaker.connection, _ROW.opened_at == breaker.opened_at)


async def _update(engine: AsyncEngine, row: sa.ColumnElement[bool], probe_at: object, *, probing: int) -> bool:
    values = {"probe_at": probe_at, "probing": probing}
    async with _autocommit(engine).connect() as connection:
        updated = await connection.execute(
            sa.update(circuit_breaker_table).where(row).values(values), execution_options={"preserve_rowcount": True}
        )
    return updated.rowcount == 1


async def _delete(engine: AsyncEngine, row: sa.ColumnElement[bool]) -> bool:
    async with _autocommit(engine).connect() as connection:
        deleted = await connection.execute(
            sa.delete(circuit_breaker_table).where(row), execution_options={"preserve_rowcount": True}
        )
    return deleted.rowcount == 1


def _now(engine: AsyncEngine) -> sa.ColumnElement[float]:
    return sa.literal_column(now_sql(engine.dialect.name), sa.Double)


def _autocommit(engine: AsyncEngine) -> AsyncEngine:
    return engine.execution_options(isolation_level="AUTOCOMMIT")
