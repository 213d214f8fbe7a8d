"""Reads one topic for one consumer group: handles messages concurrently, but in order per key, and commits offsets.

The blocking Kafka client has a thread of its own; everything else runs on the event loop. Polling goes on while
handlers are busy (with the partitions paused), so the group does not evict the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.errors import classify_kafka_error
from saga_workers.runtime.logs import fields
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.group_config import BrokerHealth, HighWatermarks, is_cooperative, member_properties
from saga_workers.trigger.retry import ProcessStopping
from saga_workers.trigger.start_positions import (
    IDENTITY_INTERVAL,
    OWN_RESET,
    assign_from_commits,
    commit_position,
    is_within,
    move_assignment,
    warn_created_again,
)
from saga_workers.trigger.trigger_metrics import PartitionLag
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.trigger")

RecordHandler = Callable[[ConsumedRecord], Awaitable[None]]
"""Handles a record completely, dead letter included. Raises ProcessStopping if it did not."""

POLL_TIMEOUT = 0.2
COMMIT_INTERVAL = 0.5
HANDOVER_TIMEOUT = 10.0
"""Seconds that messages in flight have to end when their partition is reassigned."""
PREFETCH_FACTOR = 16
"""Messages held in memory for each one that is being processed."""
LOG_AGAIN_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class _WorkItem:
    record: ConsumedRecord
    tracker: OffsetTracker


class TopicReader:
    """Reads ``topic`` as ``group``, and processes up to ``concurrency`` messages at once.

    ``ordered``: those with equal keys in order. ``max_pending``: the most messages in memory. ``fill_time``: seconds
    that a first message waits for further ones, at the broker and then here: reading each one alone takes much CPU.
    ``read_topic_id``: the id of a topic, raises KafkaOperationError; by default from the brokers.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        topic: str,
        handler: RecordHandler,
        *,
        concurrency: int = 32,
        batch_size: int = 500,
        ordered: bool = True,
        max_pending: int | None = None,
        fill_time: float = 0.0,
        read_topic_id: Callable[[str], str] | None = None,
    ) -> None:
        self.group, self.topic = group, topic
        self._read_topic_id = read_topic_id or KafkaAdmin(settings).topic_id
        self._topic_id = ""
        self._identity_due = 0.0
        self._settings = settings
        self._handler = handler
        self._executor: KeyedExecutor[_WorkItem] = KeyedExecutor(self._process, concurrency)
        self._ordered = ordered
        self._max_pending = concurrency * PREFETCH_FACTOR if max_pending is None else max_pending
        self._batch_size = batch_size
        self._fill_time = fill_time
        self._trackers: dict[int, OffsetTracker] = {}
        self._high_watermarks = HighWatermarks()
        self._broker_health = BrokerHealth(group)
        self._assigned: set[int] = set()
        self._moved_partitions: set[int] = set()
        self._paused: bool | None = False
        self._committing = False
        self._commit_due = 0.0
        self._logged_at: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, f"reader-{group}")
        self._client: Any = None
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Read until ``stop``; messages in process then have ``grace`` seconds to end."""
        from confluent_kafka import Consumer

        self._stop = stop
        properties = member_properties(self._settings, self.group, fill_time=self._fill_time)
        self._client = Consumer(
            {**properties, **OWN_RESET, **self._broker_health.properties(), "on_commit": self._on_commit}
        )
        try:
            self._client.subscribe(
                [self.topic], on_assign=self._on_assigned, on_revoke=self._on_revoked, on_lost=self._on_lost
            )
            while not stop.is_set():
                await self._poll_once()
            await self._finish(grace)
        finally:
            await self._executor.stop()
            await self._in_thread(self._client.close)
            self._thread.shutdown(wait=False)

    def health(self) -> str | None:
        """None, or why nothing can be read at present."""
        return self._broker_health.health()

    def lags(self) -> Iterator[PartitionLag]:
        """The lag of each partition of this process."""
        for partition, progress in list(self._trackers.items()):
            behind = self._high_watermarks.lag(partition, progress.position)
            if behind is not None:
                yield self.group, self.topic, partition, behind

    async def _poll_once(self) -> None:
        await self._pause_or_resume()
        for read in await self._in_thread(self._poll_batch):
            self._accept(read)
        if time.monotonic() >= self._commit_due:
            await self._commit()

    def _poll_batch(self) -> list[Any]:
        self._high_watermarks.refresh(self._client)
        first = self._client.poll(POLL_TIMEOUT)
        if first is None:
            if self._assigned and time.monotonic() >= self._identity_due:
                self._is_of_this_topic([])
            return []
        self._moved_partitions.clear()
        rest = self._client.consume(self._batch_size - 1, self._fill_time)
        # If its partition is reassigned meanwhile, the client drops what it has buffered, but not the message returned
        # here. The next owner handles it, after those before it.
        batch = rest if first.partition() in self._moved_partitions else [first, *rest]
        return self._without_resets(batch) if self._is_of_this_topic(batch) else []

    def _is_of_this_topic(self, batch: list[Any]) -> bool:
        """True if the topic is the same one as before these records were read. If it is another one, all partitions are
        read from their beginning; if that is unknown, the batch is read again.
        """
        try:
            topic_id = self._read_topic_id(self.topic)
        except KafkaOperationError as error:
            self._log_now_and_then(error.message)
            self._read_again(batch)
            time.sleep(POLL_TIMEOUT)
            return False
        self._identity_due = time.monotonic() + IDENTITY_INTERVAL
        if topic_id == self._topic_id:
            return True
        from confluent_kafka import OFFSET_BEGINNING

        warn_created_again(self.group, self.topic)
        self._topic_id = topic_id
        self._forget(list(self._trackers))
        self._go_on_at(dict.fromkeys(self._assigned, OFFSET_BEGINNING))
        return False

    def _read_again(self, batch: list[Any]) -> None:
        starts: dict[int, int] = {}
        for read in batch:
            if read.error() is None and read.partition() in self._assigned:
                starts.setdefault(read.partition(), read.offset())
        if starts:
            self._go_on_at(starts)

    def _without_resets(self, batch: list[Any]) -> list[Any]:
        """The batch without the errors of positions that a partition does not have any more; these are reset."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

        usable = []
        for read in batch:
            error = read.error()
            if error is None or error.code() != KafkaError._AUTO_OFFSET_RESET:
                usable.append(read)
                continue
            tracker = self._trackers.get(read.partition())
            position = read.offset() if tracker is None or tracker.position is None else tracker.position
            with contextlib.suppress(KafkaException):  # it only tells what is lost
                is_within(self._client, self.group, TopicPartition(self.topic, read.partition(), position))
            self._forget([read.partition()])
            self._go_on_at({read.partition(): OFFSET_BEGINNING})
        return usable

    def _go_on_at(self, starts: Mapping[int, int]) -> None:
        """Read these partitions from other offsets. Seeking is refused while a partition is not being fetched."""
        move_assignment(self._client, self.topic, self._assigned, starts, is_cooperative=is_cooperative(self._settings))
        self._paused = None

    def _accept(self, read: Any) -> None:
        error = read.error()
        if error is not None:
            return self._handle_error(read, error)
        if read.partition() not in self._assigned:
            return
        progress = self._trackers.setdefault(read.partition(), OffsetTracker())
        progress.add(read.offset())
        record = ConsumedRecord(read, self._topic_id)
        # A record without a key need not wait for any other.
        lane = (record.partition, record.key if self._ordered and record.key is not None else record.offset)
        self._executor.submit(lane, _WorkItem(record, progress))

    def _handle_error(self, read: Any, error: Any) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if error.code() == KafkaError._PARTITION_EOF:
            if read.partition() in self._assigned:
                self._trackers.setdefault(read.partition(), OffsetTracker()).skip_to(read.offset())
            return
        if error.fatal():
            raise KafkaException(error)
        self._log_now_and_then(classify_kafka_error(error).reason)

    def _log_now_and_then(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(reason, -LOG_AGAIN_AFTER) >= LOG_AGAIN_AFTER:
            self._logged_at[reason] = now
            log.warning("topic cannot be read: %s", reason, extra=fields(group=self.group, topic=self.topic))

    async def _process(self, item: _WorkItem) -> None:
        if self._stop.is_set():
            return  # an earlier record of its key may be unprocessed; the next owner handles both in order
        try:
            await self._handler(item.record)
        except ProcessStopping:
            return
        except Exception:
            # Its offset, and thus all after it, stays uncommitted: nothing is lost, but an operator has to act.
            about = fields(group=self.group, record=item.record.position)
            log.exception("message not processed because of an internal error (a bug in saga)", extra=about)
            return
        item.tracker.complete(item.record.offset)

    async def _pause_or_resume(self) -> None:
        held = self._executor.pending
        if self._paused is not True and held >= self._max_pending:
            self._paused = True
            await self._in_thread(lambda: self._client.pause(self._client.assignment()))
        elif self._paused is not False and held <= self._max_pending // 2:
            self._paused = False
            await self._in_thread(lambda: self._client.resume(self._client.assignment()))

    async def _commit(self) -> None:
        self._commit_due = time.monotonic() + COMMIT_INTERVAL
        offsets = self._offsets(self._trackers)
        if offsets and not self._committing:
            self._committing = True
            await self._in_thread(lambda: self._client.commit(offsets=offsets, asynchronous=True))

    def _offsets(self, partitions: Any) -> list[Any]:
        wanted = (
            (partition, self._trackers[partition].to_commit())
            for partition in partitions
            if partition in self._trackers
        )
        return [
            commit_position(self.topic, partition, offset, self._topic_id)
            for partition, offset in wanted
            if offset is not None
        ]

    async def _finish(self, grace: float) -> None:
        """Let messages in process end. The partitions stay paused, and polling keeps the group membership alive."""
        self._executor.discard(lambda _: True)
        ending = asyncio.create_task(self._executor.wait_idle())
        deadline = time.monotonic() + grace
        await self._in_thread(lambda: self._client.pause(self._client.assignment()))
        while not ending.done() and time.monotonic() < deadline:
            await self._in_thread(lambda: self._client.poll(POLL_TIMEOUT))
        ending.cancel()

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._thread, call)

    # The callbacks run in the client's thread, within poll() and close().

    def _on_assigned(self, client: Any, partitions: list[Any]) -> None:
        numbers = [partition.partition for partition in partitions]
        self._assign(client, partitions)
        log.info("partitions assigned", extra=fields(group=self.group, topic=self.topic, partitions=numbers))
        self._assigned.update(numbers)
        self._moved_partitions.update(numbers)
        # Unknown: a partition that was paused when it was revoked is still paused when it comes back, others are not.
        self._paused = None

    def _on_revoked(self, client: Any, partitions: list[Any]) -> None:
        self._hand_over(client, partitions, commit=True)

    def _on_lost(self, client: Any, partitions: list[Any]) -> None:
        self._hand_over(client, partitions, commit=False)

    def _assign(self, client: Any, partitions: list[Any]) -> None:
        """Begin at the committed positions, as soon as the brokers tell them."""
        from confluent_kafka import KafkaException

        cooperative = is_cooperative(self._settings)
        while not self._stop.is_set():
            try:
                self._topic_id = self._read_topic_id(self.topic)
                ids = {self.topic: self._topic_id}
                return assign_from_commits(client, self.group, partitions, ids, is_cooperative=cooperative)
            except KafkaOperationError as error:
                self._log_now_and_then(error.message)
            except KafkaException as error:
                self._log_now_and_then(classify_kafka_error(error).reason)
            time.sleep(POLL_TIMEOUT)

    def _hand_over(self, client: Any, partitions: list[Any], *, commit: bool) -> None:
        """Give partitions up: drain what is in flight, then commit what has ended."""
        from confluent_kafka import KafkaException

        going = [partition.partition for partition in partitions]
        asyncio.run_coroutine_threadsafe(self._drain(going), self._loop).result()
        offsets = self._offsets(going)
        self._assigned.difference_update(going)
        self._moved_partitions.update(going)
        for one in going:
            self._trackers.pop(one, None)
        if commit and offsets:
            try:
                client.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                about = fields(group=self.group, topic=self.topic)
                log.warning(
                    "offsets of revoked partitions not committed: %s", classify_kafka_error(error).reason, extra=about
                )

    def _forget(self, partitions: list[int]) -> None:
        """Drain what is in flight of these partitions, and forget their positions."""
        asyncio.run_coroutine_threadsafe(self._drain(partitions), self._loop).result()
        for partition in partitions:
            self._trackers.pop(partition, None)

    async def _drain(self, leaving: list[int]) -> None:
        known = [self._trackers[one] for one in leaving if one in self._trackers]

        def theirs(item: _WorkItem) -> bool:
            return any(item.tracker is one for one in known)

        self._executor.discard(theirs)
        await self._executor.wait_ended(theirs, HANDOVER_TIMEOUT)

    def _on_commit(self, error: Any, partitions: list[Any]) -> None:
        self._committing = False
        if error is not None:
            about = fields(group=self.group, topic=self.topic)
            log.info("offset commit failed and is retried: %s", classify_kafka_error(error).reason, extra=about)
            return
        for partition in partitions:
            if partition.error is None and partition.partition in self._trackers:
                self._trackers[partition.partition].mark_committed(partition.offset)


T = TypeVar("T")


class KeyedExecutor(Generic[T]):
    """Runs ``work`` for each item; items with equal keys in order, at most ``concurrency`` at a time.

    ``work`` must not raise; it has to report failures in another way.
    """

    def __init__(self, work: Callable[[T], Awaitable[None]], concurrency: int) -> None:
        self._work = work
        self._slots = asyncio.Semaphore(concurrency)
        self._waiting: dict[Hashable, deque[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[int, T] = {}
        self._item_ended = asyncio.Event()

    @property
    def pending(self) -> int:
        """Items that wait or run."""
        return sum(len(queue) for queue in self._waiting.values()) + len(self._running)

    async def wait_ended(self, predicate: Callable[[T], bool], timeout: float) -> None:
        """Wait until no item that matches is being processed, at most ``timeout`` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while any(predicate(item) for item in self._running.values()):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            self._item_ended.clear()
            try:
                async with asyncio.timeout(left):
                    await self._item_ended.wait()
            except TimeoutError:
                return

    def submit(self, key: Hashable, item: T) -> None:
        queue = self._waiting.get(key)
        if queue is not None:
            queue.append(item)
            return
        self._waiting[key] = deque((item,))
        task = asyncio.create_task(self._run(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def discard(self, predicate: Callable[[T], bool]) -> None:
        """Drop matching items that have not started."""
        for lane, queue in list(self._waiting.items()):
            self._waiting[lane] = deque(item for item in queue if not predicate(item))

    async def wait_idle(self) -> None:
        """Wait until everything has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """Cancel what runs and drop the rest."""
        for queue in self._waiting.values():
            queue.clear()
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, key: Hashable) -> None:
        try:
            while queue := self._waiting[key]:
                async with self._slots:
                    if not (queue := self._waiting[key]):
                        return
                    item = queue.popleft()
                    self._running[id(item)] = item
                    try:
                        await self._work(item)
                    finally:
                        del self._running[id(item)]
                        self._item_ended.set()
        finally:
            del self._waiting[key]


class OffsetTracker:
    """Tracks how far a partition is processed while its messages end in any order.

    Everything below the lowest message in flight may be committed. Offsets have gaps (control records, compaction), so
    nothing here assumes that the next one is greater by one.
    """

    def __init__(self) -> None:
        self._in_flight: dict[int, None] = {}  # in the order of reading, so the first is the lowest
        self._next: int | None = None
        self._committed: int | None = None

    @property
    def in_flight(self) -> int:
        """Messages that were read and have not ended."""
        return len(self._in_flight)

    def add(self, offset: int) -> None:
        """A message was read; offsets come in ascending order."""
        self._in_flight[offset] = None
        self._next = offset + 1

    def skip_to(self, offset: int) -> None:
        """The reader has passed everything below ``offset``, including control records at the end."""
        self._next = max(offset, self._next or 0)

    def complete(self, offset: int) -> None:
        """A message has been handled for good."""
        self._in_flight.pop(offset, None)

    @property
    def position(self) -> int | None:
        """The offset from which to continue after a crash now; None if nothing was read yet."""
        return next(iter(self._in_flight), self._next)

    def to_commit(self) -> int | None:
        """The position, if it differs from the last committed one; else None."""
        position = self.position
        return position if position is not None and position != self._committed else None

    def mark_committed(self, offset: int) -> None:
        self._committed = offset
