"""Records the client library delivers twice are copied once: after a refetch, and when partitions move
while a batch is being collected."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from saga_workers.trigger import bridge as bridge_module
from saga_workers.trigger import partition_assignment
from saga_workers.trigger.bridge import BridgeReader
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.member_config import member_properties
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas import Message, bridge
from sagas.actions.consumers import HANDLER_ATTRIBUTE
from sagas.settings import KafkaSettings
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fully_consumed


@contextlib.asynccontextmanager
async def copying(
    settings: KafkaSettings,
    source: str,
    target: str,
    meanwhile: Callable[[BridgeReader, Message], None] = lambda *_: None,
) -> AsyncIterator[BridgeReader]:
    @bridge(source, to=target, name="copier")
    def copy(message: Message) -> object:
        meanwhile(bridge_reader, message)
        return message.value

    metrics, stop = TriggerMetrics(), asyncio.Event()
    dead = DeadLetters(settings, metrics)
    bridge_reader = BridgeReader(
        settings, getattr(copy, HANDLER_ATTRIBUTE), f"{settings.prefix}-bridge-copier", dead, metrics
    )
    running = asyncio.create_task(bridge_reader.run(stop, 10))
    try:
        yield bridge_reader
    finally:
        stop.set()
        await running
        dead.close()


@pytest.mark.slow
async def test_refetched_messages_are_copied_once(kafka: Broker, caplog: pytest.LogCaptureFixture) -> None:
    source, target = kafka.create_topic(), kafka.create_topic()
    kafka.produce(source, *range(5), key="k")
    sought: list[int] = []

    def seek(bridge_reader: BridgeReader, message: Message) -> None:
        """In the thread of the bridge, once."""
        if message.value == 4 and not sought:
            sought.append(4)
            bridge_reader._consumer.seek(TopicPartition(source, 0, 0))

    async with copying(kafka.settings(), source, target, seek) as copier:
        await until_in_thread(lambda: fully_consumed(kafka, copier.group, source))
        kafka.produce(source, 5, key="k")
        await until_in_thread(lambda: fully_consumed(kafka, copier.group, source))
        await until_in_thread(lambda: f"{source}/0/0 was read again although the position is 5" in caplog.text)
    assert [record.json() for record in kafka.read_committed(target)] == [0, 1, 2, 3, 4, 5]


async def test_brokers_that_tell_no_position_in_time_end_no_bridge(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Within a callback of the client, where what nobody has caught would be no exception any more."""
    source, target = kafka.create_topic(), kafka.create_topic()
    kafka.produce(source, *range(5), key="k")
    monkeypatch.setattr(partition_assignment, "REQUEST_TIMEOUT", 0.0)
    async with copying(kafka.settings(), source, target) as copier:
        await until_in_thread(lambda: "bridge restarts: Failed to get committed offsets" in caplog.text)
        monkeypatch.setattr(partition_assignment, "REQUEST_TIMEOUT", 15.0)
        await until_in_thread(lambda: fully_consumed(kafka, copier.group, source))
    assert [record.json() for record in kafka.read_committed(target)] == [0, 1, 2, 3, 4]


async def test_partitions_that_move_during_a_batch_are_copied_once(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "_FILL_TIMEOUT", 8.0)
    settings = kafka.settings(client={"heartbeat.interval.ms": "200"})
    source, target = kafka.create_topic(), kafka.create_topic()
    kafka.produce(source, *range(5), key="k")
    async with copying(settings, source, target) as copier:
        await until_in_thread(lambda: bool(copier._producers))
        await asyncio.sleep(1)
        await asyncio.to_thread(come_and_go, settings, copier.group, source)
        assert kafka.read_committed(target) == []
        assert copier._moved_partitions == {0}, "the guest has moved nothing"
        await until_in_thread(lambda: fully_consumed(kafka, copier.group, source))
    assert [record.json() for record in kafka.read_committed(target)] == [0, 1, 2, 3, 4]


def come_and_go(settings: KafkaSettings, group: str, topic: str) -> None:
    """Another member of the group, which does nothing but move the partitions."""
    guest, end = Consumer(member_properties(settings, group)), time.monotonic() + 2
    guest.subscribe([topic])
    while time.monotonic() < end:
        guest.poll(0.05)
    guest.close()
