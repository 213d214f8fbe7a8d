"""Replies that cannot be used, while their dead letter topic accepts nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from saga_activities.connections import DatabaseConnections
from saga_workers.trigger import replies
from saga_workers.trigger.replies import ReplyListener
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.integration.messaging.request.request_environment import running_listener
from tests.integration.messaging.trigger.trigger_environment import open_shop, until


async def test_other_replies_are_recorded_while_a_dead_letter_waits(
    kafka: Broker, postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "_BURIAL_TIMEOUT", 0.2)
    shop, topic = await open_shop(postgres_server), kafka.create_topic(partitions=1)
    kafka.produce(topic, 1, headers={"sagaoutcome": "done"})
    with shop.connect() as connection:
        for key in ("s/1", "s/2"):
            connection.execute(
                "insert into saga_request (step_key, saga_id, step, generation, op, created_at)"
                " values (%s, 's', 'x', 1, 'do', 1)",
                (key,),
            )
            kafka.produce(topic, 7, headers={"sagakey": key, "sagaoutcome": "done"})
    accepts = asyncio.Event()

    async def bury(*_: Any) -> None:
        await accepts.wait()

    def outcomes() -> list[Any]:
        with shop.connect() as connection:
            return [one for (one,) in connection.execute("select outcome from saga_request").fetchall()]

    databases = DatabaseConnections([SqlConnection(name="shop", url=shop.url)])
    # No attempt waits for these replies, so Temporal is not asked.
    client: Any = None
    listener = ReplyListener(client, kafka.settings(outbox="shop"), databases, [topic], dead_letter_sink=bury)
    async with running_listener(listener):
        try:
            await until(lambda: outcomes() == ["done", "done"], timeout=20)
            await until(lambda: listener.health() == "a reply that cannot be used waits for its dead letter topic")
            accepts.set()
            await until(lambda: listener.counts == {"late": 2, "malformed": 1})
            assert listener.health() is None
        finally:
            accepts.set()
    await databases.close()
