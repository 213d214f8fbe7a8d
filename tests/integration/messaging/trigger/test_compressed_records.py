"""Records that are small in the topic and large when they are decompressed."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from sagas import Message, consumer
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


async def test_a_compressed_record_with_millions_of_values_is_a_dead_letter(
    kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    shop, topic, handled = await open_shop(postgres_server), kafka.create_topic(), list[int]()

    @consumer(topic, connection="shop", name="book", max_attempts=1)
    async def book(message: Message) -> None:
        handled.append(len(message.value))

    producer = Producer(
        {"bootstrap.servers": kafka.address, "message.max.bytes": 9_000_000, "compression.type": "gzip"}
    )
    producer.produce(topic, b"[" + b"0," * 3_000_000 + b"0]", b"k")
    producer.produce(topic, b"[1, 2]", b"k")
    assert producer.flush(60) == 0
    settings = kafka.settings()
    project = project_of(tmp_path, settings, NOWHERE, readers=[book], connections={"shop": shop.url})
    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(kafka, f"{settings.prefix}-consumer-book", topic))
    assert handled == [2]
    [dead] = kafka.read_committed(f"{topic}.dlq")
    assert not dead.value
    assert dead.headers["sagadlqomitted"] == "size"
    assert "more than 1,000,000 values" in dead.headers["sagadlqreason"]
