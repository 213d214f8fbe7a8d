"""After the brokers have lost the end of a batch's transaction: its events are published once all the same.

The shard's partition of the progress topic tells: nobody else writes there, and ``init_transactions`` has ended all
that was open, so what is not decided after that will never be. What readers see of those batches is marked, the rest
becomes NEW again, and only then the producer ends the transaction by an abort of its own in the same partitions. A
relay that dies in between finds all of it as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.outbox import NEW, PUBLISHED
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.publisher import Publisher

log = logging.getLogger("saga.relay")

_TOPICS = text("SELECT DISTINCT topic FROM saga_outbox WHERE event_id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
_AGAIN = text(
    f"UPDATE saga_outbox SET status = '{NEW}', published_at = NULL WHERE status = '{PUBLISHED}' AND event_id IN :ids"
).bindparams(bindparam("ids", expanding=True))

InThread = Callable[..., Awaitable[Any]]


async def mend(outbox: Outbox, shard: int, publisher: Publisher, in_thread: InThread) -> None:
    """Call it when the progress partition stays undecided. Raises SagaError, TransactionTrouble, SQLAlchemyError."""
    name = f"{outbox.name} shard {shard}"
    log.warning(
        "%s: the brokers have lost the end of a transaction (it is hanging); it is looked up what came of it", name
    )
    ids, moment = await in_thread(publisher.lost.batches)
    engine = outbox.rows.engine
    topics = await _topics_of(engine, ids)
    seen = await in_thread(publisher.lost.visible, topics, ids, moment)
    await outbox.rows.mark_published(sorted(seen))
    again = await _publish_again(engine, sorted(set(ids) - seen))
    await in_thread(publisher.lost.end, topics)
    log.warning(
        "%s: it is ended: of %d events %d can be read, and are marked; the others are published again "
        "(%d of them were marked)",
        name,
        len(ids),
        len(seen),
        again,
    )


async def _topics_of(engine: AsyncEngine, event_ids: Sequence[str]) -> list[str]:
    """The topics of these events, as far as their rows are still there."""
    async with engine.connect() as connection:
        return sorted((await connection.execute(_TOPICS, {"ids": list(event_ids)})).scalars())


async def _publish_again(engine: AsyncEngine, event_ids: Sequence[str]) -> int:
    """Events that are marked and that nobody can read become NEW again; returns how many. Safe to repeat."""
    async with engine.connect() as connection:
        return (await connection.execute(_AGAIN, {"ids": list(event_ids)})).rowcount
