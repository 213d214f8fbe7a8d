"""A problem that Kafka's client reports when it has already ended, and a group that has forgotten its topic."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config
from saga_workers.trigger import empty_assignment, partition_assignment
from saga_workers.trigger.bridge import BridgeReader
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.empty_assignment import EmptyAssignment
from saga_workers.trigger.reader import TopicReader
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas import Message, bridge
from sagas.actions.consumers import HANDLER_ATTRIBUTE
from sagas.settings import KafkaSettings
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until, until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fresh

REPORTED_LATE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION)


def _topic_reader(settings: KafkaSettings, topic: str) -> TopicReader:
    async def handle(_: ConsumedRecord) -> None: ...

    return TopicReader(settings, f"{settings.prefix}-readers", topic, handle)


def _bridge_reader(settings: KafkaSettings, topic: str) -> BridgeReader:
    @bridge(topic, to=f"{topic}-copy")
    def copier(_: Message) -> None:
        return None

    metrics = TriggerMetrics()
    dead_letters = DeadLetters(settings, metrics)
    return BridgeReader(
        settings, getattr(copier, HANDLER_ATTRIBUTE), f"{settings.prefix}-bridge", dead_letters, metrics
    )


@contextlib.asynccontextmanager
async def _running(*readers: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(reader.run(stop, 1.0)) for reader in readers]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("make", [_topic_reader, _bridge_reader])
async def test_an_idle_reader_notices_that_a_problem_has_ended(make: Any, kafka: Broker) -> None:
    """Readers whose partitions other members have notice it as well, whatever the problem was."""
    settings, topic = kafka.settings(prefix=fresh("p")), kafka.create_topic()
    members = [make(settings, topic), make(settings, topic)]
    async with _running(*members):
        kafka.produce(topic, 1)
        await until(lambda: any(list(member.lags()) == [(member.group, topic, 0, 0)] for member in members))
        for code in REPORTED_LATE:
            for member in members:
                member._problem.note(KafkaError(code))
            assert all(member.health() for member in members)
            await until(lambda: not any(member.health() for member in members))


async def test_a_group_forgets_its_topic_although_a_reader_had_marked_it(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark stays open if the partition is lost, or if its position is not known when it is given up."""
    monkeypatch.setattr(empty_assignment, "_ASSIGNMENT_PATIENCE", 0.0)
    settings, topic, other = kafka.settings(prefix=fresh("p")), kafka.create_topic(), kafka.create_topic()
    cluster, group = KafkaAdmin(settings), f"{settings.prefix}-readers"
    noticed = EmptyAssignment(topic)
    noticed.assigned([])
    async with _running(_topic_reader(settings, topic)):
        await until_in_thread(lambda: cluster.has_members(group))
        assert not noticed.is_forgotten(cluster, group)
    client = Consumer(consumer_config(settings, group))
    mark = DeliveryMark(cluster.topic_id(topic), "a reader")
    client.commit(offsets=[TopicPartition(topic, 0, 0, metadata=str(mark))], asynchronous=False)
    client.subscribe([other])
    try:
        await until_in_thread(lambda: client.poll(0.1) or client.assignment())
        await until_in_thread(lambda: noticed.is_forgotten(cluster, group))
    finally:
        client.close()


async def test_a_partition_that_is_gone_does_not_hold_up_the_others(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is created again with fewer partitions while the group is being rebalanced."""
    monkeypatch.setattr(partition_assignment, "MISSING_PARTITION_LIMIT", 0.3)
    topic, settings = kafka.create_topic(), kafka.settings()
    member, assigning = Consumer(consumer_config(settings, fresh("group"))), _topic_reader(settings, topic)
    partitions = [TopicPartition(topic, number) for number in (0, 1)]
    starts = await asyncio.wait_for(asyncio.to_thread(assigning._assign, member, partitions), 60)
    assert [start.partition for start in starts] == [0]
    assert [partition.partition for partition in member.assignment()] == [0]
    member.close()
