"""Keeps the ledger from growing forever: partitions of whole months are dropped, other rows are deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.schema import alone
from saga_activities.guard.sqlstates import RIGHT, sqlstate_of
from saga_activities.ledger.partitions import TABLE, Month, existing_months
from saga_activities.ledger.schema import SETUP_LOCK, add_months
from saga_activities.ledger.tables import audit_table, claim_table, definition_table, run_table

_PORTION = 1000
_MIN_DEFINITION_AGE = timedelta(days=1)
"""A definition is kept so long after its last use, however short the retention is: its bulk workflow may run yet."""

_COLUMNS = run_table.c


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """Partitions created and dropped, by name, and the number of rows deleted one by one.

    ``definitions`` is the number of those that no saga needs any more. ``refused``: why the role may not create or drop
    partitions; the rows are deleted in any case.
    """

    created: tuple[str, ...]
    dropped: tuple[str, ...]
    deleted: int
    definitions: int = 0
    refused: str | None = None


async def maintain(engine: AsyncEngine, *, now: datetime, before: datetime) -> PurgeResult:
    """Create the partitions of the months to come, and delete sagas that ended before ``before``.

    A saga that has not ended, because it is parked, is kept.
    """
    created: list[str] = []
    dropped: list[str] = []
    refused = None
    async with alone(engine, SETUP_LOCK) as connection:
        if connection.dialect.name != "sqlite":
            try:
                created = await add_months(connection, now)
                # A month whose last day is before the limit; the rest is deleted row by row.
                for month in await existing_months(connection):
                    if month.next.start <= before and await _drop_if_over(connection, month, before):
                        dropped.append(month.partition(connection.dialect.name))
            except DBAPIError as error:
                if sqlstate_of(error.orig) != RIGHT:
                    raise
                refused = " ".join(str(error.orig).split())[:200]
        deleted = await _delete_rows(connection, before)
        # Of sagas whose end nobody has written: terminated in Temporal, or never started because their client died.
        await connection.execute(sa.delete(claim_table).where(claim_table.c.claimed_at < before))
        await connection.execute(sa.delete(audit_table).where(audit_table.c.at < before))
        definitions = await _delete_definitions(connection, min(before, now - _MIN_DEFINITION_AGE))
    return PurgeResult(tuple(created), tuple(dropped), deleted, definitions, refused)


async def _drop_if_over(connection: AsyncConnection, month: Month, before: datetime) -> bool:
    """Drop the partition of a month, unless a saga of it has not ended or ended later."""
    dialect = connection.dialect.name
    name = month.partition(dialect)
    partition = name if dialect == "postgresql" else f"{TABLE} PARTITION ({name})"
    kept = sa.text(f"select 1 from {partition} where ended_at is null or ended_at >= :before limit 1")
    limit = {"before": before if dialect == "postgresql" else before.replace(tzinfo=None)}
    if (await connection.execute(kept, limit)).first() is not None:
        return False
    async with _locked(connection, name):
        # Looked at again: an undo may have changed a row meanwhile.
        if (await connection.execute(kept, limit)).first() is not None:
            return False
        drop = f"drop table {name}" if dialect == "postgresql" else f"alter table {TABLE} drop partition {name}"
        await connection.exec_driver_sql(drop)
    return True


@asynccontextmanager
async def _locked(connection: AsyncConnection, partition: str) -> AsyncIterator[None]:
    """Nobody else writes to the partition inside the block; on MySQL and MariaDB, to the table."""
    if connection.dialect.name != "postgresql":
        await connection.exec_driver_sql(f"lock tables {TABLE} write")
        try:
            yield
        finally:
            await connection.exec_driver_sql("unlock tables")
        return
    await connection.exec_driver_sql("begin")
    end = "rollback"
    try:
        await connection.exec_driver_sql("set local lock_timeout = '5s'")
        await connection.exec_driver_sql(f"lock table {partition} in access exclusive mode")
        yield
        end = "commit"
    finally:
        await connection.exec_driver_sql(end)


async def _delete_rows(connection: AsyncConnection, before: datetime) -> int:
    """Delete a portion at a time, so that no statement locks many rows."""
    old = (
        sa.select(_COLUMNS.saga_id, _COLUMNS.started_at)
        .where(_COLUMNS.started_at < before, _COLUMNS.ended_at < before)
        .limit(_PORTION)
    )
    deleted = 0
    while rows := (await connection.execute(old)).all():
        keys = sa.tuple_(_COLUMNS.saga_id, _COLUMNS.started_at).in_([(row.saga_id, row.started_at) for row in rows])
        gone = await connection.execute(sa.delete(run_table).where(keys, _COLUMNS.ended_at < before))
        deleted += gone.rowcount
        if gone.rowcount == 0:
            break  # an undo has changed all of them meanwhile
    return deleted


async def _delete_definitions(connection: AsyncConnection, before: datetime) -> int:
    """Delete the definitions of bulk workflows that none has used since then, and of which no row is left.

    Claims need no look: each is younger than the last use of its definition, and was deleted if it is older than this.
    """
    definition = definition_table.c
    row = sa.select(sa.literal(1)).where(_COLUMNS.digest == definition.digest)
    unused = sa.and_(definition.used_at < before, ~row.exists())
    return (await connection.execute(sa.delete(definition_table).where(unused))).rowcount
