"""Topics of bridges and dead letters that are created again, or get more partitions, while a process runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sagas import Message, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.key_partitions import partition_of
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import open_shop, produce_keyed, project_of, triggering

NOWHERE = "127.0.0.1:1"
KEYS = [f"k{number}" for number in range(20)]


async def _check_changes(kafka: Broker, source: str, target: str) -> None:
    """Each key is in its partition after the target was created again with fewer and more, and got more partitions."""

    def write(start: int) -> None:
        produce_keyed(kafka, source, [(key, start) for key in KEYS])

    def places(start: int) -> list[tuple[str, int]]:
        records = kafka.read_committed(target)
        return sorted((record.key or "", record.partition) for record in records if record.json() == start)

    for number, partitions in enumerate((2, 5, 7)):
        if partitions == 7:
            await asyncio.to_thread(kafka.add_partitions, target, partitions)
        else:
            await asyncio.to_thread(kafka.delete_topic, target)
            await asyncio.to_thread(kafka.create_topic, target, partitions=partitions)
        await asyncio.to_thread(write, number)
        await until_in_thread(lambda number=number: len(places(number)) >= len(KEYS))
        expected = sorted((key, partition_of(key, partitions)) for key in KEYS)
        assert await asyncio.to_thread(places, number) == expected


async def test_the_output_of_a_bridge(kafka: Broker, tmp_path: Path) -> None:
    source, target = kafka.create_topic(), kafka.create_topic(partitions=3)

    @bridge(source, to=target, name="copier")
    def copy(message: Message) -> object:
        return message.value

    async with triggering(project_of(tmp_path, kafka.settings(transaction_timeout=30.0), NOWHERE, readers=[copy])):
        produce_keyed(kafka, source, [(key, -1) for key in KEYS])
        await until_in_thread(lambda: len(kafka.read_committed(target)) == len(KEYS))
        await _check_changes(kafka, source, target)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", ["consumer", "bridge"])
async def test_dead_letters(kind: str, kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path) -> None:
    shop, source, target = await open_shop(postgres_server), kafka.create_topic(), kafka.create_topic()
    letters = kafka.create_topic(f"{source}.dlq", partitions=3)

    @consumer(source, connection="shop", name="book", max_attempts=1)
    async def book(message: Message) -> None:
        raise ValueError("bad")

    @bridge(source, to=target, name="book", max_attempts=1)
    def move(message: Message) -> object:
        raise ValueError("bad")

    settings = kafka.settings(transaction_timeout=30.0)
    reader = book if kind == "consumer" else move
    project = project_of(tmp_path, settings, NOWHERE, readers=[reader], connections={"shop": shop.url})
    async with triggering(project, grace=2):
        produce_keyed(kafka, source, [(key, -1) for key in KEYS])
        await until_in_thread(lambda: len(kafka.read_committed(letters)) == len(KEYS))
        await _check_changes(kafka, source, letters)
