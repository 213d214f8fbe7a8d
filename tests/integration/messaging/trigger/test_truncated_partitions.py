"""A bridge whose partition ends before its position, as after an unclean election of a leader, repeats nothing unasked.

It does not recognise what it reads again, as consumers, triggers and the listener for replies do.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config
from saga_workers.doctor.kafka_checks import check_kafka
from saga_workers.topics.topic_creation import create_topics
from saga_workers.trigger.bridge import BridgeReader
from saga_workers.trigger.committed_positions import commit_position
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas import Message, bridge
from sagas.project import Project
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until, until_in_thread
from tests.integration.messaging.trigger.trigger_environment import count, fully_consumed, project_of, triggering

NOWHERE = "127.0.0.1:1"


class Bridged:
    """A bridge that has copied records 0 to 3 of each of two partitions, the first of which was truncated then."""

    def __init__(self, folder: Path, kafka: Broker) -> None:
        self.kafka, self.settings = kafka, kafka.settings()
        self.source, self.target = kafka.create_topic(partitions=2), kafka.create_topic()

        @bridge(self.source, to=self.target, name="copier")
        def copy(message: Message) -> object:
            return message.value

        self.project: Project = project_of(folder, self.settings, NOWHERE, readers=[copy])
        create_topics(self.project)
        self.group = f"{self.settings.prefix}-bridge-copier"

    async def make(self) -> None:
        self.produce(0, *range(4))
        self.produce(1, *range(10, 14))
        await self.run()
        assert self.copied() == [*range(4), *range(10, 14)]
        topic_id = KafkaAdmin(self.settings).topic_id(self.source)
        client = Consumer(consumer_config(self.settings, self.group))
        place: Any = commit_position(self.source, 0, 40, DeliveryMark(topic_id))
        client.commit(offsets=[place], asynchronous=False)
        client.close()
        self.produce(0, 4)
        self.produce(1, 14)

    def produce(self, partition: int, *values: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.address})
        for value in values:
            producer.produce(self.source, str(value), "k", partition=partition)
        assert producer.flush(30) == 0

    def copied(self) -> list[int]:
        return sorted(record.json() for record in self.kafka.read_committed(self.target))

    async def run(self, start_from: str | None = None) -> None:
        async with triggering(self.project, start_from=start_from):
            await until_in_thread(lambda: fully_consumed(self.kafka, self.group, self.source))


@pytest.mark.parametrize(("start_from", "again"), [("latest", []), ("earliest", [0, 1, 2, 3, 4])])
async def test_it_waits_for_a_decision(
    kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture, start_from: str, again: list[int]
) -> None:
    bridged = Bridged(tmp_path, kafka)
    await bridged.make()
    with caplog.at_level(logging.WARNING, logger="saga.trigger"):
        async with triggering(bridged.project) as metrics:
            await until_in_thread(lambda: "the reader waits" in caplog.text)
            assert count(metrics, "saga_trigger_undecided") == 1
    [result] = [check for check in await check_kafka(bridged.project) if check.check == "kafka triggers"]
    assert not result.ok
    assert f"{result.message}; {result.help}" in caplog.text
    assert f"{bridged.source}[0] ends at 5, before its position 40" in result.message
    assert f"saga trigger --only copier --from {start_from}" in str(result.help)
    assert bridged.copied() == [*range(4), *range(10, 14)]
    await bridged.run(start_from)
    assert bridged.copied() == sorted([*range(4), *again, *range(10, 15)])
    bridged.produce(0, 5)
    await bridged.run()
    assert bridged.copied() == sorted([*range(4), *again, 5, *range(10, 15)])


async def test_it_stands_still_while_it_runs(kafka: Broker, tmp_path: Path) -> None:
    """A partition that is truncated after the bridge has begun is seen at the next assignment."""
    bridged = Bridged(tmp_path, kafka)
    await bridged.make()
    metrics, stop = TriggerMetrics(), asyncio.Event()
    letters = DeadLetters(bridged.settings, metrics)
    [source] = bridged.project.message_handlers.bridges
    reader = BridgeReader(bridged.settings, source, bridged.group, letters, metrics)
    running = asyncio.create_task(reader.run(stop, 5.0))

    def says_so() -> bool:
        return "is beyond the end of the partition, 5: it was truncated" in str(reader.health())

    try:
        await until(says_so)
    finally:
        stop.set()
        await running
        letters.close()
    assert bridged.copied() == [*range(4), *range(10, 14)]
