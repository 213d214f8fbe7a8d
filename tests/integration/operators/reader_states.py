"""The states in which a reader of a topic stands still, how each is made, and what shows it.

docs/how-to/find-stuck.md has them in a table, which is compared with this list.
"""

from __future__ import annotations

import asyncio
import shlex
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config, producer_config
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.doctor.kafka_checks import check_kafka
from saga_workers.topics.topic_creation import create_topics
from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.replies import read_outbox_id
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas import Message, consumer
from sagas.project import Project
from tests.helpers.kafka_broker import Broker, BrokerProcess
from tests.helpers.processes import TriggerProcess
from tests.helpers.waiting import until, until_in_thread
from tests.integration.messaging.kafka.secured_broker import AclOperation, ResourceType, allow, forbid, settings
from tests.integration.messaging.trigger.trigger_environment import (
    count,
    fully_consumed,
    project_of,
    triggering,
    write_project,
)

NOWHERE = "127.0.0.1:1"

MODULE = """
from sagas import Message, consumer

@consumer("{topic}", connection="shop")
async def book(message: Message) -> None:
    pass
"""


ASKS = """
saga: asks
steps: [{id: ask, uses: kafka.request, compensate: kafka.request, with: {topic: PREFIX-commands, value: {}}}]
"""


@dataclass
class Readers:
    """A consumer `book` of one topic, with its inbox, or the listener for replies in a topic. ``resting``: the handler
    of the consumer waits until this is set; ``handled``: the values of its messages.
    """

    broker: Broker
    project: Project
    topic: str
    group: str
    resting: asyncio.Event
    handled: list[int]
    definition: str = ""

    @classmethod
    async def make(cls, folder: Path, broker: Broker, *, replies: str | None = None) -> Readers:
        """``broker``: with ACLs if it is a process of its own. ``replies``: the address of Temporal for a listener."""
        mark = f"r{uuid.uuid4().hex[:8]}"
        topic = f"{mark}-orders" if replies is None else f"{mark}-replies"
        kafka = broker.settings(prefix=mark, outbox="shop")
        if isinstance(broker, BrokerProcess):
            kafka = settings(broker, "saga", prefix=mark, outbox="shop")
            allow(broker, ResourceType.TOPIC, mark, AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE)
            allow(broker, ResourceType.GROUP, mark, AclOperation.READ)
            allow(broker, ResourceType.TRANSACTIONAL_ID, mark, AclOperation.WRITE)
        url = f"sqlite:///{folder / 'shop.db'}"
        engine = open_engine("shop", url, 1)
        await create_tables(engine)
        outbox_id = await read_outbox_id(engine)
        await engine.dispose()
        resting, handled = asyncio.Event(), []
        resting.set()

        @consumer(topic, connection="shop")
        async def book(message: Message) -> None:
            await resting.wait()
            handled.append(message.value)

        if replies is None:
            project = project_of(folder, kafka, NOWHERE, readers=[book], connections={"shop": url})
            create_topics(project)
            return cls(broker, project, topic, f"{mark}-consumer-book", resting, handled)
        definition = ASKS.replace("PREFIX", mark)
        project = project_of(folder, kafka, replies, definitions={"asks": definition}, connections={"shop": url})
        create_topics(project)
        return cls(broker, project, topic, f"{mark}-replies-{outbox_id}-{topic}", resting, handled, definition)

    def produce(self, *numbers: int) -> None:
        self.broker.produce(self.topic, *numbers, key="a")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[TriggerMetrics]:
        async with triggering(self.project, grace=1.0) as metrics:
            yield metrics

    async def has_read(self, *numbers: int) -> None:
        """Produce records, and end when they are handled and nobody reads."""
        self.produce(*numbers)
        async with self.reading():
            await until_in_thread(lambda: fully_consumed(self.broker, self.group, self.topic))

    def partition(self) -> int:
        """The partition of all records."""
        [partition] = [number for number, ends in self.broker.offsets(self.topic).items() if ends != (0, 0)]
        return partition

    def commit(self, offset: int, mark: DeliveryMark) -> None:
        client = Consumer(consumer_config(self.project.settings.kafka, self.group))
        place = TopicPartition(self.topic, self.partition(), offset, metadata=str(mark))
        client.commit(offsets=[place], asynchronous=False)
        client.close()

    async def follow(self, command: str) -> None:
        """Run a `saga trigger` that doctor advises, until no check of doctor fails: dead letters only inform."""
        folder = write_project(
            self.project.settings.root / "again",
            self.broker,
            temporal=self.project.settings.temporal.address or NOWHERE,
            database=self.project.settings.sql_connection("shop").url,
            prefix=self.project.settings.kafka.prefix,
            module="" if self.definition else MODULE.format(topic=self.topic),
        )
        if self.definition:
            (folder / "asks.saga.yaml").write_text(self.definition)
            settings = folder / "saga.toml"
            settings.write_text(settings.read_text().replace("[kafka]\n", '[kafka]\noutbox = "shop"\n'))
        self.resting.set()
        with TriggerProcess("trigger", folder, *shlex.split(command)[2:]):

            async def satisfied() -> bool:
                return all(result.ok is not False for result in (await self.doctor()).values())

            await until(satisfied)

    async def doctor(self) -> dict[str, DoctorResult]:
        return {result.check: result for result in await check_kafka(self.project)}


Maker = Callable[[Readers], AbstractAsyncContextManager[TriggerMetrics | None]]


@dataclass(frozen=True)
class ReaderState:
    """``doctor``: the check, ``message``: part of what it says; ``metric``: the one of `saga trigger`, if it runs."""

    name: str
    make: Maker
    doctor: str
    message: str
    metric: str | None
    alert: str
    secured: bool = False
    replies: bool = False


@asynccontextmanager
async def unread(readers: Readers) -> AsyncIterator[None]:
    await readers.has_read(1, 2)
    readers.produce(3)
    yield


@asynccontextmanager
async def position_lost(readers: Readers) -> AsyncIterator[TriggerMetrics]:
    await readers.has_read(1, 2)
    admin = KafkaAdmin(readers.project.settings.kafka)._admin
    admin.delete_consumer_groups([readers.group])[readers.group].result(30)
    async with readers.reading() as metrics:
        yield metrics


@asynccontextmanager
async def created_again(readers: Readers) -> AsyncIterator[None]:
    """Kafka forgets the positions in a topic that is deleted, but one may be committed late, or be restored."""
    await readers.has_read(*range(8))
    partition, positions = readers.partition(), KafkaAdmin(readers.project.settings.kafka)
    offset, metadata = positions.committed_positions(readers.group, readers.topic)[partition]
    readers.broker.delete_topic(readers.topic)
    readers.broker.create_topic(readers.topic, partitions=4)
    readers.produce(1, 2, 3)
    readers.commit(offset, DeliveryMark.parse(metadata))
    yield


@asynccontextmanager
async def truncated(readers: Readers) -> AsyncIterator[None]:
    """A topic whose end is before the committed offset, as after an unclean election of a leader."""
    readers.produce(1, 2, 3)
    topic_id = KafkaAdmin(readers.project.settings.kafka).topic_id(readers.topic)
    readers.commit(8, DeliveryMark(topic_id))
    yield


@asynccontextmanager
async def overtaken(readers: Readers) -> AsyncIterator[None]:
    await readers.has_read(1, 2)
    readers.produce(*range(3, 9))
    readers.broker.delete_records(readers.topic, 8, readers.partition())
    yield


@asynccontextmanager
async def crash_loop(readers: Readers) -> AsyncIterator[TriggerMetrics]:
    """A record that has ended two processes; the third one handles it."""
    readers.resting.clear()
    readers.produce(1)
    topic_id = KafkaAdmin(readers.project.settings.kafka).topic_id(readers.topic)
    readers.commit(0, DeliveryMark(topic_id, "another", 64, 0, 2))
    async with readers.reading() as metrics:
        yield metrics
        readers.resting.set()


@asynccontextmanager
async def reply_crash_loop(readers: Readers) -> AsyncIterator[TriggerMetrics]:
    """A reply that has ended its processes, and that cannot be recorded meanwhile."""
    insert = "insert into saga_request (step_key, saga_id, step, generation, op, reply_topic, created_at) values"
    with closing(sqlite3.connect(readers.project.settings.root / "shop.db", isolation_level=None)) as database:
        database.execute(f"{insert} ('a', 'a', 'a', 1, 'do', ?, 0)", (readers.topic,))
        readers.broker.produce(readers.topic, {}, key="a", headers={"sagakey": "a", "sagaoutcome": "done"})
        topic_id = KafkaAdmin(readers.project.settings.kafka).topic_id(readers.topic)
        readers.commit(0, DeliveryMark(topic_id, "another", 64, 0, 2))
        readers.resting.clear()
        database.execute("begin immediate")

        async def release() -> None:
            await readers.resting.wait()
            database.execute("rollback")

        releasing = asyncio.create_task(release())
        async with readers.reading() as metrics:
            yield metrics
            readers.resting.set()
            await releasing


@asynccontextmanager
async def held_back(readers: Readers) -> AsyncIterator[None]:
    producer = Producer(producer_config(readers.project.settings.kafka, transactional_id=f"{readers.topic}-open"))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(readers.topic, b"1")
    producer.flush(30)
    yield
    producer.abort_transaction(30)


@asynccontextmanager
async def topic_gone(readers: Readers) -> AsyncIterator[TriggerMetrics]:
    readers.produce(1)
    async with readers.reading() as metrics:
        await until_in_thread(lambda: fully_consumed(readers.broker, readers.group, readers.topic))
        readers.broker.delete_topic(readers.topic)
        yield metrics
        readers.broker.create_topic(readers.topic, partitions=4)
        await goes_on(metrics)


@asynccontextmanager
async def without_topic_right(readers: Readers) -> AsyncIterator[TriggerMetrics]:
    async with without_right(readers, ResourceType.TOPIC, AclOperation.READ) as metrics:
        yield metrics


@asynccontextmanager
async def without_group_right(readers: Readers) -> AsyncIterator[TriggerMetrics]:
    async with without_right(readers, ResourceType.GROUP, AclOperation.READ) as metrics:
        yield metrics


@asynccontextmanager
async def without_right(readers: Readers, kind: Any, operation: Any) -> AsyncIterator[TriggerMetrics]:
    readers.produce(1)
    prefix = readers.project.settings.kafka.prefix
    async with readers.reading() as metrics:
        await until_in_thread(lambda: readers.handled)
        forbid(readers.broker, kind, prefix, operation)
        yield metrics
        allow(readers.broker, kind, prefix, operation)
        await goes_on(metrics)


async def goes_on(metrics: TriggerMetrics) -> None:
    """Until the running reader has noticed that its problem has ended, although no record comes."""
    await until_in_thread(lambda: count(metrics, "saga_trigger_stopped") == 0)


READERS, TOPICS = "kafka triggers", "kafka topics"
STOPPED = ("saga_trigger_stopped", "SagaReaderStopped")
UNREAD = ("saga_trigger_expected", "SagaTopicUnread")

READER_STATES = (
    ReaderState("no process reads a topic", unread, READERS, "no process reads them", *UNREAD),
    ReaderState(
        "a reader has lost its position, or has another name or prefix",
        position_lost,
        READERS,
        "book has no position in",
        "saga_trigger_undecided",
        "SagaReaderUndecided",
    ),
    ReaderState("a topic was created again", created_again, READERS, "was deleted and created again", *UNREAD),
    ReaderState("a partition was truncated", truncated, READERS, "it was truncated", *UNREAD),
    ReaderState("retention has overtaken a reader", overtaken, READERS, "deleted before book had read", *UNREAD),
    ReaderState(
        "a record ends the process of its reader",
        crash_loop,
        READERS,
        "a process was ended while book handled",
        "saga_trigger_ended_attempts",
        "SagaReaderCrashLoop",
    ),
    ReaderState(
        "nobody receives the replies to commands",
        unread,
        READERS,
        "wait for the listener for replies, and no process reads them",
        *UNREAD,
        replies=True,
    ),
    ReaderState(
        "a reply ends the process of its listener",
        reply_crash_loop,
        READERS,
        "a process was ended while the listener for replies handled",
        "saga_trigger_ended_attempts",
        "SagaReaderCrashLoop",
        replies=True,
    ),
    ReaderState(
        "a transaction holds readers back", held_back, "kafka readers", "holds back", None, "SagaReadersHeldBack"
    ),
    ReaderState("the topic of a reader does not exist", topic_gone, TOPICS, "does not exist", *STOPPED),
    ReaderState("a reader may not read its topic", without_topic_right, TOPICS, "ACL", *STOPPED, secured=True),
    ReaderState(
        "a reader may not use its group", without_group_right, READERS, "consumer group", *STOPPED, secured=True
    ),
)
