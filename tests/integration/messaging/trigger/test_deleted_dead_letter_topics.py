"""Dead letter topics that somebody deletes while messages are processed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagas import Message, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    fully_consumed,
    open_shop,
    project_of,
    triggering,
)

NOWHERE = "127.0.0.1:1"


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", ["consumer", "bridge"])
async def test_a_deleted_dead_letter_topic_is_created_again(
    kind: str, kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    shop, topic, target = await open_shop(postgres_server), kafka.create_topic(), kafka.create_topic()

    @consumer(topic, connection="shop", name="book", max_attempts=1)
    async def book(message: Message) -> None:
        raise ValueError("bad")

    @bridge(topic, to=target, name="book", max_attempts=1)
    def move(message: Message) -> object:
        raise ValueError("bad")

    # A producer waits that long for the transaction that wrote to the deleted topic.
    settings = kafka.settings(transaction_timeout=10.0)
    reader = book if kind == "consumer" else move
    project = project_of(tmp_path, settings, NOWHERE, readers=[reader], connections={"shop": shop.url})
    group = f"{settings.prefix}-{kind}-book"
    async with triggering(project, grace=2):
        kafka.produce(topic, 1, key="k")
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
        kafka.delete_topic(f"{topic}.dlq")
        kafka.produce(topic, 2, key="k")
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    assert [record.json() for record in kafka.read_committed(f"{topic}.dlq")] == [2]
