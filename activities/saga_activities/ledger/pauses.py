"""Standing pauses: a row holds back a connection, or all sagas of a name, until somebody deletes it by `saga resume`.

Only who may write to the ledger's database can pause or resume: nothing that a client of Temporal sends reaches it.
The times are those of the database, whatever the clocks of operators and workers say.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.database_clock import database_datetime, database_time
from saga_activities.ledger.tables import pause_table
from sagas.definition.times import format_timestamp
from sagas.protocol.standing_pause import PauseKind, StandingPause

_PAUSE = pause_table.c


async def read_pauses(engine: AsyncEngine) -> list[StandingPause]:
    """All standing pauses, the oldest first."""
    query = sa.select(_PAUSE.kind, _PAUSE.name, _PAUSE.since, _PAUSE.who, _PAUSE.reason).order_by(_PAUSE.since)
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
        now = await database_time(connection) if rows else 0.0
    return [
        StandingPause(row.kind, row.name, _timestamp(row.since), row.who, row.reason, now - row.since.timestamp())
        for row in rows
    ]


async def begin_pause(engine: AsyncEngine, kind: PauseKind, name: str, *, who: str, reason: str | None) -> bool:
    """Insert the pause; False if there is one already, which stays as it is."""
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        since = await database_datetime(connection)
        row = {"kind": kind, "name": name, "who": who, "reason": reason, "since": since}
        try:
            await connection.execute(sa.insert(pause_table).values(row))
        except IntegrityError:
            return False
    return True


async def end_pause(engine: AsyncEngine, kind: PauseKind, name: str) -> bool:
    """Delete the pause; False if there is none."""
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        deleted = await connection.execute(
            sa.delete(pause_table).where(_PAUSE.kind == kind, _PAUSE.name == name),
            execution_options={"preserve_rowcount": True},
        )
    return deleted.rowcount == 1


def _timestamp(since: datetime) -> str:
    return format_timestamp(since.timestamp()) or ""
