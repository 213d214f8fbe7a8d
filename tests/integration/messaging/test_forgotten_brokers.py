"""Connections to Kafka that a firewall has forgotten: producers, a relay and a consumer go on within seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from saga_activities.kafka import transactional_producer
from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.transactional_producer import KafkaTransactionError, TransactionalProducer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.waiting import LIMIT
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events

UNCHECKED = 0.5


@pytest_asyncio.fixture
async def reached(tmp_path: Path) -> AsyncIterator[tuple[BrokerProcess, FaultProxy]]:
    """A broker that its clients, and it itself, reach through a proxy."""
    proxy = FaultProxy(0)
    await proxy.start()
    broker = BrokerProcess(tmp_path / "kafka", advertised=proxy.port)
    proxy.target_port = broker.port
    await asyncio.to_thread(broker.start)
    yield broker, proxy
    broker.kill()
    await proxy.stop()


async def test_an_idle_producer_is_checked_before_it_looks_at_a_new_topic(
    reached: tuple[BrokerProcess, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_producer, "_UNCHECKED", UNCHECKED)
    broker, proxy = reached
    settings = broker.settings()
    topic = await asyncio.to_thread(broker.create_topic)
    producer = await asyncio.to_thread(TransactionalProducer(settings, f"{settings.prefix}-idle").fence_and_open)
    try:
        await asyncio.sleep(UNCHECKED * 2)
        proxy.forget(settings.prefix.encode())
        began = time.monotonic()
        with pytest.raises(KafkaTransactionError, match="the brokers do not answer on idle connections"):
            await asyncio.to_thread(producer.use_topics, [topic])
        assert time.monotonic() - began < 5
    finally:
        await asyncio.to_thread(producer.close)


@pytest.mark.slow
async def test_a_relay_and_a_consumer_replace_forgotten_connections(
    postgres_server: DatabaseServer,
    reached: tuple[BrokerProcess, FaultProxy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from confluent_kafka import Consumer

    monkeypatch.setattr(transactional_producer, "_UNCHECKED", UNCHECKED)
    broker, proxy = reached
    env = OutboxEnvironment(postgres_server, broker, tmp_path)
    await env.make_tables()
    topic = await asyncio.to_thread(broker.create_topic)
    consumer = Consumer(consumer_config(env.kafka, "forgotten"))
    consumer.subscribe([topic])

    def receive() -> Any:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            record = consumer.poll(0.1)
            if record is not None and not record.error():
                return record.value()
        raise AssertionError("no record came")

    async def publish(number: int) -> tuple[float, float]:
        """Seconds until an event is published, and until it is received."""
        began = time.monotonic()
        await asyncio.to_thread(env.emit, *events(topic, 1, start=number))
        await env.all_published()
        published = time.monotonic()
        await asyncio.to_thread(receive)
        return published - began, time.monotonic() - began

    try:
        async with env.relaying():
            await publish(0)
            await asyncio.sleep(UNCHECKED * 2)
            proxy.forget(env.kafka.prefix.encode())
            published, received = await publish(1)
        assert published < 8, published
        assert received < 12, received
        assert not [record.getMessage() for record in caplog.records if record.exc_info], "that is not a bug"
        await asyncio.to_thread(env.check, topic)
    finally:
        await asyncio.to_thread(consumer.close)
