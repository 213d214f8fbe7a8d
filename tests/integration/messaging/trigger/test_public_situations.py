"""Situations from the public trackers of Kafka clients, each rebuilt with consumers of this project."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from saga_workers.topics.topic_creation import create_topics
from sagas import Message, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    Shop,
    committed,
    count,
    fully_consumed,
    open_shop,
    produce_keyed,
    project_of,
    triggering,
)

NOWHERE = "127.0.0.1:1"
INSERT = "insert into effect (what, number) values (:what, :number)"


@pytest.fixture
async def shop(postgres_server: DatabaseServer) -> Shop:
    return await open_shop(postgres_server)


def _project(folder: Path, kafka: Broker, shop: Shop, topic: str, *, wait: float = 0.0, **settings: Any) -> Any:
    @consumer(topic, connection="shop", max_attempts=1)
    async def note(message: Message) -> None:
        await asyncio.sleep(wait)
        if message.value == "poison":
            raise ValueError("poison")
        await message.sql.execute(INSERT, what=message.key or "none", number=message.value)

    given = kafka.settings(outbox="shop", **settings)
    project = project_of(folder, given, NOWHERE, readers=[note], connections={"shop": shop.url})
    create_topics(project)
    return project


def _group(project: Any) -> str:
    return f"{project.settings.kafka.prefix}-consumer-note"


def _numbers(shop: Shop) -> Counter[int]:
    return Counter(number for _, number in shop.effects())


async def test_positions_that_an_operator_has_set_are_taken(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    """`kafka-consumer-groups --reset-offsets` writes no metadata; the first record behind it is not skipped."""
    topic = kafka.create_topic(partitions=2)
    project = _project(tmp_path, kafka, shop, topic)
    produce_keyed(kafka, topic, [(str(number % 4), number) for number in range(20)])
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, _group(project), topic))
    produce_keyed(kafka, topic, [("0", 100), ("1", 101)])
    ends = [TopicPartition(topic, partition, high) for partition, (_, high) in kafka.offsets(topic).items()]
    member = Consumer({"bootstrap.servers": kafka.address, "group.id": _group(project)})
    member.commit(offsets=ends, asynchronous=False)
    member.close()
    produce_keyed(kafka, topic, [("0", 200), ("1", 201)])
    async with triggering(project):
        await until_in_thread(lambda: len(shop.effects()) == 22)
    assert _numbers(shop) == Counter([*range(20), 200, 201])


async def test_a_dead_letter_that_is_published_again_does_not_grow(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    """A dead letter has the headers of its last failure alone; its topic has fewer partitions than the source."""
    topic = kafka.create_topic(partitions=3)
    project = _project(tmp_path, kafka, shop, topic)
    producer = Producer({"bootstrap.servers": kafka.address})
    producer.produce(topic, b'"poison"', "k", partition=2, headers=[("team", b"a")])
    producer.flush(30)
    sizes = []
    async with triggering(project):
        for number in range(3):
            await until_in_thread(lambda number=number: len(kafka.read_committed(f"{topic}.dlq")) == number + 1)
            letter = kafka.read_committed(f"{topic}.dlq")[-1]
            sizes.append(len(letter.headers))
            producer.produce(topic, b'"poison"', "k", headers=dict(letter.headers))
            producer.flush(30)
    assert len(set(sizes)) == 1


async def test_records_without_key_and_headers(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    project = _project(tmp_path, kafka, shop, topic)
    producer = Producer({"bootstrap.servers": kafka.address})
    for number in range(5):
        producer.produce(topic, str(number))
    producer.produce(topic, b"5", b"")
    assert producer.flush(30) == 0
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, _group(project), topic))
    assert _numbers(shop) == Counter(range(6))


@pytest.mark.slow  # test_bridge_rebalances.py and test_consumers.py move partitions, too
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_members_that_come_and_go_while_handlers_are_busy(
    kafka: Broker, shop: Shop, tmp_path: Path, strategy: str
) -> None:
    """Partitions are paused, revoked with records in flight and given back: each is handled once, in order of keys."""
    topic = kafka.create_topic(partitions=4)
    project = _project(tmp_path, kafka, shop, topic, wait=0.01, client={"partition.assignment.strategy": strategy})
    produce_keyed(kafka, topic, [(str(number % 8), number) for number in range(1200)])
    async with triggering(project):
        for _ in range(4):
            with contextlib.suppress(TimeoutError):
                async with triggering(project):
                    await asyncio.sleep(2)
            await asyncio.sleep(1)
        await until_in_thread(lambda: fully_consumed(kafka, _group(project), topic))
    assert _numbers(shop) == Counter(range(1200))
    for key in map(str, range(8)):
        numbers = [number for what, number in shop.effects() if what == key]
        assert numbers == sorted(numbers)


@pytest.mark.slow  # tests/integration/operators/test_reader_states.py has it
async def test_retention_overtakes_a_slow_reader(
    kafka: Broker, shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The records behind its position are deleted while it reads: it goes on at what is left, and says what is lost."""
    topic = kafka.create_topic()
    client = {"queued.max.messages.kbytes": "1", "fetch.message.max.bytes": "1000"}
    project = _project(tmp_path, kafka, shop, topic, wait=0.05, client=client)
    produce_keyed(kafka, topic, [("k", number) for number in range(3000)])
    async with triggering(project):
        await until_in_thread(lambda: len(shop.effects()) > 5)
        kafka.delete_records(topic, 2990)
        await until_in_thread(lambda: fully_consumed(kafka, _group(project), topic))
    numbers = _numbers(shop)
    assert set(range(2990, 3000)) <= set(numbers)
    assert max(numbers.values()) == 1
    assert len(numbers) == 3000 or "were deleted before they were read" in caplog.text


@pytest.mark.slow
async def test_a_consumer_of_a_dead_letter_topic(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic = f"{kafka.create_topic()}.dlq"
    kafka.create_topic(topic)
    project = _project(tmp_path, kafka, shop, topic)
    kafka.produce(topic, 1, "poison", 2, headers={"sagadlqreason": "earlier", "sagadlqgroup": "another"})
    async with triggering(project) as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, _group(project), topic))
        assert count(metrics, "saga_dead_letters_total") == 1
    [letter] = kafka.read_committed(f"{topic}.dlq")
    assert letter.headers["sagadlqreason"] == "ValueError: poison"
    assert committed(kafka, _group(project), topic) == {0: 3}
