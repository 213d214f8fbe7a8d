"""Topics that are created again, or get more partitions, while a relay runs and while none does.

For each key the partition is the one that any other client chooses for the present number of partitions.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import pytest
import pytest_asyncio

from saga_workers.relay import publisher
from sagas.actions.events import Event
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker, Record
from tests.helpers.key_partitions import murmur2, partition_of
from tests.helpers.sampling import scaled
from tests.helpers.topic_looks import count_looks
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events

KEYS = 40
ROUNDS = scaled(2, 20)
PARTITIONS = (2, 6, 6, 1, 3)
"""Fewer than before, more, as many, one."""


@pytest_asyncio.fixture
async def env(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxEnvironment]:
    made = OutboxEnvironment(postgres_server, kafka, tmp_path, transaction_timeout=30.0, batch=100)
    await made.make_tables()
    yield made
    made.close()


def test_the_hash_is_that_of_the_java_clients() -> None:
    """The examples of their own test (UtilsTest.testMurmur2)."""
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    assert {text: murmur2(text.encode()) for text in hashes} == {text: n % 2**32 for text, n in hashes.items()}


class CreatedAgain:
    """A topic that is created again. Events are written before, which are published and deleted with it, while it is
    missing, and after.
    """

    def __init__(self, env: OutboxEnvironment) -> None:
        self._env = env
        self._topic = env.broker.create_topic(partitions=4)
        self._written = self._first = 0

    def emit(self) -> None:
        self._env.emit(*events(self._topic, 2 * KEYS, KEYS, start=self._written))
        self._written += 2 * KEYS

    def create(self, partitions: int) -> None:
        self._env.broker.delete_topic(self._topic)
        self._first = self._written
        self.emit()
        self._env.broker.create_topic(self._topic, partitions=partitions)
        self.emit()

    def check(self, partitions: int) -> None:
        records = self._env.broker.read_committed(self._topic)
        assert sorted(record.json() for record in records) == list(range(self._first, self._written))
        check_places(records, partitions)
        self._env.check_decided(self._topic)


async def test_a_topic_that_is_created_again_while_the_relay_runs(env: OutboxEnvironment) -> None:
    topic = await asyncio.to_thread(CreatedAgain, env)
    async with env.relaying():
        for partitions in islice(cycle(PARTITIONS), ROUNDS):
            await asyncio.to_thread(topic.emit)
            await env.all_published()
            await asyncio.to_thread(topic.create, partitions)
            await env.all_published()
            await asyncio.to_thread(topic.check, partitions)


@pytest.mark.slow  # while one runs, below and above
async def test_a_topic_that_is_created_again_while_no_relay_runs(env: OutboxEnvironment) -> None:
    topic = await asyncio.to_thread(CreatedAgain, env)
    for partitions in islice(cycle(PARTITIONS), ROUNDS):
        async with env.relaying():
            await asyncio.to_thread(topic.emit)
            await env.all_published()
        await asyncio.to_thread(topic.create, partitions)
        async with env.relaying():
            await env.all_published()
        await asyncio.to_thread(topic.check, partitions)


async def test_a_topic_that_is_created_again_while_events_are_written(env: OutboxEnvironment) -> None:
    """Events published before the deletion are gone; each of the others is there once, and none is missing."""
    topic = await asyncio.to_thread(env.broker.create_topic, partitions=4)
    writer = Writer(env, topic)
    async with env.relaying():
        for partitions in islice(cycle(PARTITIONS), ROUNDS):
            writer.start()
            await asyncio.sleep(0.3)  # so that it is deleted at any point of a transaction
            await asyncio.to_thread(env.broker.delete_topic, topic)
            await asyncio.to_thread(env.broker.create_topic, topic, partitions=partitions)
            created_at = writer.written
            await asyncio.sleep(0.3)
            await asyncio.to_thread(writer.end)
            await env.all_published()
            records = await asyncio.to_thread(env.broker.read_committed, topic)
            check_places(records, partitions)
            numbers = sorted(record.json() for record in records)
            assert set(range(created_at + Writer.AT_ONCE, writer.written)) <= set(numbers)
            for key, those in by_key(records).items():
                assert those == list(range(those[0], writer.written, KEYS)), f"{key} has gaps"
    env.check_decided(topic)


async def test_partitions_that_are_added_while_events_are_written(env: OutboxEnvironment) -> None:
    topic, before = await asyncio.to_thread(env.broker.create_topic, partitions=1), 1
    writer = Writer(env, topic)
    changes: list[tuple[int, int]] = [(0, before)]
    async with env.relaying():
        writer.start()
        for partitions in range(2, 2 + ROUNDS):
            await asyncio.sleep(0.2)
            await asyncio.to_thread(env.broker.add_partitions, topic, partitions)
            changes.append((writer.written + Writer.AT_ONCE, partitions))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(writer.end)
        await env.all_published()
    env.check_decided(topic)
    records = await asyncio.to_thread(env.broker.read_committed, topic)
    assert sorted(record.json() for record in records) == list(range(writer.written))
    for record in records:
        at_least = max(partitions for first, partitions in changes if first <= record.json())
        possible = {partition_of(record.key or "", n) for n in range(at_least, changes[-1][1] + 1)}
        assert record.partition in possible, f"{record} was written to a topic of {at_least} partitions or more"


async def test_a_topic_that_is_missing_holds_up_no_other(env: OutboxEnvironment) -> None:
    topic, other = [await asyncio.to_thread(env.broker.create_topic) for _ in range(2)]
    async with env.relaying():
        await asyncio.to_thread(env.emit, *events(topic, 4), *events(other, 4))
        await env.all_published()
        await asyncio.to_thread(env.broker.delete_topic, topic)
        await asyncio.to_thread(env.emit, *events(topic, 4, start=4), *events(other, 4, start=4))
        await until_in_thread(lambda: len(env.broker.read_committed(other)) == 8)
        await asyncio.to_thread(env.broker.create_topic, topic, partitions=3)
        await env.all_published()
    assert len(await asyncio.to_thread(env.broker.read_committed, topic)) == 4


async def test_a_busy_relay_asks_about_a_topic_once_for_each_transaction(
    env: OutboxEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer before a commit is recent enough for the next transaction: another request would delay its events."""
    monkeypatch.setattr(publisher, "_TOPICS_MAX_AGE", 3600.0)
    looks = count_looks(monkeypatch)
    topic = await asyncio.to_thread(env.broker.create_topic)
    async with env.relaying():
        for number in range(5):
            await asyncio.to_thread(env.emit, Event(topic, "k", number))
            await env.all_published()
    assert looks == [[topic]] * (1 + 5)


class Writer:
    """Writes numbered events, in order per key, between ``start`` and ``end``; it may start again."""

    AT_ONCE = KEYS

    def __init__(self, env: OutboxEnvironment, topic: str) -> None:
        self._env, self._topic = env, topic
        self._stop = threading.Event()
        self.written = 0

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._env.connect() as connection:
            while not self._stop.wait(0.01):
                numbers = range(self.written, self.written + self.AT_ONCE)
                with connection.transaction():
                    self._env.insert(connection, *(Event(self._topic, f"k{n % KEYS}", n) for n in numbers))
                self.written += self.AT_ONCE


def by_key(records: Sequence[Record]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for record in records:
        numbers[record.key or ""].append(record.json())
    return numbers


def check_places(records: Sequence[Record], partitions: int) -> None:
    """Each record is in the partition of its key, and each key is in order."""
    wrong = [record for record in records if record.partition != partition_of(record.key or "", partitions)]
    assert not wrong, f"{len(wrong)} of {len(records)} are in a wrong partition of {partitions}: {wrong[0]}"
    for key, numbers in by_key(records).items():
        assert numbers == sorted(set(numbers)), f"{key} is out of order: {numbers}"
