"""Windows of an outbox on PostgreSQL: each committed event once and in order, whenever its transaction ends."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_workers.relay.outbox_table import OutboxTable, read_lag, topics_used
from saga_workers.relay.readers import window_reader
from saga_workers.relay.readers.event_reader import Portion, Superseded
from saga_workers.relay.readers.window_reader import WindowReader
from sagas.actions.events import Event
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
async def engine(env: OutboxEnvironment) -> AsyncIterator[AsyncEngine]:
    engine = open_engine("shop", env.url, 2)
    yield engine
    await engine.dispose()


class _Reading:
    """Reads as the pipeline does: the two latest portions are in flight, earlier ones are recorded."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine, self.reader = engine, WindowReader(engine, 0)
        self.in_flight: list[Portion] = []

    async def begin(self) -> _Reading:
        await self.reader.begin()
        return self

    async def next(self, limit: int, *excluded: str) -> list[tuple[str, int]]:
        portion = await self.reader.read(limit, excluded)
        if portion.rows:
            self.in_flight.append(portion)
        if len(self.in_flight) > 2 or (not portion.rows and self.in_flight):
            await self.record_oldest()
        return [(row.topic, int(row.value or "")) for row in portion.rows]

    async def record_oldest(self) -> None:
        oldest = self.in_flight.pop(0)
        assert await self.reader.record(oldest, oldest.rows) == len(oldest.rows)

    async def all(self, limit: int = 100) -> list[tuple[str, int]]:
        """Everything that is left, recorded."""
        collected: list[tuple[str, int]] = []
        while (some := await self.next(limit)) or self.in_flight:
            collected += some
        return collected


def _events(topic: str, *numbers: int) -> list[Event]:
    return [Event(topic, "k", number) for number in numbers]


def _numbers(read: Iterable[tuple[str, int]]) -> list[int]:
    return [number for _, number in read]


@pytest.fixture(params=[1, 7, 200_000])
def found_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(window_reader, "FOUND_AHEAD", request.param)
    return request.param


@pytest.mark.sampled(keep=1)
async def test_each_event_is_read_once_in_order(env: OutboxEnvironment, engine: AsyncEngine, found_ahead: int) -> None:
    env.emit(*_events("a", *range(100)))
    reading, read, more = await _Reading(engine).begin(), list[int](), list[str]()
    while portion := await reading.next(9) or await reading.next(9) or await reading.next(9):
        read += _numbers(portion)
        if len(read) >= 27 and not more:
            more = env.emit(*_events("a", *range(100, 120)))
    assert read == list(range(120))
    assert env.statuses() == {"PUBLISHED": 120}


async def test_a_transaction_is_read_when_it_becomes_visible(env: OutboxEnvironment, engine: AsyncEngine) -> None:
    """A long one holds up no other, whatever its ids are."""
    reading = await _Reading(engine).begin()
    env.emit(*_events("a", 0, 1, 2))
    with env.connect() as slow:
        with slow.transaction():
            env.insert(slow, *_events("a", 3))
            env.emit(*_events("a", 4, 5, 6))
            assert await reading.next(2) == [("a", 0), ("a", 1)]
            assert await reading.next(2) == [("a", 2), ("a", 4)]
            env.emit(*_events("a", 7))
            assert _numbers(await reading.all()) == [5, 6, 7]
            assert env.statuses() == {"PUBLISHED": 7}
            reading = await _Reading(engine).begin()  # a new relay
            assert await reading.all() == []
        env.emit(*_events("a", 8))
        assert _numbers(await reading.all()) == [3, 8]
    assert env.statuses() == {"PUBLISHED": 9}


async def test_prepared_transactions_and_savepoints(env: OutboxEnvironment, engine: AsyncEngine) -> None:
    reading = await _Reading(engine).begin()
    with env.connect() as connection:
        connection.autocommit = False
        connection.tpc_begin(connection.xid(1, "gtrid", "bqual"))
        env.insert(connection, *_events("a", 0))
        with connection.cursor() as cursor:
            cursor.execute("savepoint one")
            env.insert(connection, *_events("a", 1))
            cursor.execute("rollback to one")
            env.insert(connection, *_events("a", 2))
            cursor.execute("release one")
        connection.tpc_prepare()
        env.emit(*_events("a", 3))
        assert _numbers(await reading.all()) == [3]
        connection.tpc_commit()
    env.emit(*_events("a", 4))
    assert _numbers(await reading.all()) == [0, 2, 4]


async def test_a_new_reader_goes_on_in_the_middle_of_a_window(
    env: OutboxEnvironment, engine: AsyncEngine, found_ahead: int
) -> None:
    env.emit(*_events("a", *range(20)))
    first = await _Reading(engine).begin()
    read = 0
    while read < 16:
        read += len(await first.next(4))
    env.emit(*_events("a", 20))
    second = await _Reading(engine).begin()
    published, unpublished = first.in_flight
    named = [row.event_id for row in published.rows]  # by the record in Kafka
    assert await second.reader.record_events(named) == len(named)
    assert await second.reader.record_events(named) == 0
    with pytest.raises(Superseded):
        await first.record_oldest()
    assert _numbers(await second.all()) == list(range(read - len(unpublished.rows), 21))
    assert env.statuses() == {"PUBLISHED": 21}
    assert await second.reader.record_events(named) == 0


async def test_a_frozen_reader_changes_nothing_after_it_was_replaced(
    env: OutboxEnvironment, engine: AsyncEngine
) -> None:
    ids = env.emit(*_events("a", 0, 1))
    frozen = await _Reading(engine).begin()
    portion = await frozen.reader.read(10)
    second = await _Reading(engine).begin()
    assert _numbers(await second.all()) == [0, 1]
    await frozen.reader.refuse(ids[0], "too late")
    await frozen.reader.set_aside(portion.rows)
    assert env.statuses() == {"PUBLISHED": 2}


async def test_released_and_republished_events_are_read_again(env: OutboxEnvironment, engine: AsyncEngine) -> None:
    """A change of the status is enough, also one by hand."""
    reading = await _Reading(engine).begin()
    held, dropped, refused = env.emit(
        Event("a", "k", 0, hold=True), Event("a", "k", 1, hold=True), Event("a", "k", 2), Event("a", "k", 3)
    )[:3]
    assert _numbers(portion := (await reading.next(10))) == [2, 3], portion
    await reading.reader.refuse(refused, "no")
    assert await reading.all() == []
    env.rows(f"update saga_outbox set status = 'NEW' where event_id in ('{held}', '{refused}') returning 1")
    env.rows(f"update saga_outbox set status = 'DROPPED' where event_id = '{dropped}' returning 1")
    env.emit(*_events("a", 4))
    assert _numbers(await reading.all()) == [0, 2, 4]
    assert env.statuses() == {"PUBLISHED": 4, "DROPPED": 1}
    env.rows("update saga_outbox set status = 'NEW' where value = '3' returning 1")
    assert env.statuses() == {"PUBLISHED": 3, "DROPPED": 1, "NEW": 1}
    assert _numbers(await reading.all()) == [3]


async def test_a_topic_that_was_left_out_follows_in_order(env: OutboxEnvironment, engine: AsyncEngine) -> None:
    reading = await _Reading(engine).begin()
    env.emit(*(event for n in range(6) for event in (*_events("a", n), *_events("b", n))))
    assert await reading.next(1) == [("a", 0)]
    assert await reading.next(3) == [("b", 0), ("a", 1), ("b", 1)]
    assert await reading.next(2, "b") == [("a", 2)]
    assert {*reading.reader.set_aside_topics} == {"b"}
    reading = await _Reading(engine).begin()  # a new relay: what was in flight is read again
    assert await reading.next(10) == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("a", 5)]
    env.emit(*_events("b", 6), *_events("a", 6))
    assert (await read_lag(engine)).total("NEW").events == 13
    assert {*reading.reader.set_aside_topics} == {"b"}
    reading.reader.retry(["b"])
    assert not reading.reader.set_aside_topics
    read = await reading.all()
    assert [number for topic, number in read if topic == "b"] == list(range(7))
    assert [number for topic, number in read if topic == "a"] == [6]
    assert env.statuses() == {"PUBLISHED": 14}


_MANY = """
insert into saga_outbox
    (event_id, topic, event_key, value, headers, saga_id, step, generation, status, created_at, shard)
select 'e-' || n, 'a', 'k', n::text, '{}', 's', 'pay', 1, 'NEW', 0, %s from generate_series(1, 40000) as n
"""


@pytest.mark.slow
async def test_statistics_of_another_time_make_nothing_slow(env: OutboxEnvironment, engine: AsyncEngine) -> None:
    """Statistics from before a large transaction tell the planner that the outbox is empty."""
    with env.connect() as connection, connection.transaction():
        connection.execute(_MANY, (0,))
        with env.connect() as other:
            other.execute("analyze saga_outbox_row")
    reading = await _Reading(engine).begin()
    began = time.monotonic()
    while len(reading.in_flight) < 2 or reading.in_flight[-1].rows[-1].event_id != "e-40000":
        assert await reading.next(5000)
    named = [row.event_id for portion in reading.in_flight for row in portion.rows]
    reading = await _Reading(engine).begin()
    assert await reading.reader.record_events(named) == 10_000
    assert await reading.reader.record_events([f"e-{n}" for n in range(1, 10_001)]) == 0
    assert await reading.all() == []
    assert time.monotonic() - began < 8


_TO_OTHER_CLUSTER = """
update saga_outbox_row set xid = (xid::text::bigint + 1000000000)::text::xid8;
update saga_relay_progress set cluster = 'another', done = there.snapshot, reading = there.snapshot
    from (select format('%s:%s:', xmax, xmax)::pg_snapshot as snapshot from
        (select pg_snapshot_xmax(done)::text::bigint + 1000000000 as xmax from saga_relay_progress) as one) as there
"""


async def test_an_outbox_that_was_restored_into_another_cluster(env: OutboxEnvironment, engine: AsyncEngine) -> None:
    """Transaction ids from elsewhere: nothing is lost or published again."""
    reading = await _Reading(engine).begin()
    env.emit(*_events("a", *range(10)))
    assert len(await reading.all()) == 10
    env.emit(*_events("a", *range(10, 15)))
    with env.connect() as connection:
        for statement in _TO_OTHER_CLUSTER.split(";\n"):
            connection.execute(statement)
    env.emit(*_events("a", *range(15, 18)))
    reading = await _Reading(engine).begin()
    env.emit(*_events("a", 18))
    assert _numbers(await reading.all()) == list(range(10, 19))
    assert env.statuses() == {"PUBLISHED": 19}
    reading = await _Reading(engine).begin()
    assert await reading.all() == []


async def test_points_of_another_cluster_purge_no_new_event(env: OutboxEnvironment, engine: AsyncEngine) -> None:
    """The transaction ids of the cluster into which an outbox was restored may be lower than those of the old one."""
    reading, table = await _Reading(engine).begin(), OutboxTable(engine)
    env.emit(*_events("a", 0))
    assert len(await reading.all()) == 1
    assert await table.purge([0], time.time(), 1.0) == 0
    env.rows("update saga_relay_passed set done = '1000000000:1000000000:' returning 1")
    env.rows("update saga_relay_progress set cluster = 'another' returning 1")
    env.emit(*_events("a", 1, 2))
    reading = await _Reading(engine).begin()
    await table.purge([0], time.time() + 10, 1.0)
    assert _numbers(await reading.all()) == [1, 2]


async def test_a_transaction_of_another_database_does_not_delay_the_purge(
    env: OutboxEnvironment, engine: AsyncEngine
) -> None:
    """Snapshots have the transactions of the whole cluster, such as one that was prepared and forgotten."""
    with psycopg.connect(env.server.url().replace("postgresql://", "postgres://")) as elsewhere:
        elsewhere.execute("select pg_current_xact_id()")
        env.emit(*_events("a", 0, 1))
        assert len(await (await _Reading(engine).begin()).all()) == 2
        table = OutboxTable(engine)
        assert await table.purge([0], time.time() + 10, 1.0) == 0
        assert await table.purge([0], time.time() + 20, 1.0) == 2
        elsewhere.rollback()


_GRANTS = """
grant select, update, delete on saga_outbox_row to {role};
grant select on saga_outbox_home, saga_outbox to {role};
grant select, insert, update on saga_relay_lease, saga_relay_progress to {role};
grant select, insert, delete on saga_relay_passed to {role}
"""


async def test_the_documented_grants_are_enough(env: OutboxEnvironment, engine: AsyncEngine) -> None:
    role = f"relay_{env.database}"
    with env.connect() as connection:
        connection.execute(f"create role {role} login password 'relay'".encode())
        for statement in _GRANTS.format(role=role).split(";\n"):
            connection.execute(statement.encode())
    ids = env.emit(*_events("a", *range(5)))
    limited = open_engine(
        "shop", str(make_url(env.url).set(username=role, password="relay").render_as_string(False)), 2
    )
    try:
        reading = await _Reading(limited).begin()
        assert _numbers(await reading.next(2)) == [0, 1]
        await reading.reader.refuse(ids[4], "no")
        assert _numbers(await reading.all()) == [2, 3]
        assert await reading.reader.republish(ids[:1]) == 1
        reading = await _Reading(limited).begin()
        assert _numbers(await reading.next(5, "a")) == []
        reading.reader.retry(["a"])
        assert _numbers(await reading.all()) == [0]
        assert (await read_lag(limited)).total("REFUSED").events == 1
        table = OutboxTable(limited)
        assert await table.purge([0], time.time() + 10, 1.0) == 0
        assert await table.purge([0], time.time() + 20, 1.0) == 4
        assert await topics_used(limited) == ["a"]
    finally:
        await limited.dispose()
        with env.connect() as connection:
            connection.execute(f"drop owned by {role}".encode())
            connection.execute(f"drop role {role}".encode())


async def test_concurrent_writers_that_commit_out_of_order_and_roll_back(
    env: OutboxEnvironment, engine: AsyncEngine
) -> None:
    with env.connect() as connection:
        connection.execute("create table business (id int primary key, n int)")
        connection.execute("insert into business select generate_series(0, 3), 0")
    written: list[tuple[int, int]] = []
    reading, read = await _Reading(engine).begin(), list[tuple[str, int]]()
    writers = [threading.Thread(target=_write, args=(env, seed, written)) for seed in range(6)]
    for writer in writers:
        writer.start()
    restarts = 0
    while any(writer.is_alive() for writer in writers):
        portion = await reading.reader.read(random.choice([3, 50]))
        if portion.rows:
            await reading.reader.record(portion, portion.rows)
            read += [(row.key or "", int(row.value or "")) for row in portion.rows]
        if random.random() < 0.1:
            reading, restarts = await _Reading(engine).begin(), restarts + 1
    while (portion := await reading.reader.read(50)).rows:
        await reading.reader.record(portion, portion.rows)
        read += [(row.key or "", int(row.value or "")) for row in portion.rows]
    assert restarts
    assert sorted((int(key), number) for key, number in read) == sorted(written)
    for key in "0123":
        numbers = [number for name, number in read if name == key]
        assert numbers == sorted(numbers), f"key {key} is out of order"


def _write(env: OutboxEnvironment, seed: int, written: list[tuple[int, int]]) -> None:
    """Transactions whose ids, and those of their rows, are older than those of transactions that they wait for."""
    chance = random.Random(seed)
    with env.connect() as connection:
        for _ in range(60):
            done: list[tuple[int, int]] = []
            with connection.transaction() as transaction:
                connection.execute("select pg_current_xact_id()")
                time.sleep(chance.random() * 0.01)
                for key in sorted({chance.randrange(4), chance.randrange(4)}):
                    [n] = connection.execute(
                        "update business set n = n + 1 where id = %s returning n", (key,)
                    ).fetchall()[0]
                    env.insert(connection, Event("a", str(key), n))
                    done.append((key, n))
                    time.sleep(chance.random() * 0.005)
                if chance.random() < 0.2:
                    done.clear()
                    raise psycopg.Rollback(transaction)
            written += done
