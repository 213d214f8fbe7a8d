"""Deletes the states of sagas from the ledger: their stories stay, which have sensitive values masked."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.rows import document_text, documents_of_machines
from saga_activities.ledger.tables import run_table

_RUN = run_table.c


async def delete_states(engine: AsyncEngine, saga_ids: Sequence[str]) -> int:
    """Delete the states in the rows of these sagas, of all their generations; the number of rows that had one.

    The row of a saga of a bulk workflow is its state alone: it gets its story first.
    """
    changed = 0
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        with_state = sa.and_(_RUN.saga_id.in_(saga_ids), _RUN.machine.is_not(None))
        rows = (await connection.execute(sa.select(_RUN.saga_id, _RUN.started_at, _RUN.story).where(with_state))).all()
        stories = await documents_of_machines(
            connection, {(row.saga_id, row.started_at) for row in rows if not row.story}, must_read=True
        )
        for row in rows:
            key = (row.saga_id, row.started_at)
            values = {"machine": None} | ({"story": document_text(stories[key])} if key in stories else {})
            here = sa.and_(_RUN.saga_id == row.saga_id, _RUN.started_at == row.started_at)
            await connection.execute(sa.update(run_table).where(here).values(values))
            changed += 1
    return changed
