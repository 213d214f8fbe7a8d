"""A reader without a position begins at the first record, unless a predecessor has read the topic: then it waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from saga_workers.doctor.kafka_checks import check_kafka
from saga_workers.temporal.temporal_client import connect
from saga_workers.temporal.temporal_runs import list_runs
from saga_workers.topics.topic_creation import create_topics
from sagas import Message, bridge, consumer
from sagas.project import Project
from sagas.settings import KafkaSettings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.sampling import mostly_slow
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    NOTE,
    Shop,
    committed,
    count,
    fresh,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
)

NOWHERE = "127.0.0.1:1"
INSERT = "insert into effect (what, number) values (:what, :number)"
POISON = 3
"""A value that no handler takes."""


@pytest.fixture
async def shop(postgres_server: DatabaseServer) -> Shop:
    return await open_shop(postgres_server)


def delete_group(kafka: Broker, group: str) -> None:
    admin: Any = AdminClient({"bootstrap.servers": kafka.address})
    admin.delete_consumer_groups([group])[group].result(30)


def letters(kafka: Broker, topic: str) -> list[int]:
    return [record.json() for record in kafka.read_committed(f"{topic}.dlq")]


class ConsumerProject:
    """A project with one consumer, whose name changes, and one of another topic, which goes on."""

    def __init__(self, folder: Path, kafka: Broker, shop: Shop) -> None:
        self.folder, self.kafka, self.shop = folder, kafka, shop
        self.settings: KafkaSettings = kafka.settings(outbox="shop")
        self.topic, self.other = kafka.create_topic(partitions=2), kafka.create_topic()

    def project(self, name: str, settings: KafkaSettings | None = None) -> Project:
        @consumer(self.topic, connection="shop", name=name, max_attempts=1)
        async def book(message: Message) -> None:
            if message.value == POISON:
                raise ValueError("poison")
            await message.sql.execute(INSERT, what=name, number=message.value)

        @consumer(self.other, connection="shop")
        async def neighbour(message: Message) -> None:
            await message.sql.execute(INSERT, what="neighbour", number=message.value)

        given, connections = settings or self.settings, {"shop": self.shop.url}
        project = project_of(self.folder, given, NOWHERE, readers=[book, neighbour], connections=connections)
        create_topics(project)
        return project

    def group(self, name: str) -> str:
        return f"{self.settings.prefix}-consumer-{name}"

    def numbers(self, name: str) -> list[int]:
        return sorted(number for what, number in self.shop.effects() if what == name)

    async def run(self, project: Project, *, until_consumed: str, start_from: str | None = None) -> None:
        async with triggering(project, start_from=start_from):
            await until_in_thread(lambda: fully_consumed(self.kafka, self.group(until_consumed), self.topic))

    async def refused(self, project: Project, caplog: pytest.LogCaptureFixture) -> str:
        """The message of the reader that waits, while its neighbour goes on; doctor says the same."""
        caplog.clear()
        before = len(self.numbers("neighbour"))
        self.kafka.produce(self.other, before)
        with caplog.at_level(logging.WARNING, logger="saga.trigger"):
            async with triggering(project) as metrics:
                await until_in_thread(lambda: "the reader waits" in caplog.text)
                await until_in_thread(lambda: len(self.numbers("neighbour")) == before + 1)
                assert count(metrics, "saga_trigger_undecided") == 1
        [result] = [check for check in await check_kafka(project) if check.check == "kafka triggers"]
        assert not result.ok
        assert f"{result.message}; {result.help}" in caplog.text
        return f"{result.message}; {result.help}"


async def test_a_renamed_consumer_waits_for_a_decision(
    kafka: Broker, shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = ConsumerProject(tmp_path, kafka, shop)
    kafka.produce(world.topic, *range(50))
    await world.run(world.project("book"), until_consumed="book")
    written = [number for number in range(50) if number != POISON]
    assert (world.numbers("book"), letters(kafka, world.topic)) == (written, [POISON])
    kafka.produce(world.topic, *range(50, 54))

    text = await world.refused(world.project("book_new"), caplog)
    assert "the inbox of shop knows a consumer book that no longer exists, with 50 messages of this topic" in text
    assert 'name="book" goes on' in text
    assert "saga trigger --only book_new --from earliest handles all of them again" in text
    assert (world.numbers("book_new"), letters(kafka, world.topic)) == ([], [POISON])

    await world.run(world.project("book"), until_consumed="book")  # name="book"
    assert world.numbers("book") == [*written, *range(50, 54)]

    await world.run(world.project("from_latest"), until_consumed="from_latest", start_from="latest")
    assert world.numbers("from_latest") == []
    kafka.produce(world.topic, 54)
    await world.run(world.project("from_latest"), until_consumed="from_latest")
    assert world.numbers("from_latest") == [54]

    kafka.produce(world.topic, 55)
    taken = world.project("from_group")
    await world.run(taken, until_consumed="from_group", start_from=world.group("from_latest"))
    assert world.numbers("from_group") == [55]

    await world.run(world.project("from_earliest"), until_consumed="from_earliest", start_from="earliest")
    assert world.numbers("from_earliest") == [number for number in range(56) if number != POISON]


@pytest.mark.parametrize("lost", mostly_slow(["group", "prefix"], {"group"}))
async def test_a_consumer_whose_position_is_lost_repeats_nothing(
    kafka: Broker, shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    world = ConsumerProject(tmp_path, kafka, shop)
    kafka.produce(world.topic, *range(50))
    await world.run(world.project("book"), until_consumed="book")
    if lost == "group":
        delete_group(kafka, world.group("book"))
    else:
        world.settings = kafka.settings(outbox="shop")
    kafka.produce(world.topic, *range(50, 54))
    text = await world.refused(world.project("book"), caplog)
    assert "the inbox of shop has 50 of its messages" in text
    await world.run(world.project("book"), until_consumed="book", start_from="earliest")
    assert world.numbers("book") == [number for number in range(54) if number != POISON]
    assert letters(kafka, world.topic) == [POISON]


@pytest.mark.slow
async def test_a_consumer_of_a_topic_that_was_created_again_needs_no_decision(
    kafka: Broker, shop: Shop, tmp_path: Path
) -> None:
    """The inbox has messages of the deleted topic of the same name."""
    world = ConsumerProject(tmp_path, kafka, shop)
    kafka.produce(world.topic, *range(8))
    await world.run(world.project("book"), until_consumed="book")
    kafka.delete_topic(world.topic)
    kafka.create_topic(world.topic)
    kafka.produce(world.topic, *range(20))
    await asyncio.to_thread(_forget_group, kafka, world.group("book"))
    await world.run(world.project("book"), until_consumed="book")
    assert Counter(world.numbers("book")) == Counter(n for n in (*range(8), *range(20)) if n != POISON)
    assert sorted(letters(kafka, world.topic)) == [POISON, POISON]


def _forget_group(kafka: Broker, group: str) -> None:
    """Delete the group, as brokers do sooner or later when its topic was deleted."""
    from confluent_kafka import KafkaException

    with contextlib.suppress(KafkaException):  # they have done it
        delete_group(kafka, group)


def _bridged(folder: Path, kafka: Broker, settings: KafkaSettings, source: str, target: str, name: str) -> Project:
    @bridge(source, to=target, name=name, max_attempts=1)
    def copy(message: Message) -> object:
        if message.value == POISON:
            raise ValueError("poison")
        return message.value

    project = project_of(folder, settings, NOWHERE, readers=[copy])
    create_topics(project)
    return project


@pytest.mark.slow
@pytest.mark.parametrize("lost", mostly_slow(["group", "name"], {"group"}))
async def test_a_bridge_finds_its_output(
    kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    source, target, settings = kafka.create_topic(partitions=2), kafka.create_topic(partitions=2), kafka.settings()
    make: Callable[[str], Project] = lambda name: _bridged(tmp_path, kafka, settings, source, target, name)  # noqa: E731
    kafka.produce(source, *range(50))
    group = f"{settings.prefix}-bridge-copy"
    async with triggering(make("copy")):
        await until_in_thread(lambda: fully_consumed(kafka, group, source))
    written = [number for number in range(50) if number != POISON]
    if lost == "group":
        delete_group(kafka, group)
    name = "copy" if lost == "group" else "copy_new"
    kafka.produce(source, 50)
    with caplog.at_level(logging.WARNING, logger="saga.trigger"):
        async with triggering(make(name)):
            await until_in_thread(lambda: "the reader waits" in caplog.text)
    [result] = [check for check in await check_kafka(make(name)) if check.check == "kafka triggers"]
    assert f"{result.message}; {result.help}" in caplog.text
    assert f"saga trigger --only {name} --from {group} goes on after that output" in caplog.text
    assert ('name="copy"' in caplog.text) is (lost == "name")
    assert sorted(record.json() for record in kafka.read_committed(target)) == written
    async with triggering(make(name), start_from=group):
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-bridge-{name}", source))
    assert sorted(record.json() for record in kafka.read_committed(target)) == [*written, 50]
    assert letters(kafka, source) == [POISON]
    async with triggering(make("again"), start_from="earliest"):
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-bridge-again", source))
    assert len(kafka.read_committed(target)) == 2 * 50


@pytest.mark.slow
async def test_a_trigger_starts_nothing_again(
    kafka: Broker, temporal: TemporalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, saga, settings = kafka.create_topic(partitions=2), fresh("note"), kafka.settings()

    def project(name: str) -> Project:
        texts = {name: NOTE.format(saga=name, topic=topic)}
        return project_of(tmp_path / name, settings, temporal.address, definitions=texts)

    def group(name: str) -> str:
        return f"{settings.prefix}-trigger-{name}-{topic}"

    client = await connect(project(saga).settings)

    async def started(name: str) -> int:
        return len([run async for run in list_runs(client, f"WorkflowType = '{name}'")])

    async def waits(name: str) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="saga.trigger"):
            async with triggering(project(name)):
                await until_in_thread(lambda: "the reader waits" in caplog.text)
        results = [check for check in await check_kafka(project(name), client) if check.check == "kafka triggers"]
        assert f"{results[0].message}; {results[0].help}" in caplog.text
        return caplog.text

    create_topics(project(saga))
    kafka.produce(topic, *range(20), "no number", 2000)
    async with triggering(project(saga)):
        await until_in_thread(lambda: fully_consumed(kafka, group(saga), topic))
    assert sorted(map(str, letters(kafka, topic))) == ["2000", "no number"]

    renamed = f"{saga}-new"
    text = await waits(renamed)
    assert f"the group {group(saga)}, which belongs to no trigger any more" in text
    kafka.produce(topic, 21)
    async with triggering(project(renamed), start_from=group(saga)) as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, group(renamed), topic))
        assert count(metrics, "saga_trigger_started_total") == 1
    await asyncio.to_thread(delete_group, kafka, group(renamed))
    await asyncio.to_thread(delete_group, kafka, group(saga))

    text = await waits(saga)
    assert f"its events have started sagas before, such as {saga}-" in text
    async with triggering(project(saga), start_from="earliest") as metrics:
        await until_in_thread(lambda: fully_consumed(kafka, group(saga), topic))
        assert count(metrics, "saga_trigger_started_total") == 1  # the event that only the renamed saga has had
    assert len(letters(kafka, topic)) == 2

    await asyncio.to_thread(delete_group, kafka, group(saga))
    async with triggering(project(saga), start_from="latest") as metrics:
        await until_in_thread(lambda: bool(committed(kafka, group(saga), topic)))
        assert fully_consumed(kafka, group(saga), topic)

    async def all_started() -> bool:
        return await started(saga) == 21

    await until_in_thread(all_started)
