"""A bridge: consume, transform, produce, and the consumed offsets in the producer's transaction.

Every partition has its own transactional id, the same in every process that ever owns it: taking a partition over
ends the transaction of its last owner, and fences that owner off if it still lives. There is one way back from any
trouble, a session from the start: group, partitions, producers, committed offsets.

Every record says what it was made from. So a producer that is new finds what its predecessor has left open in a topic,
and whether that had happened: what was read up to is committed, what comes from behind that is not.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from saga_activities.kafka import lost_ends
from saga_activities.kafka.errors import classify
from saga_activities.kafka.topics import Cluster, KafkaProblem
from saga_activities.kafka.transactions import TransactionalProducer, TransactionTrouble
from saga_workers.trigger.bridge_output import Output, outputs
from saga_workers.trigger.dead_letters import DeadLetters, dead_letter
from saga_workers.trigger.membership import Highs, membership
from saga_workers.trigger.metrics import Lag, TriggerMetrics
from saga_workers.trigger.reach import Reach
from saga_workers.trigger.records import Record
from sagas.consumers import Bridge
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.trigger")

BATCH = 750
"""Messages of one transaction, as in Kafka's own test of its transactions."""
_POLL = 0.2
_FILL = 0.05

SOURCE = "sagabridge"
"""The header of a record that a bridge has written: group/topic/partition/offset of what it was made from."""


class Bridging:
    """Runs one bridge in a thread of its own."""

    def __init__(
        self,
        settings: KafkaSettings,
        bridge: Bridge,
        group: str,
        dead_letters: DeadLetters,
        metrics: TriggerMetrics,
        *,
        batch: int = BATCH,
    ) -> None:
        self.group, self.topic = group, bridge.topic
        self._settings = settings
        self._bridge = bridge
        self._dead = dead_letters
        self._metrics = metrics
        self._batch = batch
        self._stop = threading.Event()
        self._consumer: Any = None
        self._producers: dict[int, TransactionalProducer] = {}
        self._used: dict[int, set[str]] = {}
        self._positions: dict[int, int] = {}
        self._moved: set[int] = set()
        self._highs = Highs()
        self._reach = Reach(self.group)
        self._refused: dict[tuple[int, int], str] = {}
        self._singly: dict[int, int] = {}

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Run until ``stop``; the transaction that is open then is committed, if that takes less than ``grace``."""
        # The loop's own threads are few, and databases find their servers with them: none is taken for good.
        thread = ThreadPoolExecutor(1, self.group)
        running = asyncio.get_running_loop().run_in_executor(thread, self._run)
        thread.shutdown(wait=False)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        self._stop.set()
        await asyncio.wait({running}, timeout=grace)
        if running.done():
            running.result()

    def health(self) -> str | None:
        """None, or why nothing can be read at the moment."""
        return self._reach.health()

    def lags(self) -> Iterator[Lag]:
        for partition, position in list(self._positions.items()):
            behind = self._highs.behind(partition, position)
            if behind is not None:
                yield self.group, self.topic, partition, behind

    def _run(self) -> None:
        from confluent_kafka import KafkaException

        troubles = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._session()
            except (KafkaException, KafkaProblem, TransactionTrouble) as error:
                troubles = 0 if time.monotonic() - began > 60 else troubles + 1
                log.warning("%s begins again: %s", self.group, _sentence(error))
                self._stop.wait(min(0.2 * 2**troubles, 5.0))

    def _session(self) -> None:
        """Work until told to stop. Raises KafkaException or TransactionTrouble whenever it is not certain what the
        brokers have."""
        from confluent_kafka import Consumer

        self._consumer = Consumer({**membership(self._settings, self.group), **self._reach.properties()})
        try:
            self._consumer.subscribe([self.topic], on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone)
            while not self._stop.is_set():
                for partition, records in self._read().items():
                    for portion in self._portions(partition, records):
                        if partition in self._producers:
                            self._transaction(partition, portion)
        finally:
            self._producers.clear()
            self._positions.clear()
            self._consumer.close()

    def _read(self) -> dict[int, list[Record]]:
        from confluent_kafka import KafkaError, KafkaException

        self._highs.ask(self._consumer)
        first = self._consumer.poll(_POLL)
        if first is None:
            return {}
        self._moved.clear()
        rest = self._consumer.consume(self._batch - 1, _FILL)
        found: dict[int, list[Record]] = {}
        # If its partition moves meanwhile, the library takes back what it has collected, but not what we hold already.
        for read in rest if first.partition() in self._moved else (first, *rest):
            error = read.error()
            if error is None:
                record, before = Record(read), found.setdefault(read.partition(), [])
                self._must_be_new(record, before[-1].offset + 1 if before else 0)
                before.append(record)
            elif error.code() == KafkaError._PARTITION_EOF:
                if read.partition() in self._producers:
                    self._positions[read.partition()] = read.offset()
            elif error.fatal():
                raise KafkaException(error)
            else:
                log.warning("%s cannot read %s: %s", self.group, self.topic, classify(error).reason)
        return found

    def _must_be_new(self, record: Record, collected: int) -> None:
        """The library may fetch again from where it began (it was seen to, after partitions had moved), and a topic may
        be made anew. What is committed decides: that is asked when we begin again."""
        position = max(collected, self._positions.get(record.partition, 0))
        if record.offset < position:
            raise KafkaProblem(f"{record.place} came again, after all up to {position}")

    def _assigned(self, _: Any, partitions: list[Any]) -> None:
        """Take partitions over. The committed offsets are read after this, so they are those of the last owner."""
        for one in partitions:
            self._moved.add(one.partition)
            self._positions.pop(one.partition, None)
            id = f"{self._settings.prefix}-bridge-{self._bridge.name}-{one.partition}"
            self._producers[one.partition] = TransactionalProducer(self._settings, id).open()
            self._used[one.partition] = set()
        log.info("%s reads partitions %s of %s", self.group, [one.partition for one in partitions], self.topic)

    def _gone(self, _: Any, partitions: list[Any]) -> None:
        for one in partitions:
            self._moved.add(one.partition)
            self._producers.pop(one.partition, None)
            self._positions.pop(one.partition, None)

    def _portions(self, partition: int, records: list[Record]) -> list[list[Record]]:
        """What goes into one transaction. The broker refuses a whole batch for one event that is too large: the
        messages of such a batch get transactions of their own, so that it is known which one it was."""
        singly = [one for one in records if one.offset <= self._singly.get(partition, -1)]
        rest = records[len(singly) :]
        return [*([one] for one in singly), *([rest] if rest else [])]

    def _transaction(self, partition: int, records: list[Record]) -> None:
        from confluent_kafka import TopicPartition

        producer = self._producers[partition]
        made = [self._output(record) for record in records]
        self._end_tries(partition, records[0].offset, {one["topic"] for output in made for one in output.records})
        producer.begin(self._settings.transaction_timeout)
        dead = 0
        try:
            for record, output in zip(records, made, strict=True):
                source = (SOURCE, f"{self.group}/{record.place}")
                for one in output.records:
                    headers = [*(header for header in one["headers"] if header[0] != SOURCE), source]
                    producer.produce(**{**one, "headers": headers})
                if output.dead is not None:
                    dead += 1
                    log.warning("%s gives up %s: %s", self.group, record.place, output.dead)
            producer.flush()
        except TransactionTrouble as trouble:
            if trouble.verdict.scope == "event":
                self._take_apart(records, trouble)
            raise
        position = TopicPartition(self.topic, partition, records[-1].offset + 1)
        producer.send_offsets([position], self._consumer.consumer_group_metadata())
        producer.commit()
        self._positions[partition] = position.offset
        self._metrics.consumed(self._bridge.name, self.topic, "done", len(records) - dead)
        for _ in range(dead):
            self._metrics.dead(self.group, self.topic)

    def _end_tries(self, partition: int, position: int, topics: set[str]) -> None:
        """Before the producer of a partition writes to these topics for the first time. Raises KafkaProblem,
        TransactionTrouble."""
        ours = f"{self.group}/{self.topic}/{partition}/"

        def is_ours(headers: Mapping[str, str], *, happened: bool) -> bool:
            source = headers.get(SOURCE, "")
            offset = source.removeprefix(ours)
            return source != offset and offset.isdecimal() and (int(offset) < position) is happened

        fresh = sorted(topics - self._used[partition])
        if not fresh:
            return
        if missing := Cluster(self._settings).missing(fresh):
            raise KafkaProblem("; ".join(f"{topic}: {reason}" for topic, reason in missing.items()))
        for topic in fresh:
            tried, kept = partial(is_ours, happened=False), partial(is_ours, happened=True)
            lost_ends.end_tries(self._settings, self._producers[partition], topic, tried, kept)
            self._used[partition].add(topic)

    def _output(self, record: Record) -> Output:
        refused = self._refused.pop((record.partition, record.offset), None)
        if refused is None:
            output = outputs(self._bridge, record, self.group)
        else:  # the brokers took nothing of what it became; without its value the letter fits
            output = Output((dead_letter(record, self.group, refused, omit=True),), dead=refused)
        if output.dead is not None:
            self._dead.topic_for(self.topic)
        return output

    def _take_apart(self, records: list[Record], trouble: TransactionTrouble) -> None:
        """The brokers refuse something of these messages. One is given up; of several, each is tried by itself."""
        if len(records) == 1:
            self._refused[records[0].partition, records[0].offset] = trouble.verdict.reason
        else:
            self._singly[records[0].partition] = records[-1].offset


def _sentence(error: Exception) -> str:
    if isinstance(error, TransactionTrouble):
        return error.verdict.reason
    return error.message if isinstance(error, KafkaProblem) else classify(error).reason  # pyright: ignore[reportArgumentType]
