"""Batch after batch through one producer, so that Kafka and the database work at the same time.

While the brokers take a batch, the one before is marked in the database; while a batch is committed, the next one is
read. Two orders hold it together: a batch is committed only when the marks of the one before are, because the
progress record remembers one batch; and a batch is marked only when it is committed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from workers.relay.outbox import Outbox
from workers.relay.publisher import Publisher, TopicsUnusable
from workers.relay.rows import EventRow

log = logging.getLogger("saga.relay")

PATIENCE = 10.0
"""Seconds a statement may take: an open transaction of the next batch waits for the marks of this one."""

InThread = Callable[..., Awaitable[Any]]


class Pipeline:
    """The work of one producer. ``singly``: topics whose events are sent one by one."""

    def __init__(
        self,
        outbox: Outbox,
        shard: int,
        publisher: Publisher,
        in_thread: InThread,
        singly: Collection[str],
        lost: asyncio.Event,
    ) -> None:
        self._outbox, self._shard, self._publisher = outbox, shard, publisher
        self._in_thread, self._singly, self._lost = in_thread, singly, lost

    async def run(self, batch: int) -> None:
        """Publish from batch number ``batch`` + 1 on, until the shard may not any more (or once through what is new).

        Raises PublishTrouble, SagaError, or what the database raises: then what came of the last batch is unknown.
        """
        marking: asyncio.Task[None] | None = None
        rows = await self._read(())
        try:
            while True:
                if not rows:
                    if marking is not None:
                        done, marking = marking, None
                        await done
                        rows = await self._read(())  # what could not be seen while it was in flight
                        continue
                    if self._ending or self._outbox.once or not await self._until_new():
                        return
                    rows = await self._read(())
                    continue
                rows = await self._usable(rows)
                if not rows:
                    continue
                batch += 1
                await _all(self._in_thread(self._publisher.send, rows, batch, self._singly), marking)
                marking = None
                _, ahead = await _all(self._in_thread(self._publisher.commit), self._read(rows))
                self._count(rows)
                marking = asyncio.create_task(self._mark(rows, batch))
                rows = ahead
        finally:
            if marking is not None:
                await asyncio.gather(marking, return_exceptions=True)

    @property
    def _ending(self) -> bool:
        return self._lost.is_set() or self._outbox.stop.is_set()

    async def _read(self, in_flight: Sequence[EventRow]) -> list[EventRow]:
        """The next batch: what is new and not ``in_flight``; nothing when the shard has to end."""
        if self._ending:
            return []
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            most = self._outbox.batch + len(in_flight)
            found = await self._outbox.rows.scan(self._shard, most, self._outbox.left_out.now())
        known = {row.id for row in in_flight}
        rows = [row for row in found if row.id not in known]
        if not rows and not in_flight:
            await asyncio.sleep(time.monotonic() - began)  # a long way through what is left out is not run in circles
        return rows

    async def _usable(self, rows: list[EventRow]) -> list[EventRow]:
        """Without the events of topics that cannot be used now."""
        try:
            await self._in_thread(self._publisher.check_topics, {row.topic for row in rows})
        except TopicsUnusable as unusable:
            for topic, reason in unusable.reasons.items():
                if self._outbox.left_out.add(topic, reason):
                    log.warning("%s: the topic %s is left out for now: %s", self._outbox.name, topic, reason)
            return [row for row in rows if row.topic not in unusable.reasons]
        return rows

    async def _mark(self, rows: Sequence[EventRow], batch: int) -> None:
        async with asyncio.timeout(PATIENCE):
            marked = await self._outbox.rows.mark_published([row.event_id for row in rows])
        if marked < len(rows):
            log.warning(
                "%s shard %d: %d events of batch %d were marked by somebody else; has another relay another prefix?",
                self._outbox.name,
                self._shard,
                len(rows) - marked,
                batch,
            )

    def _count(self, rows: Sequence[EventRow]) -> None:
        self._outbox.metrics.published(self._outbox.name, len(rows))
        for topic in {row.topic for row in rows}:
            if self._outbox.left_out.worked(topic):
                log.info("%s: the topic %s can be used again", self._outbox.name, topic)

    async def _until_new(self) -> bool:
        """Wait for something to publish; False: the shard has to end."""
        waits = [
            asyncio.create_task(wait)
            for wait in (self._outbox.bell.wait(self._shard), self._outbox.stop.wait(), self._lost.wait())
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self._ending


async def _all(*works: Awaitable[Any] | None) -> list[Any]:
    """The results of all works, when all have ended; the first that failed decides."""
    results = await asyncio.gather(*(work for work in works if work is not None), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
