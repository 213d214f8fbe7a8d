"""A topic that is deleted and created again has the same name and another id: it is read from its beginning."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config
from saga_workers.trigger import reader
from saga_workers.trigger.delivery import DeliveryMark
from sagas import Message, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TriggerProcess
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    Shop,
    count,
    fresh,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
    write_project,
)

NOWHERE = "127.0.0.1:1"
INSERT = "insert into effect (what, number) values (:what, :number)"


@pytest.fixture
async def shop(postgres_server: DatabaseServer) -> Shop:
    return await open_shop(postgres_server)


def _project(folder: Path, kafka: Broker, shop: Shop, topic: str) -> Any:
    @consumer(topic, connection="shop", name="note")
    async def note(message: Message) -> None:
        await message.sql.execute(INSERT, what=message.id, number=message.value)

    return project_of(folder, kafka.settings(outbox="shop"), NOWHERE, readers=[note], connections={"shop": shop.url})


def _again(kafka: Broker, topic: str, values: range, partitions: int = 2) -> None:
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=partitions)
    kafka.produce(topic, *values)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("second", [3, 8, 60])
async def test_while_it_is_read(
    kafka: Broker, shop: Shop, tmp_path: Path, second: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With fewer, as many, and more records than were read before."""
    topic = kafka.create_topic(partitions=2)
    project = _project(tmp_path, kafka, shop, topic)
    group = f"{project.settings.kafka.prefix}-consumer-note"
    kafka.produce(topic, *range(8))
    with caplog.at_level(logging.WARNING, logger="saga.trigger"):
        async with triggering(project) as metrics:
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
            _again(kafka, topic, range(100, 100 + second))
            await until_in_thread(lambda: len(shop.effects()) >= 8 + second)
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
            assert count(metrics, "saga_dead_letters_total") == 0
    assert sorted(number for _, number in shop.effects()) == [*range(8), *range(100, 100 + second)]
    assert "the topic was deleted and created again; it is read from its beginning" in caplog.text


async def test_its_position_is_committed_before_a_record_is_handled(
    kafka: Broker, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be killed after any record, and Kafka has dropped the positions of the group with the topic."""
    monkeypatch.setattr(reader, "COMMIT_INTERVAL", 3600.0)
    topic = kafka.create_topic(partitions=2)
    committed: list[Mapping[int, tuple[int, str]]] = []

    @consumer(topic, connection="shop", name="note")
    async def note(message: Message) -> None:
        if message.value >= 100:
            committed.append(await asyncio.to_thread(admin.committed_positions, group, topic))
        await message.sql.execute(INSERT, what=message.id, number=message.value)

    settings = kafka.settings(outbox="shop")
    project = project_of(tmp_path, settings, NOWHERE, readers=[note], connections={"shop": shop.url})
    group, admin = f"{project.settings.kafka.prefix}-consumer-note", KafkaAdmin(project.settings.kafka)
    kafka.produce(topic, *range(8))
    async with triggering(project):
        await until_in_thread(lambda: len(shop.effects()) == 8)
        _again(kafka, topic, range(100, 105))
        await until_in_thread(lambda: len(shop.effects()) == 13)
    topic_id = admin.topic_id(topic)
    assert len(committed) == 5
    for positions in committed:
        assert {partition: offset for partition, (offset, _) in positions.items()} == {0: 0, 1: 0}
        assert {DeliveryMark.parse(metadata).topic_id for _, metadata in positions.values()} == {topic_id}


async def test_while_the_reader_is_down(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic = kafka.create_topic(partitions=2)
    project = _project(tmp_path, kafka, shop, topic)
    group = f"{project.settings.kafka.prefix}-consumer-note"
    kafka.produce(topic, *range(8))
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    _again(kafka, topic, range(100, 140))
    async with triggering(project):
        await until_in_thread(lambda: len(shop.effects()) >= 48)
    assert sorted(number for _, number in shop.effects()) == [*range(8), *range(100, 140)]


async def test_records_that_a_position_has_not_got_are_named(
    kafka: Broker, shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Deleted before they were read; or the position is beyond the end, and what is there is not skipped."""
    topic = kafka.create_topic()
    project = _project(tmp_path, kafka, shop, topic)
    group = f"{project.settings.kafka.prefix}-consumer-note"
    kafka.produce(topic, *range(4))
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    kafka.produce(topic, *range(4, 12))
    kafka.delete_records(topic, 9)
    with caplog.at_level(logging.WARNING, logger="saga.trigger"):
        async with triggering(project):
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        assert sorted(number for _, number in shop.effects()) == [0, 1, 2, 3, 9, 10, 11]
        assert "5 records were deleted before they were read" in caplog.text
        client = Consumer(consumer_config(project.settings.kafka, group))
        client.commit(offsets=[TopicPartition(topic, 0, 40)], asynchronous=False)
        client.close()
        kafka.produce(topic, 12)
        async with triggering(project):
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    assert sorted(number for _, number in shop.effects()) == [0, 1, 2, 3, 9, 10, 11, 12]
    assert "the position is beyond the end of the partition, 13" in caplog.text


@pytest.mark.slow
async def test_a_bridge(kafka: Broker, tmp_path: Path) -> None:
    source, target = kafka.create_topic(partitions=2), kafka.create_topic()

    @bridge(source, to=target, name="copier")
    def copy(message: Message) -> object:
        return message.value

    project = project_of(tmp_path, kafka.settings(), NOWHERE, readers=[copy])
    kafka.produce(source, *range(8))
    async with triggering(project):
        await until_in_thread(lambda: len(kafka.read_committed(target)) == 8)
        _again(kafka, source, range(100, 130))
        await until_in_thread(lambda: len(kafka.read_committed(target)) >= 38)
    _again(kafka, source, range(200, 230))
    async with triggering(project):
        await until_in_thread(lambda: len(kafka.read_committed(target)) >= 68)
    copied = sorted(json.loads(record.value) for record in kafka.read_committed(target))
    assert copied == [*range(8), *range(100, 130), *range(200, 230)]


MODULE = """
from sagas import Message, consumer

@consumer("TOPIC", connection="shop")
async def note(message: Message) -> None:
    await message.sql.execute("insert into effect (what, number) values ('note', :n)", n=message.value)
"""


def trigger_of(kafka: Broker, shop: Shop, tmp_path: Path, module: str) -> TriggerProcess:
    """A trigger process, not started, for a project with this module of consumers."""
    folder = write_project(tmp_path / "p", kafka, temporal=NOWHERE, database=shop.url, prefix=fresh("p"), module=module)
    return TriggerProcess("trigger", folder, "--grace", "5s")


WITHOUT_COMMITS = (
    MODULE
    + """
from saga_workers.trigger import reader

reader.COMMIT_INTERVAL = 3600.0
"""
)


@pytest.mark.slow
async def test_killed_before_its_next_commit(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    process = trigger_of(kafka, shop, tmp_path, WITHOUT_COMMITS.replace("TOPIC", topic))
    kafka.produce(topic, *range(8))
    try:
        process.launch()
        await until_in_thread(lambda: len(shop.effects()) == 8)
        await asyncio.to_thread(_again, kafka, topic, range(100, 105), 1)
        await until_in_thread(lambda: len(shop.effects()) == 13)
        process.kill()
        process.launch()
        kafka.produce(topic, 105)
        await until_in_thread(lambda: len(shop.effects()) == 14)
    finally:
        process.kill()
    assert sorted(number for _, number in shop.effects()) == [*range(8), *range(100, 106)]


@pytest.mark.slow
async def test_while_its_partitions_are_assigned(kafka: Broker, shop: Shop, tmp_path: Path) -> None:
    """The group assigns nothing then, and its client does not join again when the topic is back."""
    topic = kafka.create_topic()
    process = trigger_of(kafka, shop, tmp_path, MODULE.replace("TOPIC", topic))
    kafka.produce(topic, *range(8))
    try:
        process.launch()
        await until_in_thread(lambda: len(shop.effects()) == 8)
        process.kill()
        process.launch()  # its group waits for the member that was killed
        await until_in_thread(lambda: process.log.read_text().count("started with") == 2)
        await asyncio.sleep(1.5)
        await asyncio.to_thread(kafka.delete_topic, topic)
        await until_in_thread(lambda: "the topic does not exist" in process.log.read_text())
        await asyncio.to_thread(kafka.create_topic, topic)
        kafka.produce(topic, *range(100, 103))
        await until_in_thread(lambda: len(shop.effects()) == 11)
    finally:
        process.kill()
    assert sorted(number for _, number in shop.effects()) == [*range(8), 100, 101, 102]
