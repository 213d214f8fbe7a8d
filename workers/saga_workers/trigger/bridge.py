"""A bridge: consume, transform and produce, with the consumed offsets committed in the producer's transaction.

Every partition has its own transactional id, the same in every process that ever owns it: taking a partition over ends
the transaction of its last owner, and fences that owner if it is still alive. After any error the whole session is
built again: group membership, partitions, producers, committed offsets.

Every output record names its source record. A new producer thus finds the transactions that its predecessor left open
in a topic, and whether they count: sources below the committed offset do, the others do not.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from saga_activities.concurrency import Backoff, wait_first
from saga_activities.kafka import hanging_transactions
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.errors import classify_kafka_error
from saga_activities.kafka.transactional_producer import KafkaTransactionError, TransactionalProducer
from saga_workers.runtime.logs import fields
from saga_workers.trigger.attempt_gate import AttemptGate
from saga_workers.trigger.bridge_function import BridgeOutput, run_bridge_function
from saga_workers.trigger.bridge_output import SOURCE_HEADER, BridgeSource
from saga_workers.trigger.careful_partitions import log_careful_attempt
from saga_workers.trigger.committed_positions import commit_position, commit_revoked
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.dead_letters import DeadLetters, dead_letter
from saga_workers.trigger.delivery import Delivery
from saga_workers.trigger.high_watermarks import HighWatermarks
from saga_workers.trigger.member_config import is_cooperative, member_properties
from saga_workers.trigger.membership import Membership
from saga_workers.trigger.partition_assignment import IDENTITY_INTERVAL, OWN_RESET, assign_from_commits
from saga_workers.trigger.partition_marks import PartitionMarks
from saga_workers.trigger.read_problem import ReadProblem
from saga_workers.trigger.subscription import subscribe
from saga_workers.trigger.takeovers import Takeovers
from saga_workers.trigger.trigger_metrics import PartitionAttempts, PartitionLag, TriggerMetrics
from saga_workers.trigger.watchdog import USUAL_TIMEOUT
from sagas.actions.consumers import Bridge
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.trigger")

BATCH_SIZE = 750
"""Messages per transaction, as in Kafka's own transaction test."""
FUNCTION_TIMEOUT = 60.0
"""Seconds after which the function of a bridge, which waits for nothing, counts as blocked."""
_POLL_TIMEOUT = 0.2
_FILL_TIMEOUT = 0.05

BATCH_SECONDS = 5.0
"""Seconds after which the outputs that are made by then are published, and the group is polled: it gives up a member
that does not poll for minutes (`max.poll.interval.ms`), and whatever it has made is lost."""
_BACKOFF = Backoff(0.2, 5.0)


class BridgeReader:
    """Runs one bridge in a thread of its own."""

    def __init__(
        self,
        settings: KafkaSettings,
        bridge: Bridge,
        group: str,
        dead_letters: DeadLetters,
        metrics: TriggerMetrics,
        *,
        gate: AttemptGate | None = None,
    ) -> None:
        """``gate``: shared with the other readers of the process."""
        self.group, self.topic = group, bridge.topic
        self._settings = settings
        self._bridge = bridge
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._gate = gate or AttemptGate()
        self._marks = PartitionMarks(uuid.uuid4().hex[:12])
        self.assigned_at: float | None = None
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._consumer: Any = None
        self._producers: dict[int, TransactionalProducer] = {}
        self._checked_topics: dict[int, set[str]] = {}
        self._positions: dict[int, int] = {}
        self._takeovers = Takeovers()
        self._membership = Membership(bridge.topic)
        self._moved_partitions: set[int] = set()
        self._high_watermarks = HighWatermarks()
        self._problem = ReadProblem(settings, self.group, self.topic)
        self._cluster = KafkaAdmin(settings)
        self._topic_id = ""
        self._identity_due = 0.0
        self._refused_offsets: dict[tuple[int, int], str] = {}
        self._individual_up_to: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        """Ends of partitions that were reached behind records of the present batch."""
        self._poll_due = 0.0
        self._given_up: set[int] = set()
        """Partitions that have moved, if only away and back, since the present batch was read."""

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Run until ``stop``; the open transaction is then committed if that takes less than ``grace`` seconds."""
        # Not the loop's default executor: its few threads also resolve database hosts, and none may be blocked forever.
        thread = ThreadPoolExecutor(1, self.group)
        running = asyncio.get_running_loop().run_in_executor(thread, self._run_sessions)
        thread.shutdown(wait=False)
        await wait_first(asyncio.wait({running}), stop.wait())
        self._stop.set()
        await asyncio.wait({running}, timeout=grace)
        if running.done():
            running.result()

    def health(self) -> str | None:
        """Why nothing can be read at present; None if it can."""
        return self._problem.health()

    def lags(self) -> Iterator[PartitionLag]:
        for partition, position in list(self._positions.items()):
            behind = self._high_watermarks.lag(partition, position)
            if behind is not None:
                yield self.group, self.topic, partition, behind

    def ended_attempts(self) -> Iterator[PartitionAttempts]:
        """The attempts for the next record of each partition that have ended their process."""
        return ((self.group, self.topic, partition, attempts) for partition, attempts in self._marks.attempts())

    async def flush(self) -> None:
        """Nothing to do: the offsets are committed in each transaction."""

    def _run_sessions(self) -> None:
        from confluent_kafka import KafkaException

        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._run_session()
            except _Stopping:
                return
            except (KafkaException, KafkaOperationError, KafkaTransactionError) as error:
                failures = 0 if time.monotonic() - began > 60 else failures + 1
                reason = _error_message(error)
                log.warning("bridge restarts: %s", reason, extra=fields(group=self.group))
                self._problem.restarts(reason)
                self._stop.wait(_BACKOFF.delay(failures))

    def _run_session(self) -> None:
        """Process batches until stopped. Raises KafkaException, KafkaTransactionError or KafkaOperationError whenever
        the state of the brokers is uncertain.
        """
        from confluent_kafka import Consumer

        properties = {**member_properties(self._settings, self.group), **OWN_RESET}
        self._consumer = Consumer({**properties, **self._problem.properties()})
        self._topic_id = self._cluster.topic_id(self.topic)
        try:
            subscribe(
                self._consumer, self.topic, assigned=self._on_assigned, revoked=self._on_revoked, lost=self._on_lost
            )
            while not self._stop.is_set():
                for partition, records in self._poll_batch().items():
                    for portion in self._split_batch(partition, records):
                        self._publish(partition, portion)
                self._reach_ends()
        except BaseException:
            self._positions.clear()  # nothing is committed any more: what the brokers have decides
            raise
        finally:
            self._consumer.close()
            self._producers.clear()
            self._positions.clear()

    def _poll_batch(self) -> dict[int, list[ConsumedRecord]]:
        self._high_watermarks.refresh(self._consumer)
        first = self._consumer.poll(_POLL_TIMEOUT)
        if first is None:
            if time.monotonic() >= self._identity_due:
                self._check_topic()
                self._problem.look_again(self._consumer, self._read_to())
            why = self._membership.why_to_join_again(self._cluster, self.group, self._read_to())
            if why is not None:
                raise KafkaOperationError(f"topic {self.topic}: {why}")
            return {}
        self._moved_partitions.clear()
        others = self._consumer.consume(BATCH_SIZE - 1, _FILL_TIMEOUT)
        self._check_topic()
        records: dict[int, list[ConsumedRecord]] = {}
        # If its partition is reassigned meanwhile, the client drops what it has buffered, but not the message returned
        # here.
        for read in others if first.partition() in self._moved_partitions else (first, *others):
            error = read.error()
            if error is None:
                taken_over = self._takeovers.of(read.partition(), read.offset())
                record = ConsumedRecord(read, self._topic_id, taken_over=taken_over)
                before = records.setdefault(read.partition(), [])
                self._check_not_reread(record, before[-1].offset + 1 if before else 0)
                before.append(record)
                self._marks.read(record.partition, record.offset, read.leader_epoch())
            else:
                self._note(read, has_records=bool(records.get(read.partition())))
        self._given_up.clear()
        self._poll_due = time.monotonic() + BATCH_SECONDS
        return records

    def _note(self, read: Any, *, has_records: bool) -> None:
        """Note an event that is not a record. ``has_records``: of its partition, which are not published yet.

        Raises KafkaException for one with which the session ends.
        """
        from confluent_kafka import KafkaError, KafkaException

        error = read.error()
        if error.code() == KafkaError._PARTITION_EOF:
            if read.partition() not in self._producers:
                return
            self._problem.end()
            if has_records:
                self._ends[read.partition()] = read.offset()
                return
            self._positions[read.partition()] = read.offset()
            if self._marks.careful_records(read.partition()) > 0:
                self._marks.finish(read.partition(), at_end=True)
        elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise KafkaException(error)  # the next session begins at a position that the partition has
        else:
            self._problem.note(error)

    def _read_to(self) -> dict[int, int | None]:
        """The offset from which each partition of this member is read; None if it is not known."""
        return {partition: self._positions.get(partition) for partition in self._producers}

    def _check_topic(self) -> None:
        """Raise KafkaOperationError if the topic is another one: the next session reads it from its beginning."""
        if self._cluster.topic_id(self.topic) != self._topic_id:
            raise KafkaOperationError(f"the topic {self.topic} was deleted and created again")
        self._identity_due = time.monotonic() + IDENTITY_INTERVAL

    def _check_not_reread(self, record: ConsumedRecord, next_offset: int) -> None:
        """Raise KafkaOperationError if an offset goes backwards: the client may fetch again from its start position
        (observed after a rebalance), and a topic may be recreated. The committed offset decides, and the next
        session reads it.
        """
        position = max(next_offset, self._positions.get(record.partition, 0))
        if record.offset < position:
            raise KafkaOperationError(f"{record.position} was read again although the position is {position}")

    def _on_assigned(self, client: Any, partitions: list[Any]) -> None:
        """Take partitions over. The committed offsets are read after this, so they are those of the last owner."""
        for partition in partitions:
            self._moved_partitions.add(partition.partition)
            self._positions.pop(partition.partition, None)
            id = f"{self._settings.prefix}-bridge-{self._bridge.name}-{partition.partition}"
            self._producers[partition.partition] = TransactionalProducer(self._settings, id).fence_and_open()
            self._checked_topics[partition.partition] = set()
        cooperative = is_cooperative(self._settings)
        starts = assign_from_commits(
            client,
            self._cluster,
            self.group,
            partitions,
            self._topic_id,
            is_cooperative=cooperative,
            reader=self._marks.reader,
            repeats=True,
        )
        self._marks.begin(starts)
        self._positions.update((start.partition, start.offset) for start in starts)
        self._takeovers.begin(starts)
        self._membership.assigned(self._producers)
        self.assigned_at = self.assigned_at or time.monotonic()
        numbers = [partition.partition for partition in partitions]
        log.info("partitions assigned", extra=fields(group=self.group, topic=self.topic, partitions=numbers))

    def _on_revoked(self, client: Any, partitions: list[Any]) -> None:
        offsets = [
            commit_position(self.topic, number, self._positions[number], self._marks.given_up(number))
            for number in (partition.partition for partition in partitions)
            if number in self._positions
        ]
        self._on_lost(client, partitions)
        commit_revoked(client, self.group, self.topic, offsets)

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        self._membership.revoked()
        self._marks.end(partition.partition for partition in partitions)
        for partition in partitions:
            self._moved_partitions.add(partition.partition)
            self._producers.pop(partition.partition, None)
            self._positions.pop(partition.partition, None)

    def _split_batch(self, partition: int, records: list[ConsumedRecord]) -> list[list[ConsumedRecord]]:
        """Split records into transactions. The broker refuses a whole batch for one record that is too large: the
        messages of such a batch get a transaction each, which shows the one at fault. So do those that may have ended
        the last process.
        """
        careful = self._marks.careful_records(partition)
        singly = [
            record
            for index, record in enumerate(records)
            if index < careful or record.offset <= self._individual_up_to.get(partition, -1)
        ]
        together = records[len(singly) :]
        return [*([record] for record in singly), *([together] if together else [])]

    def _reach_ends(self) -> None:
        """All records before the ends that were reached are published: the positions are there."""
        if not self._stop.is_set():
            reached = self._producers.keys() - self._given_up
            self._positions.update((each, end) for each, end in self._ends.items() if each in reached)
        self._ends.clear()

    def _publish(self, partition: int, records: list[ConsumedRecord]) -> None:
        """Publish the output of records in one transaction, or in several if the function is slow."""
        while records and not self._stop.is_set():
            if time.monotonic() > self._poll_due:
                self._stay_member()
            if partition not in self._producers or partition in self._given_up:
                return  # the next owner begins after the last transaction
            records = records[self._publish_transaction(partition, records) :]

    def _stay_member(self) -> None:
        """Poll without reading, so that the group does not give this member up.

        Raises KafkaException; KafkaOperationError if something was read nevertheless.
        """
        from confluent_kafka import KafkaError

        self._moved_partitions.clear()
        self._consumer.pause(self._consumer.assignment())
        read = self._consumer.poll(0)
        self._consumer.resume(self._consumer.assignment())
        self._given_up |= self._moved_partitions
        self._poll_due = time.monotonic() + BATCH_SECONDS
        if read is not None and read.error() is None:
            raise KafkaOperationError(f"{self.topic}[{read.partition()}]@{read.offset()} was read while it was paused")
        if read is not None and read.error().code() != KafkaError._PARTITION_EOF:  # records before it may be unread
            self._note(read, has_records=True)

    def _publish_transaction(self, partition: int, records: list[ConsumedRecord]) -> int:
        """Publish the output of as many records as there is time for; returns their number, at least one."""
        producer = self._producers[partition]
        made = self._make_outputs(partition, records)
        records = records[: len(made)]
        topics = {produced["topic"] for output in made for produced in output.records}
        self._abort_hanging(partition, records[0].offset, topics)
        self._require_usable(producer.use_topics(topics))
        producer.begin(self._settings.transaction_timeout)
        dead = 0
        try:
            for record, output in zip(records, made, strict=True):
                origin = BridgeSource(self.group, record.topic, record.partition, record.offset, record.topic_id)
                source = (SOURCE_HEADER, str(origin))
                for produced in output.records:
                    headers = [*(header for header in produced["headers"] if header[0] != SOURCE_HEADER), source]
                    producer.produce(**{**produced, "headers": headers})
                if output.dead_letter_reason is not None:
                    dead += 1
                    about = fields(group=self.group, record=record.position)
                    log.warning("message moved to the dead letter topic: %s", output.dead_letter_reason, extra=about)
            producer.flush()
        except KafkaTransactionError as error:
            if error.verdict.scope == "event":
                self._isolate_refused(records, error)
            raise
        if self._marks.careful_records(partition) > 0:
            self._marks.handled(partition)
        position = commit_position(self.topic, partition, records[-1].offset + 1, self._marks.current(partition))
        producer.send_offsets([position], self._consumer.consumer_group_metadata())
        producer.commit()
        self._positions[partition] = position.offset
        self._problem.end()
        self._metrics.consumed(self._bridge.name, self.topic, "done", len(records) - dead)
        for _ in range(dead):
            self._metrics.dead(self.group, self.topic)
        return len(records)

    def _abort_hanging(self, partition: int, position: int, topics: set[str]) -> None:
        """Abort hanging transactions in these topics before the producer of a partition first writes there.

        Raises KafkaOperationError, KafkaTransactionError.
        """
        ours = (self.group, self.topic, partition)

        def is_ours(headers: Mapping[str, str], *, happened: bool) -> bool:
            origin = BridgeSource.parse(headers.get(SOURCE_HEADER, ""))
            if origin is None or (origin.group, origin.topic, origin.partition) != ours:
                return False
            return (origin.offset < position) is happened

        fresh = sorted(topics - self._checked_topics[partition])
        if not fresh:
            return
        self._require_usable(KafkaAdmin(self._settings).unusable_topics(fresh))
        for topic in fresh:
            tried, kept = partial(is_ours, happened=False), partial(is_ours, happened=True)
            hanging_transactions.abort_hanging(self._settings, self._producers[partition], topic, tried, kept)
            self._checked_topics[partition].add(topic)

    def _require_usable(self, unusable: Mapping[str, str]) -> None:
        """Raise KafkaOperationError if there are unusable topics."""
        if unusable:
            self._dead_letters.forget(unusable)
            raise KafkaOperationError("; ".join(f"{topic}: {reason}" for topic, reason in unusable.items()))

    def _make_outputs(self, partition: int, records: list[ConsumedRecord]) -> list[BridgeOutput]:
        position = records[0].offset
        if self._marks.careful_records(partition) <= 0:
            with self._entered(self._gate.shared()):
                return list(self._make_in_time(records, position))
        [record] = records
        ended, limit = self._marks.ended(partition, record.offset), self._bridge.max_attempts
        record.delivery = Delivery(ended)
        if record.delivery.give_up_reason(limit) is not None:
            return [self._make_output(record, position)]
        alone = ended > 0 or limit <= 1
        with self._entered(self._gate.alone(ended, USUAL_TIMEOUT) if alone else self._gate.shared()):
            mark = self._marks.began(partition, record.offset)
            marked = commit_position(self.topic, partition, record.offset, mark)
            self._consumer.commit(offsets=[marked], asynchronous=False)
            log_careful_attempt(self.group, record, ended, limit)
            return [self._make_output(record, position)]

    def _make_in_time(self, records: list[ConsumedRecord], position: int) -> Iterator[BridgeOutput]:
        due = time.monotonic() + BATCH_SECONDS
        for record in records:
            yield self._make_output(record, position)
            if time.monotonic() > due or self._stop.is_set():
                return

    @contextmanager
    def _entered(self, turn: AbstractAsyncContextManager[None]) -> Iterator[None]:
        """Enter ``turn``, which belongs to the event loop, in this thread. Raises _Stopping."""
        self._in_loop(turn.__aenter__())
        try:
            yield
        finally:
            self._in_loop(turn.__aexit__(None, None, None))

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> None:
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return waiting.result(_POLL_TIMEOUT)
            except TimeoutError:
                if self._stop.is_set() and waiting.cancel():
                    raise _Stopping from None

    def _make_output(self, record: ConsumedRecord, position: int) -> BridgeOutput:
        """The output of a record; ``position``: the committed one of its partition."""
        if not record.is_for(self.group):
            return BridgeOutput()
        refused = self._refused_offsets.pop((record.partition, record.offset), None)
        if refused is None:
            with self._gate.watchdog.thread(self.group, record.position, FUNCTION_TIMEOUT):
                output = run_bridge_function(self._bridge, record, self.group, self._settings.max_message_bytes)
        else:  # the brokers refused its output; a dead letter without the value fits
            output = BridgeOutput(
                (dead_letter(record, self.group, refused, omit_value=True),), dead_letter_reason=refused
            )
        if output.dead_letter_reason is None:
            return output
        # A dead letter of a transaction that did not happen would count as one that may have been written.
        self._abort_hanging(record.partition, position, {self._dead_letters.topic_for(self.topic)})
        if self._dead_letters.is_written(record, self.group.__eq__):
            return BridgeOutput()
        return replace(output, records=tuple(self._dead_letters.encrypted(record, letter) for letter in output.records))

    def _isolate_refused(self, records: list[ConsumedRecord], error: KafkaTransactionError) -> None:
        """The brokers refuse the output of some message. A single one is given up; several are then sent one by one."""
        if len(records) == 1:
            self._refused_offsets[records[0].partition, records[0].offset] = error.verdict.reason
        else:
            self._individual_up_to[records[0].partition] = records[-1].offset


class _Stopping(Exception):
    """The process stops before an attempt has begun."""


def _error_message(error: Exception) -> str:
    if isinstance(error, KafkaTransactionError):
        return error.verdict.reason
    return error.message if isinstance(error, KafkaOperationError) else classify_kafka_error(error).reason  # pyright: ignore[reportArgumentType]
