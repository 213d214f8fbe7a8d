"""An attempt cancelled at any point leaves no lock and no open transaction, without the garbage collector's help."""

from __future__ import annotations

import asyncio
import gc
import time
import types
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.action_sql import ActionSql
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from sagas.settings import SqlConnection
from tests.helpers.waiting import LIMIT
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, open_guard_database

"""Seconds another attempt waits for a lock."""

ATTEMPT = 120.0
"""Seconds the cancelled attempt might have taken: its own lock and idle limits do not explain that a lock is free."""

_OPEN_TRANSACTIONS = {
    "postgres": "select pid, state, query from pg_stat_activity where xact_start is not null"
    " and pid <> pg_backend_pid() and backend_type = 'client backend'",
    "mariadb": "select trx_mysql_thread_id, trx_state, trx_query from information_schema.innodb_trx",
    "sqlite": "pragma wal_checkpoint(truncate)",
}


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest_asyncio.fixture
async def other(guard_database: GuardDatabase) -> AsyncIterator[GuardDatabase]:
    """A second pool on the database of the test: no attempt is cancelled in it."""
    opened = await open_guard_database(guard_database.kind, guard_database.url)
    yield opened
    await opened.connections.close()


@types.coroutine
def _cancelled_at(
    suspension: int, attempt: Coroutine[Any, Any, Any], reached: asyncio.Event
) -> Generator[Any, Any, Any]:
    task = asyncio.current_task()
    assert task is not None
    count = 0
    error: BaseException | None = None
    while True:
        try:
            waits_for = attempt.send(None) if error is None else attempt.throw(error)
        except StopIteration as stop:
            return stop.value
        count += 1
        if count == suspension:
            reached.set()
            asyncio.get_running_loop().call_soon(task.cancel)
        error = None
        try:
            yield waits_for
        except BaseException as thrown:  # noqa: BLE001 - the attempt says what becomes of it
            error = thrown


async def cancelled_at(suspension: int, attempt: Coroutine[Any, Any, Any]) -> bool:
    """Cancel the attempt while it waits for the ``suspension``-th time; False: it never waited so often."""
    reached = asyncio.Event()

    async def run() -> Any:
        return await _cancelled_at(suspension, attempt, reached)

    await asyncio.wait({asyncio.create_task(run())})
    return reached.is_set()


async def until_reached(reached: asyncio.Event, attempt: asyncio.Task[Any]) -> None:
    """Return when the attempt has set the event, or has ended: it may never get there."""
    waiting = asyncio.create_task(reached.wait())
    await asyncio.wait({attempt, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def nothing_is_left(other: GuardDatabase, address: EntryKey) -> None:
    """A seal of the same entry gets its locks, and soon no transaction is open."""
    outcome = await other.guard.seal(address, **clock(LIMIT))
    assert outcome.kind in ("done", "late"), outcome
    end = time.monotonic() + LIMIT
    while open_transactions := await other.rows(_OPEN_TRANSACTIONS[other.kind]):
        if other.kind == "sqlite" and not open_transactions[0][0]:
            return  # the checkpoint found neither a writer nor a reader
        assert time.monotonic() < end, open_transactions
        await asyncio.sleep(0.05)


def connections(guard_database: GuardDatabase) -> DatabaseConnections:
    return DatabaseConnections([SqlConnection(name="shop", url_setting=guard_database.url)], pool_size=1)


async def act(sql: SqlSession) -> str:
    """An action that writes, reads many rows, and is busy elsewhere in between."""
    await sql.execute("insert into effects values ('cancelled', 'charge', 1, 'applied', 0)")
    await asyncio.sleep(0)
    await sql.all("select * from saga_guard")
    await asyncio.sleep(0)
    await sql.execute("update effects set at_time = 1 where saga_id = 'cancelled'")
    return "done"


@pytest.mark.sampled
@pytest.mark.parametrize("pool", ["new", "used"])
async def test_a_cancel_at_every_suspension_point_leaves_nothing(
    guard_database: GuardDatabase, other: GuardDatabase, pool: str
) -> None:
    """``new``: connecting and SQLAlchemy's first questions are points, too."""
    worker = connections(guard_database)
    suspension, reached = 0, True
    while reached:
        suspension += 1
        if pool == "new":
            await worker.close()
            worker = connections(guard_database)
        address = new_address()
        reached = await cancelled_at(suspension, worker.guard("shop").do(address, "h", act, **clock(ATTEMPT)))
        await nothing_is_left(other, address)
    assert suspension > 5
    await worker.close()


ENDLESS = {
    "postgres": "select pg_sleep(120)",
    "mariadb": "select sleep(120)",
    "sqlite": "with recursive n (i) as (select 1 union all select i + 1 from n) select count(*) from n",
}


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["cancelled", "timed out"])
async def test_a_cancel_during_a_statement_leaves_nothing(
    guard_database: GuardDatabase, other: GuardDatabase, end: str
) -> None:
    address = new_address()
    reached = asyncio.Event()

    async def endless(sql: SqlSession) -> None:
        await act(sql)
        reached.set()
        await sql.all(ENDLESS[guard_database.kind])

    time_left = clock(ATTEMPT if end == "cancelled" else 1.5)
    attempt = asyncio.create_task(guard_database.guard.do(address, "h", endless, **time_left))
    await until_reached(reached, attempt)  # it may time out before that
    if end == "cancelled":
        attempt.cancel()
    await asyncio.wait({attempt})
    assert attempt.cancelled() if end == "cancelled" else attempt.result().kind == "failed"
    await nothing_is_left(other, address)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("guard_database", ["postgres"], indirect=True)
async def test_a_lost_request_to_cancel_a_statement_leaves_nothing(
    guard_database: GuardDatabase, other: GuardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL drops a request that arrives before the statement."""

    async def lost(*_: Any, **__: Any) -> None:
        pass

    address = new_address()
    reached = asyncio.Event()

    async def endless(sql: SqlSession) -> None:
        await act(sql)
        reached.set()
        await sql.all(ENDLESS["postgres"])

    attempt = asyncio.create_task(guard_database.guard.do(address, "h", endless, **clock(ATTEMPT)))
    await until_reached(reached, attempt)
    monkeypatch.setattr(psycopg.AsyncConnection, "_try_cancel", lost)
    attempt.cancel()
    await asyncio.wait({attempt})
    assert attempt.cancelled()
    await nothing_is_left(other, address)


async def test_a_cancel_of_a_plain_function_during_a_statement_leaves_nothing(
    guard_database: GuardDatabase, other: GuardDatabase
) -> None:
    """The thread of a plain function cannot be cancelled; its statement can."""
    address = new_address()
    reached = asyncio.Event()
    threads: list[asyncio.Task[Any]] = []

    async def endless(sql: SqlSession) -> None:
        await act(sql)
        thread = asyncio.create_task(asyncio.to_thread(ActionSql(sql).sync().all, ENDLESS[guard_database.kind]))
        threads.append(thread)
        reached.set()
        await asyncio.shield(thread)

    attempt = asyncio.create_task(guard_database.guard.do(address, "h", endless, **clock(ATTEMPT)))
    await until_reached(reached, attempt)
    [thread] = threads
    attempt.cancel()
    await asyncio.wait({attempt, thread})
    assert attempt.cancelled()
    assert thread.cancelled() or thread.exception() is not None
    await nothing_is_left(other, address)


async def test_a_cancel_while_waiting_for_a_lock_leaves_nothing(
    guard_database: GuardDatabase, other: GuardDatabase
) -> None:
    address = new_address()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def holds(sql: SqlSession) -> None:
        reached.set()
        await go_on.wait()

    holder = asyncio.create_task(other.guard.do(address, "h", holds, **clock(ATTEMPT)))
    await until_reached(reached, holder)
    waiter = asyncio.create_task(guard_database.guard.undo(address, act, **clock(ATTEMPT)))
    done, _ = await asyncio.wait({waiter}, timeout=0.5)
    assert not done
    waiter.cancel()
    if guard_database.kind != "sqlite":  # there the wait goes on in a thread, and a lock it gets is released at once
        await asyncio.wait({waiter})
    go_on.set()
    assert (await holder).kind == "done"
    await asyncio.wait({waiter})
    assert waiter.cancelled()
    await nothing_is_left(other, address)
