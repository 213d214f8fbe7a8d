"""The relay's queries of an outbox, on every database."""

from __future__ import annotations

import json
import os
import time

import pytest
from sqlalchemy import text

from saga_activities.guard.sql_session import SqlSession
from saga_activities.messaging.outbox import insert_events
from saga_workers.relay.outbox_table import OutboxTable, read_lag, topics_used
from saga_workers.relay.shard import make_reader
from saga_workers.runtime.lease import Leases
from saga_workers.runtime.process_identity import process_identity
from sagas.actions.events import Event
from sagas.protocol.messages import GuardSpec
from sagas.protocol.payloads import Invocation
from tests.helpers.waiting import until
from tests.integration.guard.conftest import GuardDatabase, clock, new_address


@pytest.fixture
async def rows(guard_database: GuardDatabase) -> OutboxTable:
    async with guard_database.engine.connect() as connection:
        own = ("saga_relay_progress", "saga_relay_passed") if guard_database.engine.dialect.name == "postgresql" else ()
        for table in ("saga_outbox", "saga_relay_lease", *own):
            await connection.execute(text(f"delete from {table}"))
    return OutboxTable(guard_database.engine)


async def shard_with_events(rows: OutboxTable) -> int:
    shards = (await read_lag(rows.engine)).by_status["NEW"]
    [shard] = shards
    return shard


async def emit(guard_database: GuardDatabase, *events: Event, traceparent: str | None = None) -> list[str]:
    address = new_address()
    guard = GuardSpec("shop", holds=True)
    invocation = Invocation("emit", {}, str(address), address.saga_id, address.entry, "do", 1, guard=guard)

    async def act(sql: SqlSession | None) -> list[str]:
        assert sql is not None
        return [event["id"] for event in await insert_events(sql, events, invocation, traceparent=traceparent)]

    outcome = await guard_database.guard.do(address, "h", act, **clock())
    assert outcome.kind == "done", outcome.failure
    return outcome.result


async def no_other_transaction(database: GuardDatabase) -> bool:
    """On PostgreSQL the progress of a shard stays below the oldest open transaction of the server, of any role.

    A worker that a test before has killed may have left a statement that runs on.
    """
    if database.kind != "postgres":
        return True
    await database.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where backend_xid is not null and pid <> pg_backend_pid() and xact_start < now() - interval '10 seconds'"
    )
    [row] = await database.rows("select pg_snapshot_xmin(s) = pg_snapshot_xmax(s) from pg_current_snapshot() as s")
    return row[0]


async def test_the_trace_context_of_the_attempt_is_stored(guard_database: GuardDatabase, rows: OutboxTable) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await emit(guard_database, Event("a", "k", 1), Event("a", "k", 2, {"traceparent": "own"}), traceparent=trace)
    reader = make_reader(rows.engine, await shard_with_events(rows))
    await reader.begin()
    headers = [json.loads(row.headers) for row in (await reader.read(10)).rows]
    assert [header["traceparent"] for header in headers] == [trace, "own"]
    assert all(header["sagakey"] for header in headers)


async def test_rows_are_read_in_order_recorded_refused_and_purged(
    guard_database: GuardDatabase, rows: OutboxTable
) -> None:
    ids = await emit(guard_database, *(Event("a", "k", n) for n in range(4)), Event("b", None, "é", hold=True))
    shard = await shard_with_events(rows)
    reader = make_reader(rows.engine, shard)
    await reader.begin()
    assert not (await reader.read(10, {"a", "c"})).rows
    reader.retry({"a"})
    first = await reader.read(2)
    assert [row.event_id for row in first.rows] == ids[:2]
    assert await reader.record(first, first.rows) == 2
    assert await reader.record_events(ids[1:3]) == 1
    assert await reader.record_events(ids[1:3]) == 0
    reader = make_reader(rows.engine, shard)
    await reader.begin()
    assert [row.event_id for row in (await reader.read(10)).rows] == [ids[3]]
    assert not (await reader.read(10)).rows
    more = await emit(guard_database, Event("a", "k", 4))
    await reader.refuse(ids[3], "too large")
    assert [row.event_id for row in (await reader.read(10)).rows] == more
    lag = await read_lag(guard_database.engine)
    assert {status: lag.total(status).events for status in ("NEW", "HELD", "REFUSED")} == {
        "NEW": 1,
        "HELD": 1,
        "REFUSED": 1,
    }
    assert 0 <= lag.total("NEW").oldest < 600
    assert await topics_used(guard_database.engine) == ["a", "b"]
    assert await reader.republish(ids[:1]) == 1
    assert await reader.republish(ids[:1]) == 0
    await until(lambda: no_other_transaction(guard_database))
    await reader.begin()
    again = await reader.read(10)
    assert [row.event_id for row in again.rows] == [ids[0], *more]
    assert await reader.record(again, again.rows) == 2
    now, retention = time.time(), 1e6
    assert await rows.purge([shard], now, retention) == 0
    assert await rows.purge([shard + 1], now + 2e6, retention) == 0
    assert await rows.purge([shard], now + 1e6 - 10, retention) == 0
    assert await rows.purge([shard], now + 1e6 + 100, retention, limit=2) == 4


async def test_a_lease_has_one_owner_until_it_ends(guard_database: GuardDatabase, rows: OutboxTable) -> None:
    first, second = Leases(guard_database.engine, "one"), Leases(guard_database.engine, "two")
    lease = await first.acquire(0)
    assert lease is not None
    assert await second.acquire(0) is None
    assert await first.renew(lease)
    await first.release(lease)
    taken = await second.acquire(0)
    assert taken is not None
    assert taken.epoch == lease.epoch + 1
    assert not await first.renew(lease)
    await first.release(lease)  # too late: it is not ours
    assert await first.acquire(0) is None


async def test_the_lease_of_a_dead_process_is_free_at_once(guard_database: GuardDatabase, rows: OutboxTable) -> None:
    machine, pid, began, env = process_identity().rsplit("/", 3)
    dead = f"{machine}/{pid}/{float(began) - 100:.2f}/{env}"  # its number is ours by now
    assert int(pid) == os.getpid()
    assert await Leases(guard_database.engine, dead).acquire(1) is not None
    alive = Leases(guard_database.engine, process_identity())
    assert await alive.acquire(1) is not None
    assert await Leases(guard_database.engine, "another").acquire(1) is None


async def test_a_lease_that_is_not_renewed_expires(guard_database: GuardDatabase, rows: OutboxTable) -> None:
    assert await Leases(guard_database.engine, "one", term=-1.0).acquire(2) is not None
    assert await Leases(guard_database.engine, "two").acquire(2) is not None
