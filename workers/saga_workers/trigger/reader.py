"""One consumer group's reading of one topic: read, work off in lanes, commit what has ended.

The client library blocks, so it lives in a thread of its own; everything else happens on the event loop. Reading
goes on while the work is held up (with the partitions paused), so the group never takes the process for dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from saga_activities.kafka.errors import classify_kafka_error
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.group_config import BrokerHealth, HighWatermarks, member_properties
from saga_workers.trigger.retry import ProcessStopping
from saga_workers.trigger.trigger_metrics import PartitionLag
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.trigger")

RecordHandler = Callable[[ConsumedRecord], Awaitable[None]]
"""Does all there is to do for a record, its dead letter included. Raises Stopped when it was not done."""

POLL_TIMEOUT = 0.2
COMMIT_INTERVAL = 0.5
HANDOVER_TIMEOUT = 10.0
"""Seconds that messages in flight have to end when their partition goes to another process."""
PREFETCH_FACTOR = 16
"""How many messages are held for each that is worked on."""
LOG_AGAIN_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class _WorkItem:
    record: ConsumedRecord
    tracker: OffsetTracker


class TopicReader:
    """Reads ``topic`` as ``group``. ``width`` messages are worked on at once."""

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        topic: str,
        handler: RecordHandler,
        *,
        concurrency: int = 32,
        batch_size: int = 500,
    ) -> None:
        self.group, self.topic = group, topic
        self._settings = settings
        self._handler = handler
        self._executor: KeyedExecutor[_WorkItem] = KeyedExecutor(self._process, concurrency)
        self._max_pending = concurrency * PREFETCH_FACTOR
        self._batch_size = batch_size
        self._trackers: dict[int, OffsetTracker] = {}
        self._high_watermarks = HighWatermarks()
        self._broker_health = BrokerHealth(group)
        self._paused = False
        self._committing = False
        self._commit_due = 0.0
        self._logged_at: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, f"reader-{group}")
        self._client: Any = None
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Read until ``stop``; what has begun then may end within ``grace`` seconds."""
        from confluent_kafka import Consumer

        self._stop = stop
        properties = {**member_properties(self._settings, self.group), **self._broker_health.properties()}
        self._client = Consumer({**properties, "on_commit": self._on_commit})
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
        """None, or why nothing can be read at the moment."""
        return self._broker_health.health()

    def lags(self) -> Iterator[PartitionLag]:
        """How far each partition of this process is behind."""
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
            return []
        return [first, *self._client.consume(self._batch_size - 1, 0)]

    def _accept(self, read: Any) -> None:
        error = read.error()
        if error is not None:
            return self._handle_error(read, error)
        progress = self._trackers.setdefault(read.partition(), OffsetTracker())
        progress.add(read.offset())
        record = ConsumedRecord(read)
        # Without a key nothing has to wait for anything else.
        lane = (record.partition, record.key if record.key is not None else record.offset)
        self._executor.submit(lane, _WorkItem(record, progress))

    def _handle_error(self, read: Any, error: Any) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if error.code() == KafkaError._PARTITION_EOF:
            self._trackers.setdefault(read.partition(), OffsetTracker()).skip_to(read.offset())
            return
        if error.fatal():
            raise KafkaException(error)
        text, now = classify_kafka_error(error).reason, time.monotonic()
        if now - self._logged_at.get(text, -LOG_AGAIN_AFTER) >= LOG_AGAIN_AFTER:
            self._logged_at[text] = now
            log.warning("%s cannot read %s: %s", self.group, self.topic, text)

    async def _process(self, item: _WorkItem) -> None:
        if self._stop.is_set():
            return  # what the one before it in its lane left undone comes first, in another process
        try:
            await self._handler(item.record)
        except ProcessStopping:
            return
        except Exception:
            # Its offset stays, and so does everything behind it: nothing is lost, and somebody has to look.
            log.exception("%s cannot go on with %s: this is a bug in saga", self.group, item.record.position)
            return
        item.tracker.complete(item.record.offset)

    async def _pause_or_resume(self) -> None:
        held = self._executor.pending
        if not self._paused and held >= self._max_pending:
            self._paused = True
            await self._in_thread(lambda: self._client.pause(self._client.assignment()))
        elif self._paused and held <= self._max_pending // 2:
            self._paused = False
            await self._in_thread(lambda: self._client.resume(self._client.assignment()))

    async def _commit(self) -> None:
        self._commit_due = time.monotonic() + COMMIT_INTERVAL
        offsets = self._offsets(self._trackers)
        if offsets and not self._committing:
            self._committing = True
            await self._in_thread(lambda: self._client.commit(offsets=offsets, asynchronous=True))

    def _offsets(self, partitions: Any) -> list[Any]:
        from confluent_kafka import TopicPartition

        wanted = ((one, self._trackers[one].to_commit()) for one in partitions if one in self._trackers)
        return [TopicPartition(self.topic, one, offset) for one, offset in wanted if offset is not None]

    async def _finish(self, grace: float) -> None:
        """Let what has begun end; partitions stay paused, and the group hears of us meanwhile."""
        self._executor.discard(lambda _: True)
        ending = asyncio.create_task(self._executor.wait_idle())
        deadline = time.monotonic() + grace
        await self._in_thread(lambda: self._client.pause(self._client.assignment()))
        while not ending.done() and time.monotonic() < deadline:
            await self._in_thread(lambda: self._client.poll(POLL_TIMEOUT))
        ending.cancel()

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._thread, call)

    # Called in the thread, from within poll() and close().

    def _on_assigned(self, _: Any, partitions: list[Any]) -> None:
        log.info("%s reads partitions %s of %s", self.group, [one.partition for one in partitions], self.topic)
        # What was paused when it was taken from us, and comes back, is still paused: the next round resumes it.
        self._paused = True

    def _on_revoked(self, client: Any, partitions: list[Any]) -> None:
        self._hand_over(client, partitions, commit=True)

    def _on_lost(self, client: Any, partitions: list[Any]) -> None:
        self._hand_over(client, partitions, commit=False)

    def _hand_over(self, client: Any, partitions: list[Any], *, commit: bool) -> None:
        """Partitions go to another process: what is in flight may end, and what has ended is committed."""
        from confluent_kafka import KafkaException

        going = [one.partition for one in partitions]
        asyncio.run_coroutine_threadsafe(self._drain(going), self._loop).result()
        offsets = self._offsets(going)
        for one in going:
            self._trackers.pop(one, None)
        if commit and offsets:
            try:
                client.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                log.warning(
                    "%s could not commit while handing over: %s", self.group, classify_kafka_error(error).reason
                )

    async def _drain(self, leaving: list[int]) -> None:
        known = [self._trackers[one] for one in leaving if one in self._trackers]

        def theirs(item: _WorkItem) -> bool:
            return any(item.tracker is one for one in known)

        self._executor.discard(theirs)
        await self._executor.wait_ended(theirs, HANDOVER_TIMEOUT)

    def _on_commit(self, error: Any, partitions: list[Any]) -> None:
        self._committing = False
        if error is not None:
            log.info("%s commits again: %s", self.group, classify_kafka_error(error).reason)
            return
        for one in partitions:
            if one.error is None and one.partition in self._trackers:
                self._trackers[one.partition].mark_committed(one.offset)


# Many messages at once, but those of one key one after the other.

T = TypeVar("T")


class KeyedExecutor(Generic[T]):
    """Runs ``work`` for each item; items with equal ``lane`` in order, at most ``width`` at a time.

    ``work`` must not raise: what it cannot do it has to say in another way.
    """

    def __init__(self, work: Callable[[T], Awaitable[None]], concurrency: int) -> None:
        self._work = work
        self._slots = asyncio.Semaphore(concurrency)
        self._waiting: dict[Hashable, deque[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: list[T] = []
        self._item_ended = asyncio.Event()

    @property
    def pending(self) -> int:
        """Items that wait or run."""
        return sum(len(queue) for queue in self._waiting.values()) + len(self._running)

    async def wait_ended(self, predicate: Callable[[T], bool], timeout: float) -> None:
        """Wait until no such item is worked on, at most ``patience`` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while any(predicate(item) for item in self._running):
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
        """Forget items that have not begun."""
        for lane, queue in list(self._waiting.items()):
            self._waiting[lane] = deque(item for item in queue if not predicate(item))

    async def wait_idle(self) -> None:
        """Wait until everything has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """Cancel what runs and forget the rest."""
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
                    self._running.append(item)
                    try:
                        await self._work(item)
                    finally:
                        self._running.remove(item)
                        self._item_ended.set()
        finally:
            del self._waiting[key]


# How far a partition has been worked off, while its messages end in any order.


class OffsetTracker:
    """The offsets of one partition. What may be committed is everything below the lowest that has not ended.

    Offsets have gaps (control markers, compaction), so nothing here counts on the next one being one more.
    """

    def __init__(self) -> None:
        self._in_flight: dict[int, None] = {}  # in the order they were read, so the first is the lowest
        self._next: int | None = None
        self._committed: int | None = None

    @property
    def in_flight(self) -> int:
        """Messages that were read and have not ended."""
        return len(self._in_flight)

    def add(self, offset: int) -> None:
        """A message was read; offsets come in order."""
        self._in_flight[offset] = None
        self._next = offset + 1

    def skip_to(self, offset: int) -> None:
        """The reader has passed everything below ``offset``, control markers at the end included."""
        self._next = max(offset, self._next or 0)

    def complete(self, offset: int) -> None:
        """A message has had its effect, for good."""
        self._in_flight.pop(offset, None)

    @property
    def position(self) -> int | None:
        """The offset to go on from after a crash now; None: nothing was read yet."""
        return next(iter(self._in_flight), self._next)

    def to_commit(self) -> int | None:
        """The position, when it is further than what was committed last."""
        position = self.position
        return position if position is not None and position != self._committed else None

    def mark_committed(self, offset: int) -> None:
        self._committed = offset
