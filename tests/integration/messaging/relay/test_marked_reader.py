"""Portions of a backlog where published rows are marked: each new event once, in order, whatever is left out."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_activities.messaging.outbox import event_row
from saga_workers.relay.readers import marked_reader
from saga_workers.relay.readers.event_reader import Portion
from saga_workers.relay.readers.marked_reader import MarkedReader
from saga_workers.relay.relay_process import run_relay
from sagas.actions.events import Event
from sagas.settings import Settings, SqlConnection
from tests.helpers.kafka_broker import Broker

_INSERT = text(
    "insert into saga_outbox (event_id, topic, event_key, value, headers, saga_id, step, generation, status, "
    "created_at, event_type, shard) values (:event_id, :topic, :event_key, :value, :headers, 's', 'pay', 1, :status, "
    ":at, :event_type, :hash % (select shards from saga_outbox_home))"
)


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_engine("shop", f"sqlite:///{tmp_path}/shop.db", 2)
    await create_tables(engine, shards=1)
    yield engine
    await engine.dispose()


async def _emit(engine: AsyncEngine, topic: str, *numbers: int) -> None:
    rows = [{**event_row(Event(topic, "k", number)), "at": time.time()} for number in numbers]
    async with engine.connect() as connection:
        await connection.execute(_INSERT, rows)


async def _statuses(engine: AsyncEngine) -> Counter[str]:
    async with engine.connect() as connection:
        rows = await connection.execute(text("select status, count(*) from saga_outbox group by status"))
        return Counter({row[0]: row[1] for row in rows})


class _Reading:
    """Reads as the pipeline does: the two latest portions are in flight, earlier ones are marked."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.reader, self.in_flight = MarkedReader(engine, 0), list[Portion]()

    async def next(self, limit: int, *excluded: str) -> list[tuple[str, int]]:
        portion = await self.reader.read(limit, excluded)
        if portion.rows:
            self.in_flight.append(portion)
        if len(self.in_flight) > 2 or (not portion.rows and self.in_flight):
            oldest = self.in_flight.pop(0)
            assert await self.reader.record(oldest, oldest.rows) == len(oldest.rows)
        return [(row.topic, int(row.value or "")) for row in portion.rows]


@pytest.mark.parametrize("ahead", [1, 7, 50_000])
async def test_each_marked_event_is_read_once_in_order(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(marked_reader, "FOUND_AHEAD", ahead)
    await _emit(engine, "a", *range(100))
    reading, read, is_more = _Reading(engine), list[int](), False
    while portion := await reading.next(9) or await reading.next(9) or await reading.next(9):
        read += [number for _, number in portion]
        if len(read) >= 27 and not is_more:
            is_more = True
            await _emit(engine, "a", *range(100, 120))
    assert read == list(range(120))
    assert await _statuses(engine) == {"PUBLISHED": 120}


async def test_a_topic_is_read_from_its_oldest_event(engine: AsyncEngine) -> None:
    reading = _Reading(engine)
    for number in range(6):
        await _emit(engine, "a", number)
        await _emit(engine, "b", number)
    assert await reading.next(1) == [("a", 0)]
    assert await reading.next(3) == [("b", 0), ("a", 1), ("b", 1)]
    assert await reading.next(2, "b") == [("a", 2), ("a", 3)]
    assert await reading.next(3) == [("b", 2), ("b", 3), ("a", 4)]


async def test_what_is_set_aside_is_read_again(engine: AsyncEngine) -> None:
    reading = _Reading(engine)
    await _emit(engine, "a", *range(8))
    assert await reading.next(1) == [("a", 0)]
    assert await reading.next(2) == [("a", 1), ("a", 2)]
    await reading.reader.set_aside(reading.in_flight[-1].rows[1:])
    assert await reading.next(2) == [("a", 2), ("a", 3)]


async def test_a_relay_marks_what_it_publishes(engine: AsyncEngine, kafka: Broker, tmp_path: Path) -> None:
    topic = await asyncio.to_thread(kafka.create_topic)
    connection = SqlConnection(name="shop", root=tmp_path, url_setting=f"sqlite:///{tmp_path}/shop.db")
    settings = Settings(root=tmp_path, connections={"shop": connection}, kafka=kafka.settings(outbox="shop", batch=20))
    await _emit(engine, topic, *range(100))
    await _emit(engine, f"missing-{topic}", 0)
    for _ in range(2):
        await run_relay(settings, connection="shop", once=True, stop=asyncio.Event())
    records = await asyncio.to_thread(kafka.read_committed, topic)
    assert [record.json() for record in records] == list(range(100))
    assert await _statuses(engine) == {"PUBLISHED": 100, "NEW": 1}
