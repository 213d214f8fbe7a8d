"""The relay against a real broker and a real database: each event once, in order per key, and soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from confluent_kafka import Consumer, TopicPartition

from activities.kafka.config import consumer_config
from sagas.step import Event
from tests.integration.messaging.relay_world import OutboxWorld, events
from tests.kafka_broker import Broker
from tests.servers import DatabaseServer


@pytest_asyncio.fixture
async def world(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxWorld]:
    made = OutboxWorld(postgres_server, kafka, tmp_path, transaction_timeout=15.0)
    await made.make_tables()
    yield made
    made.close()


async def test_each_event_is_published_once_and_in_order_per_key(world: OutboxWorld) -> None:
    topic, other = world.broker.create_topic(partitions=3), world.broker.create_topic()
    world.emit(*events(topic, 700), Event(other, None, {"n": 1}, {"trace": "t"}, type="order.placed"))
    async with world.relaying():
        await world.all_published()
        world.emit(*events(topic, 300, start=700))
        await world.all_published()
    world.check(topic, other)
    assert world.statuses() == {"PUBLISHED": 1001}
    [record] = world.broker.read_committed(other)
    assert (record.key, record.json()) == (None, {"n": 1})
    assert record.headers["ce_type"] == "order.placed"
    assert record.headers["ce_source"] == f"/{world.kafka.prefix}/shop"
    assert (record.headers["trace"], record.headers["sagaid"], record.headers["sagastep"]) == ("t", "s", "pay")


async def test_a_committed_event_is_soon_visible(world: OutboxWorld) -> None:
    """Measured on an idle system; the bound is generous, because the machine is shared."""
    topic = world.broker.create_topic()
    async with world.relaying():
        world.emit(Event(topic, "k", 0))
        await world.all_published()
        took = await asyncio.to_thread(_emit_and_see, world, topic)
    print(f"commit → visible: median {sorted(took)[5] * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms")
    assert sorted(took)[5] < 2.0
    world.check(topic)


def _emit_and_see(world: OutboxWorld, topic: str) -> list[float]:
    """Seconds from the commit of an event to its arrival at a read_committed consumer, ten times."""
    consumer = Consumer(consumer_config(world.kafka, f"see-{topic}"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    took: list[float] = []
    try:
        for number in range(11):
            if number:
                world.emit(Event(topic, "k", number))
            began = time.monotonic()
            while True:
                message = consumer.poll(0.01)
                if message is not None and message.value() == str(number).encode():
                    break
                assert time.monotonic() - began < 20
            took.append(time.monotonic() - began)
            time.sleep(0.05)
    finally:
        consumer.close()
    return took[1:]
