"""What the shop forgets when it opens anew: all sagas of an earlier demo, as the guard's clean-up would after a month.

Their goods, accounts and published days are gone, so nothing of them can be undone, and a reconciliation would find
every one of their effects missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard import watermark
from saga_activities.guard.tables import guard
from saga_activities.guard.tables_messaging import outbox
from saga_activities.outbox import PUBLISHED
from saga_spark import ledger
from saga_spark.ledger import OutputRow


async def forget_earlier(
    engine: AsyncEngine, stage: str, last_writes: float, drained: Callable[[], Awaitable[None]]
) -> None:
    """Refuse whatever still arrives of them, wait ``last_writes`` seconds for what has arrived already and until their
    events have ``drained``, and delete what guard, ledger and stage area (a URI) have of them, and their events that
    were never published."""
    mark = await watermark.raise_to(engine.execution_options(isolation_level="AUTOCOMMIT"), time.time())
    await asyncio.sleep(last_writes)
    await drained()
    outputs = ledger.outputs
    async with engine.begin() as connection:
        rows = []
        if await connection.run_sync(lambda sync: sa.inspect(sync).has_table(outputs.name)):
            rows = [OutputRow.read(row) for row in (await connection.execute(sa.select(outputs))).mappings()]
            await connection.execute(sa.delete(outputs))
        await connection.execute(sa.delete(guard).where(guard.c.created_at < mark))
        # What was published is still in its topic, where a reconciliation sees whose event it is.
        old = (outbox.c.created_at < mark, outbox.c.status != PUBLISHED)
        await connection.execute(sa.delete(outbox).where(*old))
    if rows:
        await asyncio.to_thread(_clear_stage, rows, stage)


def _clear_stage(rows: Sequence[OutputRow], stage: str) -> None:
    from saga_spark.stage_area import StageArea  # needs a package that a shop without Spark steps may lack

    for row in rows:
        StageArea(stage).remove_generation(row.target)
