"""The outbox with many published events: an emitting step, the relay's look at what waits, and the purge."""

from __future__ import annotations

import time
import uuid

from benchmarks.growth.database import Costs, GrowthDatabase
from saga_workers.relay.outbox_table import OutboxTable, read_lag, topics_used

SIZES, QUICK = (30_000, 10_000_000), (3_000, 6_000)
"""Published events."""

PURGED = 5000
DAY = 24 * 3600.0

_FILL = """
insert into saga_outbox_row (event_id, topic, event_key, value, headers, saga_id, step, generation, status, created_at,
    event_type, shard)
select gen_random_uuid()::text, 'orders', n::text, '{{"amount": 7}}', '{{}}', md5(n::text), 'step', 1, 'NEW',
    extract(epoch from now()) - {oldest} + {length}::float * n / {rows}, 'created', n % h.shards
from saga_outbox_home h, generate_series(0, {rows} - 1) n
"""
_PUBLISHED = """
insert into saga_relay_progress (shard, reader, done, reading, last_id, highest_id, cluster)
select s, 'bench', pg_current_snapshot(), pg_current_snapshot(), 0, 0, '' from saga_outbox_home h,
    generate_series(0, h.shards - 1) s
"""
_OLD_PUBLISHED = """
insert into saga_relay_passed (shard, at, done)
select s, extract(epoch from now()) - 9 * 86400, pg_current_snapshot() from saga_outbox_home h,
    generate_series(0, h.shards - 1) s
"""
_EVENT = """
insert into saga_outbox
    (event_id, topic, event_key, value, headers, saga_id, step, generation, status, created_at, shard)
values (%s, 'orders', 'k', '{}', '{}', 's', 'step', 1, 'NEW', extract(epoch from now()), 0)
"""


async def measure(database: GrowthDatabase, rows: int) -> Costs:
    """Events of a few days, all of them published, and older ones, which the purge deletes."""
    old = min(PURGED, rows // 10)
    await database.execute(
        "truncate saga_outbox_row, saga_relay_progress, saga_relay_passed",
        _FILL.format(rows=old, oldest=10 * DAY, length=DAY / 2),
        _OLD_PUBLISHED,
        _FILL.format(rows=rows, oldest=6 * DAY, length=6 * DAY),
        _PUBLISHED,
        "vacuum analyze saga_outbox_row",
    )
    engine = database.engine

    async def emit() -> None:
        async with engine.connect() as connection:
            await connection.exec_driver_sql(_EVENT, (str(uuid.uuid4()),))

    async def purge() -> None:
        async with engine.connect() as connection:
            shards = (await connection.exec_driver_sql("select shards from saga_outbox_home")).scalar_one()
        gone = await OutboxTable(engine).purge(range(shards), time.time(), 7 * DAY)
        assert gone == old, gone

    return {
        "an event": await database.each(emit, 100),
        "what waits": await database.each(lambda: read_lag(engine), 10),
        "the topics": await database.each(lambda: topics_used(engine), 10),
        "the purge, for each event": await database.each(purge, pieces=old),
    }
