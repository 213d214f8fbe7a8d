"""Reads one topic for one consumer group: handles messages concurrently, but in order per key, and commits offsets.

The blocking Kafka client has a thread of its own; everything else runs on the event loop. Polling goes on while
handlers are busy (with the partitions paused), so the group does not evict the process.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.errors import classify_kafka_error
from saga_activities.kafka.truncation import UNKNOWN_PLACE, ReadPlace
from saga_workers.runtime.keyed_executor import KeyedExecutor
from saga_workers.runtime.logs import fields
from saga_workers.trigger.attempt_gate import AttemptGate
from saga_workers.trigger.careful_partitions import CarefulPartitions, WorkItem
from saga_workers.trigger.committed_positions import commit_position, commit_revoked
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.delivery import Delivery, DeliveryMark
from saga_workers.trigger.high_watermarks import HighWatermarks
from saga_workers.trigger.member_config import is_cooperative, member_properties
from saga_workers.trigger.membership import Membership
from saga_workers.trigger.offset_tracker import OffsetTracker
from saga_workers.trigger.partition_assignment import (
    IDENTITY_INTERVAL,
    OWN_RESET,
    AssignedPosition,
    assign_from_commits,
    assign_when_told,
    commit_beginnings,
    move_assignment,
    place_to_go_on,
    warn_created_again,
)
from saga_workers.trigger.partition_marks import PartitionMarks
from saga_workers.trigger.read_problem import ReadProblem
from saga_workers.trigger.retry import USUAL_ATTEMPTS, ProcessStopping
from saga_workers.trigger.subscription import subscribe
from saga_workers.trigger.takeovers import Takeovers
from saga_workers.trigger.trigger_metrics import PartitionAttempts, PartitionLag
from saga_workers.trigger.watchdog import USUAL_TIMEOUT
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.trigger")

RecordHandler = Callable[[ConsumedRecord], Awaitable[None]]
"""Handles a record completely, dead letter included. Raises ProcessStopping if it did not."""

POLL_TIMEOUT = 0.2
_SHORT_POLL_TIMEOUT = 0.005
"""While the mark of an attempt waits for the thread of the client."""
COMMIT_INTERVAL = 0.5
HANDOVER_TIMEOUT = 10.0
"""Seconds that messages in flight have to end when their partition is reassigned."""
PREFETCH_FACTOR = 16
"""Messages held in memory for each one that is being processed."""


class TopicReader:
    """Reads ``topic`` as ``group``, and processes up to ``concurrency`` messages at once.

    ``ordered``: those with equal ``key`` in order, by default that of the record. ``max_pending``: the most messages in
    memory. ``fill_time``: seconds that a first message waits for further ones, at the broker and then here: reading
    each one alone takes much CPU.
    ``gate``: shared with the other readers of the process. ``max_attempts``: those of a message, and
    ``timeout``: the seconds of each.
    ``cluster``: tells the id and the ends of the topic; by default the brokers of ``settings``.
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
        key: Callable[[ConsumedRecord], Hashable] = attrgetter("key"),
        max_pending: int | None = None,
        fill_time: float = 0.0,
        gate: AttemptGate | None = None,
        max_attempts: int = USUAL_ATTEMPTS,
        timeout: float = USUAL_TIMEOUT,
        cluster: KafkaAdmin | None = None,
    ) -> None:
        self.group, self.topic = group, topic
        self._cluster = cluster or KafkaAdmin(settings)
        self._topic_id = ""
        self._identity_due = 0.0
        self._settings = settings
        self._handler = handler
        self._executor: KeyedExecutor[WorkItem] = KeyedExecutor(self._process, concurrency)
        self._ordered, self._key = ordered, key
        self._max_pending = concurrency * PREFETCH_FACTOR if max_pending is None else max_pending
        self._batch_size = batch_size
        self._fill_time = fill_time
        self._trackers: dict[int, OffsetTracker] = {}
        gate = gate or AttemptGate()
        self.assigned_at: float | None = None
        self._usual_delivery = Delivery(turn=gate.shared, aside=self._executor.aside)
        self._marks = PartitionMarks(uuid.uuid4().hex[:12])
        self._careful = CarefulPartitions(
            self._marks,
            gate,
            group=group,
            max_attempts=max_attempts,
            timeout=timeout,
            submit=self._submit,
            submit_careful=lambda item: self._executor.submit((item.record.partition, None, "careful"), item),
            commit_mark=self._commit_mark,
        )
        self._high_watermarks = HighWatermarks()
        self._problem = ReadProblem(settings, group, topic)
        self._assigned: set[int] = set()
        self._takeovers = Takeovers()
        self._membership = Membership(topic)
        self._moved_partitions: set[int] = set()
        self._paused: bool | None = False
        self._committing = False
        self._commit_due = 0.0
        self._thread = ThreadPoolExecutor(1, f"reader-{group}")
        self._client: Any = None
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Read until ``stop``; messages in process then have ``grace`` seconds to end."""
        self._stop = stop
        self._join()
        try:
            while not stop.is_set():
                await self._poll_once()
            await self._finish(grace)
        finally:
            await self._executor.stop()
            await self._in_thread(self._client.close)
            self._thread.shutdown(wait=False)

    def _join(self) -> None:
        """Join the group with a new client."""
        from confluent_kafka import Consumer

        properties = member_properties(self._settings, self.group, fill_time=self._fill_time)
        self._client = Consumer({**properties, **OWN_RESET, **self._problem.properties(), "on_commit": self._on_commit})
        self._committing, self._paused = False, False
        subscribe(self._client, self.topic, assigned=self._on_assigned, revoked=self._on_revoked, lost=self._on_lost)

    def _join_again_if_needed(self) -> None:
        is_busy, is_paused = bool(self._executor.pending or self._careful.pending), self._paused is True
        read_to = {number: (its := self._trackers.get(number)) and its.read_to for number in self._assigned}
        try:
            why = self._membership.why_to_join_again(
                self._cluster, self.group, read_to, is_busy=is_busy, is_paused=is_paused
            )
        except KafkaOperationError as error:
            return self._problem.note(error)
        if why is not None:
            log.warning("%s, joining again", why, extra=fields(group=self.group, topic=self.topic))
            self._client.close()
            self._join()

    def health(self) -> str | None:
        """Why nothing can be read at present; None if it can."""
        return self._problem.health()

    def lags(self) -> Iterator[PartitionLag]:
        """The lag of each partition of this process."""
        for partition, progress in list(self._trackers.items()):
            behind = self._high_watermarks.lag(partition, progress.position)
            if behind is not None:
                yield self.group, self.topic, partition, behind

    def ended_attempts(self) -> Iterator[PartitionAttempts]:
        """The attempts for the next record of each partition that have ended their process."""
        return ((self.group, self.topic, partition, attempts) for partition, attempts in self._marks.attempts())

    async def flush(self) -> None:
        """Commit what has ended."""
        from confluent_kafka import KafkaException

        if offsets := self._offsets(self._trackers):
            try:
                await self._in_thread(lambda: self._client.commit(offsets=offsets, asynchronous=False))
            except KafkaException as error:
                self._log_commit_failure(error.args[0])

    async def _poll_once(self) -> None:
        await self._pause_or_resume()
        for read in await self._in_thread(self._poll_batch):
            self._accept(read)
        if time.monotonic() >= self._commit_due:
            await self._commit()

    def _poll_batch(self) -> list[Any]:
        self._high_watermarks.refresh(self._client)
        first = self._client.poll(_SHORT_POLL_TIMEOUT if self._careful else POLL_TIMEOUT)
        if first is None:
            if time.monotonic() >= self._identity_due:
                self._look_at_idle_topic()
            self._join_again_if_needed()
            return []
        self._moved_partitions.clear()
        others = self._client.consume(self._batch_size - 1, self._fill_time)
        # If its partition is reassigned meanwhile, the client drops what it has buffered, but not the message returned
        # here. The next owner handles it, after those before it.
        batch = others if first.partition() in self._moved_partitions else [first, *others]
        return self._without_resets(batch) if self._is_of_this_topic(batch) else []

    def _look_at_idle_topic(self) -> None:
        if not self._assigned:
            self._identity_due = time.monotonic() + IDENTITY_INTERVAL
        elif not self._is_of_this_topic([]):
            return
        trackers = {partition: self._trackers.get(partition) for partition in self._assigned}
        self._problem.look_again(
            self._client, {partition: tracker and tracker.position for partition, tracker in trackers.items()}
        )

    def _is_of_this_topic(self, batch: list[Any]) -> bool:
        """True if the topic is the same one as before these records were read. If it is another one, all partitions are
        read from their beginning; if that is unknown, the batch is read again.
        """
        try:
            topic_id = self._cluster.topic_id(self.topic)
        except KafkaOperationError as error:
            self._problem.note(error)
            self._read_again(batch)
            time.sleep(POLL_TIMEOUT)
            return False
        self._identity_due = time.monotonic() + IDENTITY_INTERVAL
        if topic_id == self._topic_id or not self._topic_id:  # without an id no topic can be told from another one
            self._topic_id = topic_id
            return True
        self._begin_in_new_topic(topic_id)
        return False

    def _begin_in_new_topic(self, topic_id: str) -> None:
        """Read all partitions of the topic that was created again from their beginning.

        Their positions are committed first, because Kafka has dropped those of the group with the topic: a process that
        is killed after it has handled the first records would leave a group without a position.
        """
        from confluent_kafka import OFFSET_BEGINNING, KafkaException

        self._forget(list(self._trackers))
        mark = DeliveryMark(topic_id, self._marks.reader)
        try:
            commit_beginnings(self._client, self._cluster, self.topic, self._assigned, mark)
        except (KafkaOperationError, KafkaException) as error:
            self._problem.note(error)
            self._identity_due = 0.0
            time.sleep(POLL_TIMEOUT)
            return
        warn_created_again(self.group, self.topic)
        self._topic_id = topic_id
        self._marks.restart(self._assigned, topic_id)
        self._go_on_at(dict.fromkeys(self._assigned, OFFSET_BEGINNING))

    def _read_again(self, batch: list[Any]) -> None:
        from confluent_kafka import KafkaError

        starts: dict[int, int] = {}
        for read in self._without_resets(batch):  # the client fetches nothing of a partition that is not reset
            is_place = read.error() is None or read.error().code() == KafkaError._PARTITION_EOF
            if is_place and read.partition() in self._assigned:
                starts.setdefault(read.partition(), read.offset())
        if starts:
            self._go_on_at(starts)

    def _without_resets(self, batch: list[Any]) -> list[Any]:
        """The batch without the partitions whose positions do not hold any more; these are reset."""
        errors = [read for read in batch if read.error() and read.error().name() == "_AUTO_OFFSET_RESET"]
        gone = {read.partition() for read in errors}
        for partition in gone:
            self._reset(partition)
        return [read for read in batch if read.partition() not in gone]

    def _reset(self, partition: int) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        tracker, place, start = self._trackers.get(partition), UNKNOWN_PLACE, OFFSET_BEGINNING
        if tracker is not None and tracker.read_to is not None:  # else nothing was read since the last reset
            position = TopicPartition(self.topic, partition, tracker.read_to)
            place = place_to_go_on(self._cluster, self.group, position, self._marks.place(partition))
        self._forget([partition], place)
        if tracker is not None and place != UNKNOWN_PLACE:
            start = min(place.offset, tracker.position or 0)  # what was in flight is read again
        self._go_on_at({partition: start})

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
        self._problem.end()
        self._marks.read(read.partition(), read.offset(), read.leader_epoch())
        taken_over = self._takeovers.of(read.partition(), read.offset())
        record = ConsumedRecord(read, self._topic_id, self._usual_delivery, taken_over=taken_over)
        item = WorkItem(record, progress)
        if not self._careful.hold(item):
            self._submit(item)

    def _submit(self, item: WorkItem) -> None:
        record = item.record
        record.delivery = self._usual_delivery
        # A record without a key need not wait for any other.
        key = self._key(record) if self._ordered else None
        self._executor.submit((record.partition, record.offset if key is None else key), item)

    def _handle_error(self, read: Any, error: Any) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if error.code() == KafkaError._PARTITION_EOF:
            if read.partition() in self._assigned:
                self._trackers.setdefault(read.partition(), OffsetTracker()).skip_to(read.offset())
                self._careful.at_end(read.partition())
                self._problem.end()
            return
        if error.fatal():
            raise KafkaException(error)
        self._problem.note(error)

    async def _process(self, item: WorkItem) -> None:
        if self._stop.is_set():
            return  # an earlier record of its key may be unprocessed; the next owner handles both in order
        try:
            if item.record.is_for(self.group):
                await self._handler(item.record)
        except ProcessStopping:
            return
        except Exception:
            # Any error: the executor must go on with the other partitions. The offset, and thus all after it, stays
            # uncommitted: nothing is lost, but an operator has to act.
            about = fields(group=self.group, record=item.record.position)
            log.exception("message not processed because of an internal error (a bug in saga)", extra=about)
        else:
            item.tracker.complete(item.record.offset)
        self._careful.handled(item)

    async def _pause_or_resume(self) -> None:
        held = self._executor.pending + self._careful.pending
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

    def _offsets(self, partitions: Iterable[int]) -> list[Any]:
        wanted = (
            (partition, self._trackers[partition].to_commit())
            for partition in partitions
            if partition in self._trackers
        )
        return [
            commit_position(self.topic, partition, offset, self._marks.current(partition))
            for partition, offset in wanted
            if offset is not None
        ]

    async def _commit_mark(self, item: WorkItem, mark: DeliveryMark) -> None:
        """Commit the position of a record's partition with this mark, as soon as the brokers take it."""
        from confluent_kafka import KafkaException

        partition, offset = item.record.partition, item.tracker.position
        assert offset is not None  # the record is in flight
        position = commit_position(self.topic, partition, offset, mark)
        while True:
            try:
                [committed] = await self._in_thread(lambda: self._client.commit(offsets=[position], asynchronous=False))
            except KafkaException as error:
                failure = error.args[0]
            else:
                if (failure := committed.error) is None:
                    return
            self._log_commit_failure(failure)
            await asyncio.sleep(POLL_TIMEOUT)

    def _log_commit_failure(self, error: Any) -> None:
        about = fields(group=self.group, topic=self.topic)
        log.info("offset commit failed and is retried: %s", classify_kafka_error(error).reason, extra=about)

    async def _finish(self, grace: float) -> None:
        """Let messages in process end. The partitions stay paused, and polling keeps the group membership alive."""
        self._executor.discard(lambda _: True)
        self._careful.drop(list(self._assigned))
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
        starts = self._assign(client, partitions)
        self._trackers.update((start.partition, OffsetTracker(start.offset)) for start in starts)
        self._takeovers.begin(starts)
        self._marks.begin(starts)
        self.assigned_at = self.assigned_at or time.monotonic()
        log.info("partitions assigned", extra=fields(group=self.group, topic=self.topic, partitions=numbers))
        self._assigned.update(numbers)
        self._membership.assigned(self._assigned)
        self._problem.end()
        self._moved_partitions.update(numbers)
        # Unknown: a partition that was paused when it was revoked is still paused when it comes back, others are not.
        self._paused = None

    def _on_revoked(self, client: Any, partitions: list[Any]) -> None:
        self._hand_over(client, partitions, commit=True)

    def _on_lost(self, client: Any, partitions: list[Any]) -> None:
        self._hand_over(client, partitions, commit=False)

    def _assign(self, client: Any, partitions: list[Any]) -> list[AssignedPosition]:
        """Begin at the committed positions, as soon as the brokers tell them."""

        def assign(named: list[Any]) -> list[AssignedPosition]:
            self._topic_id = self._cluster.topic_id(self.topic)
            cooperative, reader = is_cooperative(self._settings), self._marks.reader
            return assign_from_commits(
                client, self._cluster, self.group, named, self._topic_id, is_cooperative=cooperative, reader=reader
            )

        return assign_when_told(assign, partitions, is_stopping=self._stop.is_set, note=self._problem.note)

    def _hand_over(self, client: Any, partitions: list[Any], *, commit: bool) -> None:
        """Give partitions up: drain what is in flight, then commit what has ended."""
        going = [partition.partition for partition in partitions]
        asyncio.run_coroutine_threadsafe(self._drain(going), self._loop).result()
        reached = {partition: self._trackers[partition].position for partition in going if partition in self._trackers}
        offsets = [
            commit_position(self.topic, partition, position, self._marks.given_up(partition))
            for partition, position in reached.items()
            if position is not None
        ]
        self._assigned.difference_update(going)
        self._membership.revoked()
        self._moved_partitions.update(going)
        self._marks.end(going)
        for partition in going:
            self._trackers.pop(partition, None)
        if commit:
            commit_revoked(client, self.group, self.topic, offsets)

    def _forget(self, partitions: list[int], read: ReadPlace = UNKNOWN_PLACE) -> None:
        """Drain what is in flight of these partitions, and forget their positions."""
        asyncio.run_coroutine_threadsafe(self._drain(partitions), self._loop).result()
        self._marks.restart(partitions, self._topic_id, read)
        for partition in partitions:
            self._trackers.pop(partition, None)

    async def _drain(self, leaving: list[int]) -> None:
        trackers = [self._trackers[partition] for partition in leaving if partition in self._trackers]
        self._careful.drop(leaving)

        def theirs(item: WorkItem) -> bool:
            return any(item.tracker is tracker for tracker in trackers)

        self._executor.discard(theirs)
        await self._executor.wait_ended(theirs, HANDOVER_TIMEOUT)

    def _on_commit(self, error: Any, partitions: list[Any]) -> None:
        self._committing = False
        if error is not None:
            return self._log_commit_failure(error)
        for partition in partitions:
            if partition.error is None and partition.partition in self._trackers:
                self._trackers[partition.partition].mark_committed(partition.offset)
