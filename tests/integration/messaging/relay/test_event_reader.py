"""Portions of a backlog: each new event once, in order, whatever is committed or left out in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from saga_activities.connections import open_engine
from saga_workers.relay import event_reader
from saga_workers.relay.event_reader import EventReader
from saga_workers.relay.outbox_table import OutboxTable
from sagas.actions.step import Event
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment


@pytest_asyncio.fixture
async def env(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxEnvironment]:
    made = OutboxEnvironment(postgres_server, kafka, tmp_path)
    await made.make_tables()
    made.rows("update saga_outbox_home set shards = 1 returning id")
    yield made
    made.close()


@pytest_asyncio.fixture
async def table(env: OutboxEnvironment) -> AsyncIterator[OutboxTable]:
    engine = open_engine("shop", env.url, 2)
    yield OutboxTable(engine)
    await engine.dispose()


class _Reading:
    """Reads as the pipeline does: the two latest portions are in flight, earlier ones are marked."""

    def __init__(self, table: OutboxTable) -> None:
        self.table, self.reader = table, EventReader(table, 0)
        self.in_flight: list[list[int]] = []

    async def next(self, limit: int, *excluded: str) -> list[tuple[str, int]]:
        rows = await self.reader.read(limit, excluded, [id for portion in self.in_flight for id in portion])
        if rows:
            self.in_flight.append([row.id for row in rows])
        if len(self.in_flight) > 2 or (not rows and self.in_flight):
            oldest = self.in_flight.pop(0)
            assert await self.table.mark_rows_published(0, oldest) == len(oldest)
        return [(row.topic, int(row.value or "")) for row in rows]


def _events(topic: str, *numbers: int) -> list[Event]:
    return [Event(topic, "k", number) for number in numbers]


@pytest.mark.parametrize("ahead", [1, 7, 50_000])
async def test_each_event_is_read_once_in_order(
    env: OutboxEnvironment, table: OutboxTable, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(event_reader, "FOUND_AHEAD", ahead)
    env.emit(*_events("a", *range(100)))
    reading, read, more = _Reading(table), list[int](), list[str]()
    while portion := await reading.next(9) or await reading.next(9) or await reading.next(9):
        read += [number for _, number in portion]
        if len(read) >= 27 and not more:
            more = env.emit(*_events("a", *range(100, 120)))
    assert read == list(range(120))
    assert env.statuses() == {"PUBLISHED": 120}


async def test_an_id_committed_within_a_portion_waits_for_the_next_scan(
    env: OutboxEnvironment, table: OutboxTable
) -> None:
    reading = _Reading(table)
    env.emit(*_events("a", 0, 1, 2))
    with env.connect() as slow:
        with slow.transaction():
            env.insert(slow, *_events("a", 3))
            env.emit(*_events("a", 4, 5, 6))
            assert await reading.next(2) == [("a", 0), ("a", 1)]
            assert await reading.next(1) == [("a", 2)]  # finds 4, 5 and 6, too
        env.emit(*_events("a", 7))
        assert await reading.next(3) == [("a", 4), ("a", 5), ("a", 6)]
        assert await reading.next(9) == [("a", 3), ("a", 7)]


async def test_a_topic_that_was_left_out_is_read_from_its_oldest_event(
    env: OutboxEnvironment, table: OutboxTable
) -> None:
    reading = _Reading(table)
    env.emit(*(event for n in range(6) for event in (*_events("a", n), *_events("b", n))))
    assert await reading.next(1) == [("a", 0)]
    assert await reading.next(3) == [("b", 0), ("a", 1), ("b", 1)]
    assert await reading.next(2, "b") == [("a", 2), ("a", 3)]
    assert await reading.next(3) == [("b", 2), ("b", 3), ("a", 4)]


async def test_events_that_are_not_published_after_all_are_read_again(
    env: OutboxEnvironment, table: OutboxTable
) -> None:
    reading = _Reading(table)
    env.emit(*_events("a", *range(8)))
    assert await reading.next(1) == [("a", 0)]
    assert await reading.next(2) == [("a", 1), ("a", 2)]
    reading.in_flight[-1] = reading.in_flight[-1][:1]
    reading.reader.restart()
    assert await reading.next(2) == [("a", 2), ("a", 3)]
