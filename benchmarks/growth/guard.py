"""Guarded steps and the purge among many guard rows."""

from __future__ import annotations

import time
import uuid
from typing import Any

from benchmarks.growth.database import CONNECTION, Costs, GrowthDatabase
from saga_activities.guard import watermark
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession

SIZES, QUICK = (30_000, 10_000_000), (3_000, 6_000)
"""Rows of the guard."""

PURGED = 5000
DAY = 24 * 3600.0

_FILL = """
insert into saga_guard (saga_id, step, generation, op, reason, args_hash, result, created_at)
select md5((n / 3)::text) || '-{mark}', 'step' || n % 3, 1, 'do', 'done', md5(n::text), '{{"amount": 7}}',
    extract(epoch from now()) - {youngest} + {length}::float * n / {rows}
from generate_series(0, {rows} - 1) n
"""


async def measure(database: GrowthDatabase, rows: int) -> Costs:
    """Rows of twenty days, which are kept, and those of a few sagas that are two days too old."""
    await database.execute(
        "truncate saga_guard",
        _FILL.format(mark="kept", rows=rows, youngest=20 * DAY, length=19 * DAY),
        _FILL.format(mark="old", rows=3 * min(PURGED, rows // 10), youngest=32 * DAY, length=DAY),
        "vacuum analyze saga_guard",
    )

    async def purge() -> None:
        sagas = await watermark.clean_up(database.engine, oldest_open=None, now=time.time(), longest_transaction=0.0)
        assert sagas == min(PURGED, rows // 10), sagas

    return {
        "a guarded step": await database.each(lambda: _step(database), 200),
        "the purge, for each saga": await database.each(purge, pieces=min(PURGED, rows // 10)),
        "a purge that finds nothing": await database.each(
            lambda: watermark.clean_up(database.engine, oldest_open=None, now=time.time(), longest_transaction=0.0)
        ),
    }


async def _step(database: GrowthDatabase) -> None:
    async def effect(sql: SqlSession) -> Any:
        return await sql.execute("update account set balance = balance - 1 where id = 'a1'")

    now = time.time()
    outcome = await database.connections.guard(CONNECTION).do(
        EntryKey(uuid.uuid4().hex, "step"), "0", effect, scheduled_at=now, deadline=now + 60
    )
    assert outcome.failure is None, outcome
