"""An open transaction of another producer hides committed records: nobody takes the last stable offset for the end."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from saga_workers.doctor.kafka_checks import check_kafka
from saga_workers.topics.topic_creation import create_topics
from sagas import Message, bridge, consumer
from sagas.project import Project
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.test_initial_positions import delete_group
from tests.integration.messaging.trigger.trigger_environment import (
    committed,
    fully_consumed,
    open_shop,
    project_of,
    triggering,
)

NOWHERE = "127.0.0.1:1"
PARTITIONS = 2


class Bridged:
    """A bridge from one topic to another whose group is deleted while the end of its output is hidden."""

    def __init__(self, folder: Path, kafka: Broker) -> None:
        self.kafka, self.settings = kafka, kafka.settings()
        self.source, self.target = kafka.create_topic(partitions=PARTITIONS), kafka.create_topic(partitions=PARTITIONS)
        self.group = f"{self.settings.prefix}-bridge-relabel"

        @bridge(self.source, to=self.target)
        def relabel(message: Message) -> object:
            return message.value

        self.project: Project = project_of(folder, self.settings, NOWHERE, readers=[relabel])
        create_topics(self.project)

    async def run(self, *numbers: int, start_from: str | None = None) -> None:
        """Copy numbers."""
        await asyncio.to_thread(self.kafka.produce, self.source, *numbers)
        async with triggering(self.project, start_from=start_from):
            await until_in_thread(lambda: fully_consumed(self.kafka, self.group, self.source))

    async def waits(self, caplog: pytest.LogCaptureFixture, start_from: str | None = None) -> None:
        """The reader writes nothing, and says what it waits for."""
        before = len(self.kafka.read_uncommitted(self.target))
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="saga.trigger"):
            async with triggering(self.project, start_from=start_from):
                await until_in_thread(lambda: "the reader waits" in caplog.text)
        assert (
            f"{self.group} has output in {self.target} that cannot be read yet, behind an open transaction"
            in caplog.text
        )
        assert "describe-producers" in caplog.text
        assert committed(self.kafka, self.group, self.source) == {}
        assert len(self.kafka.read_uncommitted(self.target)) == before

    def copied(self) -> list[int]:
        return sorted(record.json() for record in self.kafka.read_committed(self.target))


@pytest.mark.slow
async def test_a_bridge_goes_on_after_its_hidden_output(
    kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bridged = Bridged(tmp_path, kafka)
    await bridged.run(*range(20))
    with kafka.open_transaction(bridged.target, PARTITIONS):
        await bridged.run(*range(20, 40))
        delete_group(kafka, bridged.group)
        await bridged.waits(caplog)
        await bridged.waits(caplog, start_from=bridged.group)
        [result] = [result for result in await check_kafka(bridged.project) if result.check == "kafka readers"]
        assert not result.ok
    await bridged.run(*range(40, 44), start_from=bridged.group)
    assert bridged.copied() == list(range(44))


@pytest.mark.slow
async def test_a_bridge_whose_whole_output_is_hidden_has_a_predecessor(
    kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bridged = Bridged(tmp_path, kafka)
    with kafka.open_transaction(bridged.target, PARTITIONS):
        await bridged.run(*range(20))
        delete_group(kafka, bridged.group)
        await bridged.waits(caplog)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="saga.trigger"):
        async with triggering(bridged.project):
            await until_in_thread(lambda: "has its output of partition" in caplog.text)
    assert bridged.copied() == list(range(20))


async def test_latest_is_after_the_records_that_are_hidden(
    kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop, topic = await open_shop(postgres_server), kafka.create_topic(partitions=PARTITIONS)

    @consumer(topic, connection="shop")
    async def late(message: Message) -> None:
        await message.sql.execute("insert into effect (what, number) values ('late', :number)", number=message.value)

    settings = kafka.settings(outbox="shop")
    project = project_of(tmp_path, settings, NOWHERE, readers=[late], connections={"shop": shop.url})
    create_topics(project)
    group = f"{settings.prefix}-consumer-late"
    kafka.produce(topic, 1, 2)
    with kafka.open_transaction(topic, PARTITIONS):
        kafka.produce(topic, *range(3, 40))
        async with triggering(project, start_from="latest"):
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        with caplog.at_level(logging.INFO, logger="saga.trigger"):
            async with triggering(project):  # a position behind the last stable offset is within the partition
                await until_in_thread(lambda: "partitions assigned" in caplog.text)
    assert "truncated" not in caplog.text
    kafka.produce(topic, 100)
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    assert shop.effects() == [("late", 100)]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", ["consumer", "bridge"])
async def test_a_hidden_dead_letter_is_not_written_again(
    kind: str, kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, target = kafka.create_topic(), kafka.create_topic()
    dead = kafka.create_topic(f"{topic}.dlq")
    shop = await open_shop(postgres_server)

    def poison(_: Message) -> object:
        raise ValueError("poison")

    async def poison_consumer(message: Message) -> None:
        poison(message)

    if kind == "bridge":
        reader = bridge(topic, to=target, name="hiding", max_attempts=1)(poison)
    else:
        reader = consumer(topic, connection="shop", name="hiding", max_attempts=1)(poison_consumer)
    settings = kafka.settings(outbox="shop")
    project = project_of(tmp_path, settings, NOWHERE, readers=[reader], connections={"shop": shop.url})
    create_topics(project)
    group = f"{settings.prefix}-{kind}-hiding"

    def letters() -> int:
        return len([record for record in kafka.read_uncommitted(dead) if record.value == b"1"])

    kafka.produce(topic, 1)
    with kafka.open_transaction(dead):
        async with triggering(project):
            await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        assert letters() == 1
        delete_group(kafka, group)
        with caplog.at_level(logging.WARNING, logger="saga.trigger"):
            async with triggering(project, start_from="earliest"):
                await until_in_thread(lambda: "behind an open transaction" in caplog.text)
        assert f"a dead letter of {topic}" in caplog.text
        assert "hanging transaction is aborted" not in caplog.text
        assert letters() == 1
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    assert [record.json() for record in kafka.read_committed(dead)] == [1]
