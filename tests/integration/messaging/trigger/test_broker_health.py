"""Readers of a topic report an unreachable broker, and recover when it is back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import DatabaseConnections
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.reader import TopicReader
from saga_workers.trigger.replies import ReplyListener
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.request.request_environment import running_listener
from tests.integration.messaging.trigger.trigger_environment import fresh, open_shop


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
        await until_in_thread(lambda: got)
        assert reader.health() is None
        broker.kill()
        assert "no Kafka broker can be reached" in await until_in_thread(reader.health)
        broker.start()
        await until_in_thread(lambda: reader.health() is None)
        broker.produce(topic, 2)
        await until_in_thread(lambda: len(got) == 2)
    finally:
        stop.set()
        await running
        broker.kill()


@pytest.mark.slow
async def test_a_reply_listener_reports_a_lost_broker_until_it_returns(
    tmp_path: Path, postgres_server: DatabaseServer
) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    shop = await open_shop(postgres_server)
    databases = DatabaseConnections([SqlConnection(name="shop", url_setting=shop.url)])

    async def refuse(*_: Any) -> None:
        raise AssertionError("no reply is malformed")

    client: Any = None  # no attempt waits for a reply
    settings = broker.settings(outbox="shop", prefix=fresh("p"))
    listener = ReplyListener(client, settings, databases, [fresh("replies")], dead_letter_sink=refuse)
    try:
        async with running_listener(listener):
            await until_in_thread(lambda: listener.health() is None)
            broker.kill()
            assert "no Kafka broker can be reached" in await until_in_thread(listener.health)
            broker.start()
            await until_in_thread(lambda: listener.health() is None)
    finally:
        await databases.close()
        broker.kill()
