"""Publishes batch after batch through one producer, with Kafka and the database working at the same time.

While Kafka takes a batch, the previous one is recorded in the database and the next one is read. Two rules keep this
correct: a batch begins only when the last but one is recorded, because the progress record names two batches; and a
batch is recorded only after its commit. No Kafka transaction is open while the relay waits for the database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from saga_activities.concurrency import wait_first
from saga_activities.guard.unreadable_rows import ChangedRow
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.outbox_table import EventRow
from saga_workers.relay.publisher import EncodedEvent, Publisher, TopicsUnusable, encode_event
from saga_workers.relay.readers.event_reader import EventReader, Portion
from saga_workers.runtime.logs import fields

log = logging.getLogger("saga.relay")

FIRST_BATCH = 500
"""Events of the first batch, and of one of large events."""

BATCH_CHARACTERS = 8_000_000
"""A batch has more than ``FIRST_BATCH`` events only as long as all of them, each as large as the largest of the batch
before, are shorter: the relay has three batches of each shard in memory.
"""

InThread = Callable[..., Awaitable[Any]]


class _EncodedPortion(NamedTuple):
    events: list[EncodedEvent]
    portion: Portion


_NOTHING = _EncodedPortion([], Portion(()))


class Pipeline:
    """The batches of one producer. ``individual_topics``: topics whose events are sent one by one."""

    def __init__(
        self,
        outbox: Outbox,
        shard: int,
        publisher: Publisher,
        reader: EventReader,
        in_thread: InThread,
        individual_topics: Collection[str],
        lease_lost: asyncio.Event,
    ) -> None:
        self._outbox, self._shard, self._publisher = outbox, shard, publisher
        self._in_thread, self._individual_topics, self._lease_lost = in_thread, individual_topics, lease_lost
        self._limit = min(outbox.batch_size, FIRST_BATCH)
        self._reader = reader

    async def run(self, batch: int) -> None:
        """Publish from batch number ``batch`` + 1 on, until the shard has to stop or, with ``once``, nothing is new.

        Raises KafkaTransactionError, SagaError, or a database error; the outcome of the last batch is then unknown.
        """
        recording: asyncio.Task[None] | None = None
        before: list[EncodedEvent] = []  # the previous batch, which is being recorded
        events, portion = await self._read_batch()
        try:
            while True:
                if not events:
                    if recording is not None:
                        done, recording = recording, None
                        await done
                        before = []
                        events, portion = await self._read_batch()  # may find what was left out while in flight
                        continue
                    if self._stopping or self._outbox.once or not await self._wait_for_events():
                        return
                    events, portion = await self._read_batch()
                    continue
                events = await self._without_unusable_topics(events)
                if not events:
                    continue
                batch += 1
                publishing = self._in_thread(self._publisher.publish, events, batch, before, self._individual_topics)
                _, ahead = await _gather_all(publishing, self._read_batch())
                self._count_published(events)
                if recording is not None:
                    await recording
                recording = asyncio.create_task(self._record_batch(_EncodedPortion(events, portion), batch))
                before, (events, portion) = events, ahead
        finally:
            if recording is not None:
                await asyncio.gather(recording, return_exceptions=True)

    @property
    def _stopping(self) -> bool:
        return self._lease_lost.is_set() or self._outbox.stop.is_set()

    async def _read_batch(self) -> _EncodedPortion:
        """The next batch of new events; empty if there is none, or the shard has to stop."""
        while not self._stopping:
            began = time.monotonic()
            excluded = self._outbox.suspended_topics.suspended()
            if topics := {*self._reader.set_aside_topics} - excluded:
                await self._retry_topics(topics)
                continue
            portion = await self._reader.read(self._limit, excluded)
            self._limit = next_limit(portion.rows, self._outbox.batch_size)
            if events := await self._encode_batch(portion.rows):
                return _EncodedPortion(events, portion)
            if not portion.rows:
                if excluded:
                    await asyncio.sleep(time.monotonic() - began)  # no busy loop over a long scan of excluded events
                break
        return _NOTHING

    async def _encode_batch(self, rows: Sequence[EventRow]) -> list[EncodedEvent]:
        """Encode rows as records. A row that cannot be encoded (no step wrote it) is refused.

        Raises :class:`saga_workers.relay.outbox_table.MissingKey` without the key of a row.
        """
        ready: list[EncodedEvent] = []
        source = self._outbox.source
        for row in rows:
            try:
                ready.append((row, encode_event(self._outbox.table.decrypted(row), source)))
            except (ChangedRow, ValueError, TypeError, AttributeError, RecursionError) as error:
                why = f"it cannot be encoded as a record: {error}"
                await self._reader.refuse(row.event_id, why)
                self._outbox.metrics.refused(self._outbox.name)
                about = fields(outbox=self._outbox.name, shard=self._shard, event=row.event_id, topic=row.topic)
                log.warning("event is REFUSED: %s", why, extra=about)
        return ready

    async def _without_unusable_topics(self, events: list[EncodedEvent]) -> list[EncodedEvent]:
        """Leave out the events of topics that cannot be used now, and suspend those topics."""
        try:
            await self._in_thread(self._publisher.check_topics, events)
        except TopicsUnusable as unusable:
            self._suspend(unusable.reasons)
            await self._reader.set_aside([row for row, _ in events if row.topic in unusable.reasons])
            return [event for event in events if event[0].topic not in unusable.reasons]
        return events

    async def _retry_topics(self, topics: Collection[str]) -> None:
        """Read topics again whose events were set aside, except those that still cannot be used."""
        unusable = await self._in_thread(self._publisher.unusable_topics, topics)
        self._suspend(unusable)
        self._reader.retry(topics - unusable.keys())

    def _suspend(self, reasons: Mapping[str, str]) -> None:
        for topic, reason in reasons.items():
            if self._outbox.suspended_topics.suspend(topic, reason):
                log.warning("topic suspended: %s", reason, extra=fields(outbox=self._outbox.name, topic=topic))

    async def _record_batch(self, done: _EncodedPortion, batch: int) -> None:
        recorded = await self._reader.record(done.portion, [row for row, _ in done.events])
        if recorded < len(done.events):
            log.warning(
                "%d events were marked by another process; check that all relays of the outbox have the same prefix",
                len(done.events) - recorded,
                extra=fields(outbox=self._outbox.name, shard=self._shard, batch=batch),
            )

    def _count_published(self, events: Sequence[EncodedEvent]) -> None:
        self._outbox.metrics.published(self._outbox.name, len(events))
        for topic in {row.topic for row, _ in events}:
            if self._outbox.suspended_topics.resume(topic):
                log.info("topic resumed", extra=fields(outbox=self._outbox.name, topic=topic))

    async def _wait_for_events(self) -> bool:
        """Wait for something to publish; False: the shard has to stop."""
        await wait_first(
            self._outbox.wakeup.wait(self._shard, self._reader.waiting_query()),
            self._outbox.stop.wait(),
            self._lease_lost.wait(),
            timeout=self._outbox.suspended_topics.next_retry(self._reader.set_aside_topics),
        )
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
