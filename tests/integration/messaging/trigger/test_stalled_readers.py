"""Readers whose client fetches nothing although records wait, as after a topic was created again during a rebalance;
here the client is paused behind the reader's back. And readers for which nothing is there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from saga_workers.trigger import stalled_fetching
from saga_workers.trigger.bridge import BridgeReader
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.reader import TopicReader
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas import Message, bridge
from sagas.actions.consumers import HANDLER_ATTRIBUTE
from sagas.settings import KafkaSettings
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until
from tests.integration.messaging.trigger.trigger_environment import fresh

JOINS_AGAIN = "nothing is fetched although records wait"
PATIENCE = 1.0


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalled_fetching, "PATIENCE", PATIENCE)


@dataclass
class Reading:
    """A reader, and the values that it has ``got``."""

    reader: TopicReader | BridgeReader
    got: list[Any]

    def pause(self, *partitions: int) -> None:
        """Pause the client, of which the reader knows nothing."""
        reader = self.reader
        client: Any = reader._client if isinstance(reader, TopicReader) else reader._consumer
        client.pause([TopicPartition(reader.topic, partition) for partition in partitions])


def read_topic(settings: KafkaSettings, topic: str) -> Reading:
    got: list[Any] = []

    async def note(record: ConsumedRecord) -> None:
        got.append(record.offset)

    return Reading(TopicReader(settings, f"{settings.prefix}-readers", topic, note), got)


def read_by_bridge(settings: KafkaSettings, topic: str) -> Reading:
    got: list[Any] = []

    @bridge(topic, to=f"{topic}-copy")
    def copier(message: Message) -> None:
        got.append(message.offset)

    metrics = TriggerMetrics()
    copying = getattr(copier, HANDLER_ATTRIBUTE)
    letters = DeadLetters(settings, metrics)
    return Reading(BridgeReader(settings, copying, f"{settings.prefix}-bridge", letters, metrics), got)


Make = Callable[[KafkaSettings, str], Reading]
READERS = pytest.mark.parametrize("make", [read_topic, read_by_bridge])


@contextlib.asynccontextmanager
async def running(reading: Reading) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(reading.reader.run(stop, 1.0))
    try:
        yield
    finally:
        stop.set()
        await task


def writing_to(kafka: Broker, topic: str) -> Callable[[int], None]:
    """A function that writes a record to a partition."""
    producer = Producer({"bootstrap.servers": kafka.address})

    def write(partition: int) -> None:
        producer.produce(topic, b"1", partition=partition)
        assert producer.flush(30) == 0

    return write


@pytest.mark.sampled(keep=1)
@READERS
async def test_a_reader_that_gets_nothing_although_records_wait_joins_again(
    make: Make, kafka: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    settings, topic = kafka.settings(prefix=fresh("p")), kafka.create_topic()
    reading = make(settings, topic)
    async with running(reading):
        kafka.produce(topic, 1)
        await until(lambda: reading.got == [0])
        await asyncio.sleep(3 * PATIENCE)
        assert JOINS_AGAIN not in caplog.text
        reading.pause(0)
        kafka.produce(topic, 2)
        await until(lambda: reading.got == [0, 1])
        assert JOINS_AGAIN in caplog.text
        kafka.produce(topic, 3)
        await until(lambda: reading.got == [0, 1, 2])
        await until(lambda: list(reading.reader.lags()) == [(reading.reader.group, topic, 0, 0)])


@READERS
async def test_records_of_other_partitions_do_not_hide_a_stalled_one(
    make: Make, kafka: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    settings, topic = kafka.settings(prefix=fresh("p")), kafka.create_topic(partitions=2)
    reading = make(settings, topic)
    write = writing_to(kafka, topic)
    async with running(reading):
        for partition in (0, 1):
            write(partition)
        await until(lambda: len(reading.got) == 2)
        reading.pause(0)
        write(0)

        async def joins_again() -> bool:
            write(1)
            return JOINS_AGAIN in caplog.text

        await until(joins_again, pause=0.4)
        await until(lambda: sum(lag for *_, lag in reading.reader.lags()) == 0)


@READERS
@pytest.mark.slow
async def test_a_reader_with_nothing_before_it_stays(
    make: Make, kafka: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle topic, deleted records, and transactions of others that are open, and then aborted at its end."""
    settings, topic = kafka.settings(prefix=fresh("p")), kafka.create_topic(partitions=2)
    reading = make(settings, topic)
    write = writing_to(kafka, topic)
    async with running(reading):
        await asyncio.sleep(3 * PATIENCE)  # it has never had a record
        write(0)
        await until(lambda: reading.got == [0])
        with kafka.open_transaction(topic, partitions=2):
            await asyncio.sleep(3 * PATIENCE)
            write(0)  # behind the open one
            await asyncio.sleep(3 * PATIENCE)
            assert reading.got == [0]
        await until(lambda: len(reading.got) == 2)
        kafka.delete_records(topic, 2)
        await asyncio.sleep(3 * PATIENCE)
    reasons = [record.getMessage() for record in caplog.records if record.name == "saga.trigger"]
    assert not any(JOINS_AGAIN in reason or "restarts" in reason for reason in reasons)


async def test_a_reader_that_holds_enough_messages_stays(kafka: Broker, caplog: pytest.LogCaptureFixture) -> None:
    settings, topic = kafka.settings(prefix=fresh("p")), kafka.create_topic()
    may_end, got = asyncio.Event(), list[int]()

    async def handle(record: ConsumedRecord) -> None:
        await may_end.wait()
        got.append(record.offset)

    reader = TopicReader(settings, f"{settings.prefix}-readers", topic, handle, max_pending=2, batch_size=1)
    async with running(Reading(reader, got)):
        kafka.produce(topic, *range(20))
        await until(lambda: reader._paused is True)
        await asyncio.sleep(3 * PATIENCE)
        may_end.set()
        await until(lambda: len(got) == 20)
        await asyncio.sleep(PATIENCE)
    assert JOINS_AGAIN not in caplog.text
