"""Publishes batch after batch through one producer, with Kafka and the database working at the same time.

While Kafka takes a batch, the previous one is marked in the database and the next one is read. Two rules keep this
correct: a batch begins only when the last but one is marked, because the progress record names two batches; and a batch
is marked only after its commit. No Kafka transaction is open while the relay waits for marks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from saga_workers.relay.event_reader import EventReader
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.outbox_table import EventRow
from saga_workers.relay.publisher import EncodedEvent, Publisher, TopicsUnusable, encode_event
from saga_workers.runtime.logs import fields

log = logging.getLogger("saga.relay")

STATEMENT_TIMEOUT = 10.0
"""Seconds a statement may take."""

FIRST_BATCH = 500
"""Events of the first batch, and of one of large events."""

BATCH_CHARACTERS = 8_000_000
"""A batch has more than ``FIRST_BATCH`` events only as long as all of them, each as large as the largest of the batch
before, are shorter: the relay has three batches of each shard in memory.
"""

InThread = Callable[..., Awaitable[Any]]


class Pipeline:
    """The batches of one producer. ``individual_topics``: topics whose events are sent one by one."""

    def __init__(
        self,
        outbox: Outbox,
        shard: int,
        publisher: Publisher,
        in_thread: InThread,
        individual_topics: Collection[str],
        lease_lost: asyncio.Event,
    ) -> None:
        self._outbox, self._shard, self._publisher = outbox, shard, publisher
        self._in_thread, self._individual_topics, self._lease_lost = in_thread, individual_topics, lease_lost
        self._limit = min(outbox.batch_size, FIRST_BATCH)
        self._reader = EventReader(outbox.table, shard)

    async def run(self, batch: int) -> None:
        """Publish from batch number ``batch`` + 1 on, until the shard has to stop or, with ``once``, nothing is new.

        Raises KafkaTransactionError, SagaError, or a database error; the outcome of the last batch is then unknown.
        """
        marking: asyncio.Task[None] | None = None
        before: list[EncodedEvent] = []  # the previous batch, which is being marked
        events = await self._read_batch(())
        try:
            while True:
                if not events:
                    if marking is not None:
                        done, marking = marking, None
                        await done
                        before = []
                        events = await self._read_batch(())  # may find events that were left out while in flight
                        continue
                    if self._stopping or self._outbox.once or not await self._wait_for_events():
                        return
                    events = await self._read_batch(())
                    continue
                events = await self._without_unusable_topics(events)
                if not events:
                    continue
                batch += 1
                publishing = self._in_thread(self._publisher.publish, events, batch, before, self._individual_topics)
                _, ahead = await _gather_all(publishing, self._read_batch([*before, *events]))
                self._count_published(events)
                if marking is not None:
                    await marking
                marking = asyncio.create_task(self._mark_batch(events, batch))
                before, events = events, ahead
        finally:
            if marking is not None:
                await asyncio.gather(marking, return_exceptions=True)

    @property
    def _stopping(self) -> bool:
        return self._lease_lost.is_set() or self._outbox.stop.is_set()

    async def _read_batch(self, in_flight: Sequence[EncodedEvent]) -> list[EncodedEvent]:
        """The next batch of new events without ``in_flight``; empty if there is none, or the shard has to stop."""
        while not self._stopping:
            began = time.monotonic()
            excluded = self._outbox.suspended_topics.suspended()
            async with asyncio.timeout(STATEMENT_TIMEOUT):
                rows = await self._reader.read(self._limit, excluded, [row.id for row, _ in in_flight])
            self._limit = next_limit(rows, self._outbox.batch_size)
            if events := await self._encode_batch(rows):
                return events
            if not rows:
                if not in_flight:
                    await asyncio.sleep(time.monotonic() - began)  # no busy loop over a long scan of excluded events
                break
        return []

    async def _encode_batch(self, rows: Sequence[EventRow]) -> list[EncodedEvent]:
        """Encode rows as records. A row that cannot be encoded (no step wrote it) is refused."""
        ready: list[EncodedEvent] = []
        source = self._outbox.source
        for row in rows:
            try:
                ready.append((row, encode_event(row, source)))
            except (ValueError, TypeError, AttributeError) as error:
                why = f"it cannot be encoded as a record: {error}"
                await self._outbox.table.refuse(row.event_id, why)
                self._outbox.metrics.refused(self._outbox.name)
                about = fields(outbox=self._outbox.name, shard=self._shard, event=row.event_id, topic=row.topic)
                log.warning("event is REFUSED: %s", why, extra=about)
        return ready

    async def _without_unusable_topics(self, events: list[EncodedEvent]) -> list[EncodedEvent]:
        """Leave out the events of topics that cannot be used now, and suspend those topics."""
        new = self._publisher.unchecked_topics({row.topic for row, _ in events})
        if not new:
            return events
        try:
            await self._in_thread(self._publisher.check_topics, new, events)
        except TopicsUnusable as unusable:
            self._reader.restart()
            for topic, reason in unusable.reasons.items():
                if self._outbox.suspended_topics.suspend(topic, reason):
                    log.warning("topic suspended: %s", reason, extra=fields(outbox=self._outbox.name, topic=topic))
            return [one for one in events if one[0].topic not in unusable.reasons]
        return events

    async def _mark_batch(self, events: Sequence[EncodedEvent], batch: int) -> None:
        async with asyncio.timeout(STATEMENT_TIMEOUT):
            marked = await self._outbox.table.mark_rows_published(self._shard, [row.id for row, _ in events])
        if marked < len(events):
            log.warning(
                "%d events were marked by another process; check that all relays of the outbox have the same prefix",
                len(events) - marked,
                extra=fields(outbox=self._outbox.name, shard=self._shard, batch=batch),
            )

    def _count_published(self, events: Sequence[EncodedEvent]) -> None:
        self._outbox.metrics.published(self._outbox.name, len(events))
        for topic in {row.topic for row, _ in events}:
            if self._outbox.suspended_topics.resume(topic):
                log.info("topic resumed", extra=fields(outbox=self._outbox.name, topic=topic))

    async def _wait_for_events(self) -> bool:
        """Wait for something to publish; False: the shard has to stop."""
        waits = [
            asyncio.create_task(wait)
            for wait in (self._outbox.wakeup.wait(self._shard), self._outbox.stop.wait(), self._lease_lost.wait())
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self._stopping


def next_limit(rows: Sequence[EventRow], most: int) -> int:
    """The number of events to read after these: at most ``most``, and fewer when they are large."""
    largest = max((len(row.value or "") for row in rows), default=BATCH_CHARACTERS)
    return min(most, max(FIRST_BATCH, BATCH_CHARACTERS // max(1, largest)))


async def _gather_all(*works: Awaitable[Any]) -> list[Any]:
    """Wait until all have ended, then return the results or raise the first exception."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
