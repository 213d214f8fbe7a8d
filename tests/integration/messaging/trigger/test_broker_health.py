"""A reader reports an unreachable broker, and recovers when it is back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.reader import TopicReader
from tests.helpers.kafka_broker import BrokerProcess
from tests.integration.messaging.trigger.trigger_environment import fresh, until


@pytest.mark.slow
async def test_a_lost_broker_is_reported_until_it_returns(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    topic, got, stop = broker.create_topic(), [], asyncio.Event()

    async def note(record: ConsumedRecord) -> None:
        got.append(record.offset)

    reader = TopicReader(broker.settings(prefix=fresh("p")), "readers", topic, note)
    running = asyncio.create_task(reader.run(stop, 1.0))
    try:
        broker.produce(topic, 1)
        await until(lambda: got)
        assert reader.health() is None
        broker.kill()
        assert "no broker" in await until(reader.health)
        broker.start()
        await until(lambda: reader.health() is None)
        broker.produce(topic, 2)
        await until(lambda: len(got) == 2)
    finally:
        stop.set()
        await running
        broker.kill()
