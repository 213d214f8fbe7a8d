"""Connections of an idle relay that a firewall has forgotten: the next events are published all the same, and soon."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import fault_proxy
from tests.helpers.kafka_broker import Broker
from tests.integration.messaging.relay.relay_environment import DATABASE, OutboxEnvironment, events

pytestmark = pytest.mark.slow


async def test_an_idle_relay_replaces_forgotten_connections_to_its_database(
    postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fault_proxy(postgres_server.port) as proxy:
        env = OutboxEnvironment(postgres_server, kafka, tmp_path)
        await env.make_tables()
        url = postgres_server.url(env.database, port=proxy.port)
        connection = SqlConnection(name=DATABASE, root=tmp_path, url_setting=url)
        env.settings = env.settings.model_copy(update={"connections": {DATABASE: connection}})
        topic = await asyncio.to_thread(kafka.create_topic)

        async with env.relaying():
            await asyncio.to_thread(env.emit, *events(topic, 1))
            await env.all_published()
            proxy.forget()
            began = time.monotonic()
            await asyncio.to_thread(env.emit, *events(topic, 1, start=1))
            await env.all_published()
            waited = time.monotonic() - began
        await asyncio.to_thread(env.check, topic)
        assert waited < 30, waited  # about five seconds on an idle machine, and without a check a lease term more
        assert not [record.getMessage() for record in caplog.records if record.exc_info], "that is not a bug"
