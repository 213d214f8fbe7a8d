"""A rebalance between the two reads of a batch.

The client is a fake: with a real one the announcement has to arrive in the microseconds between `poll` and `consume`.
That `consume` serves the callbacks, and that what `poll` has returned stays in the batch, was seen on a real broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from saga_activities.kafka.admin import PartitionOffsets
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.reader import TopicReader
from sagas.settings import KafkaSettings
from tests.helpers.waiting import until_in_thread

SETTINGS = KafkaSettings(bootstrap_servers="nowhere:1")


class Cluster:
    """Brokers whose topic stays the same one."""

    def topic_id(self, _: str) -> str:
        return "the id of the topic"

    def offsets(self, _: str) -> dict[int, PartitionOffsets]:
        return {0: PartitionOffsets(0, 0, 0)}


CLUSTER: Any = Cluster()


class Read:
    """A record of one key."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> None:
        return None

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"1"

    def headers(self) -> list[Any]:
        return []

    def error(self) -> None:
        return None


class FakeClient:
    """Gives one batch before each call of ``between``, which happens in `consume`, as the real client's callbacks."""

    def __init__(self, properties: dict[str, Any], batches: list[tuple[list[int], Callable[[Any], None]]]) -> None:
        self._on_commit = properties["on_commit"]
        self.properties = properties
        self.waited: list[float] = []
        self._batches = batches
        self.given: list[int] = []
        self.commits: list[int] = []
        self.paused: bool = False
        self.partition: Any = TopicPartition("orders", 0)

    def subscribe(self, _: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks
        callbacks["on_assign"](self, [self.partition])

    def poll(self, _: float) -> Read | None:
        if not self._batches:
            time.sleep(0.01)
            return None
        return Read(self._batches[0][0][0])

    def consume(self, _: int, timeout: float) -> list[Read]:
        self.waited.append(timeout)
        offsets, between = self._batches.pop(0)
        between(self)
        return [Read(offset) for offset in offsets[1:]]

    @property
    def exhausted(self) -> bool:
        return not self._batches

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        self.commits += [offset.offset for offset in offsets]
        self._on_commit(None, offsets)

    def assignment(self) -> list[Any]:
        return []

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        return [TopicPartition(partition.topic, partition.partition, -1001) for partition in partitions]

    def assign(self, partitions: list[Any]) -> None: ...

    def pause(self, _: list[Any]) -> None:
        self.paused = True

    def resume(self, _: list[Any]) -> None:
        self.paused = False

    def close(self) -> None: ...


def nothing(_: Any) -> None: ...


def lose(client: Any) -> None:
    client.callbacks["on_revoke"](client, [client.partition])


def lose_and_regain(client: Any) -> None:
    lose(client)
    client.callbacks["on_assign"](client, [client.partition])


@pytest.mark.parametrize("between", [lose, lose_and_regain])
async def test_a_message_read_before_its_partition_moved_is_left_to_the_next_owner(
    between: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[FakeClient] = []

    def make(properties: dict[str, Any]) -> FakeClient:
        clients.append(FakeClient(properties, [([0, 1, 2], nothing), ([3], between)]))
        return clients[0]

    monkeypatch.setattr(confluent_kafka, "Consumer", make)
    handled: list[int] = []

    async def handle(record: ConsumedRecord) -> None:
        await asyncio.sleep(0.05)
        handled.append(record.offset)

    reader, stop = TopicReader(SETTINGS, "group", "orders", handle, cluster=CLUSTER), asyncio.Event()
    running = asyncio.create_task(reader.run(stop, 5))
    await until_in_thread(lambda: clients and clients[0].exhausted)
    await asyncio.sleep(0.6)  # what was accepted would have ended, and its offset would be committed
    stop.set()
    await running
    assert handled == [0]
    assert max(clients[0].commits) == 1
    assert list(reader.lags()) == []


async def test_an_assignment_while_much_is_pending_does_not_prevent_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[FakeClient] = []

    def assign_again(client: Any) -> None:
        client.callbacks["on_assign"](client, [client.partition])

    def make(properties: dict[str, Any]) -> FakeClient:
        batches = [([0, 1, 2], nothing), ([3, 4], assign_again), ([5, 6, 7, 8], nothing)]
        clients.append(FakeClient(properties, batches))
        return clients[0]

    monkeypatch.setattr(confluent_kafka, "Consumer", make)
    go_on = asyncio.Event()

    async def handle(_: ConsumedRecord) -> None:
        await go_on.wait()

    reader, stop = TopicReader(SETTINGS, "group", "orders", handle, cluster=CLUSTER, max_pending=6), asyncio.Event()
    running = asyncio.create_task(reader.run(stop, 0))
    await until_in_thread(lambda: clients and clients[0].paused)
    go_on.set()
    stop.set()
    await running


@pytest.mark.parametrize(("fill_time", "fetch"), [(0.0, None), (0.02, 20)])
async def test_a_reader_with_a_fill_time_waits_for_more_at_the_broker_and_here(
    fill_time: float, fetch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[FakeClient] = []

    def make(properties: dict[str, Any]) -> FakeClient:
        clients.append(FakeClient(properties, [([0, 1], nothing)]))
        return clients[0]

    monkeypatch.setattr(confluent_kafka, "Consumer", make)
    handled: list[int] = []

    async def handle(record: ConsumedRecord) -> None:
        handled.append(record.offset)

    reader, stop = (
        TopicReader(SETTINGS, "group", "orders", handle, cluster=CLUSTER, fill_time=fill_time),
        asyncio.Event(),
    )
    running = asyncio.create_task(reader.run(stop, 5))
    await until_in_thread(lambda: handled == [0, 1])
    stop.set()
    await running
    assert clients[0].properties.get("fetch.wait.max.ms") == fetch
    assert clients[0].waited == [fill_time]
