"""A transaction does not outlive its attempt, whatever its worker does; and what an action may not do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.action_sql import ActionSql
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from sagas.errors import Rejected
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES
from sagas.settings import SqlConnection
from tests.helpers.waiting import LIMIT
from tests.integration.guard.conftest import GuardDatabase, clock, new_address

FROZEN_WORKER = """
import asyncio, sys, time
from saga_activities.connections import DatabaseConnections
from sagas.settings import SqlConnection
from saga_activities.guard.entry_key import EntryKey

async def main(url, saga_id):
    async def act(sql):
        await sql.execute("insert into effects values (:s, 'charge', 1, 'applied', 0)", s=saga_id)
        print("open", flush=True)
        await asyncio.sleep(20)
    guard = DatabaseConnections([SqlConnection(name="shop", url=url)]).guard("shop")
    await guard.lookup(EntryKey(saga_id, "charge"), "do", deadline=time.time() + 100)  # connects, which may take long
    now = time.time()
    outcome = await guard.do(EntryKey(saga_id, "charge"), "h", act, scheduled_at=now, deadline=now + 2)
    print(outcome.kind, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.sampled(keep=1)
async def test_a_frozen_worker_is_cut_off_and_the_undo_wins(server_guard_database: GuardDatabase) -> None:
    guard_database, address = server_guard_database, new_address()
    guard_database.current = address
    root = str(Path(__file__).parents[3])
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FROZEN_WORKER, guard_database.url, address.saga_id),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    try:
        assert worker.stdout is not None
        assert await asyncio.wait_for(worker.stdout.readline(), LIMIT) == b"open\n"
        worker.send_signal(signal.SIGSTOP)
        outcome = await guard_database.guard.undo(address, guard_database.body("undone"), **clock(30))
        assert outcome.marker == "nothing_to_undo"
        worker.send_signal(signal.SIGCONT)
        assert (await asyncio.wait_for(worker.stdout.readline(), LIMIT)).strip() in (b"failed", b"late")
    finally:
        if worker.returncode is None:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
        await worker.wait()
    state = await guard_database.state(address)
    assert (state.applied, state.do) == (0, "undo")


@pytest.mark.sampled(keep=1)
async def test_waiting_too_long_is_infrastructure(guard_database: GuardDatabase) -> None:
    address = guard_database.current = new_address()
    reached, done = asyncio.Event(), asyncio.Event()

    async def slow(sql: SqlSession) -> None:
        reached.set()
        await done.wait()

    doing = asyncio.create_task(guard_database.guard.do(address, "h", slow, **clock()))
    await reached.wait()
    outcome = await guard_database.guard.undo(address, guard_database.body("undone"), **clock(6))
    done.set()
    assert (await doing).kind == "done"
    assert (outcome.kind, outcome.infrastructure) == ("failed", True)


async def test_an_action_that_exceeds_its_timeout_is_rolled_back(guard_database: GuardDatabase) -> None:
    address = guard_database.current = new_address()

    async def slow(sql: SqlSession) -> None:
        await guard_database.body("applied")(sql)
        await asyncio.sleep(10)

    outcome = await guard_database.guard.do(address, "h", slow, **clock(0.5))
    assert outcome.failure is not None
    assert (outcome.kind, outcome.failure.type) == ("failed", "Timeout")
    assert (await guard_database.state(address)).applied == 0
    assert (await guard_database.guard.do(address, "h", slow, **clock(-1))).kind == "failed"


async def test_a_cancelled_attempt_is_rolled_back(guard_database: GuardDatabase) -> None:
    address = guard_database.current = new_address()
    reached = asyncio.Event()

    async def slow(sql: SqlSession) -> None:
        await guard_database.body("applied")(sql)
        reached.set()
        await asyncio.sleep(10)

    doing = asyncio.create_task(guard_database.guard.do(address, "h", slow, **clock()))
    await reached.wait()
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert (await guard_database.guard.seal(address, **clock())).marker == "sealed"
    assert (await guard_database.state(address)).applied == 0


async def test_a_swallowed_error_fails_the_transaction(guard_database: GuardDatabase) -> None:
    address = guard_database.current = new_address()

    async def careless(sql: SqlSession) -> str:
        await guard_database.body("applied")(sql)
        with pytest.raises(Exception, match="no_such_table"):
            await sql.execute("insert into no_such_table values (1)")
        return "all is well"

    outcome = await guard_database.guard.do(address, "h", careless, **clock())
    assert (outcome.kind, outcome.infrastructure) == ("failed", False)
    assert (await guard_database.state(address)).applied == 0


async def test_transaction_control_and_ddl_are_refused(guard_database: GuardDatabase) -> None:
    for statement in ("commit", "/* x */ ROLLBACK", "create table leak (a int)", "select 1; commit"):
        address = guard_database.current = new_address()

        async def breaks_out(sql: SqlSession, statement: str = statement) -> None:
            await guard_database.body("applied")(sql)
            await sql.execute(statement)

        outcome = await guard_database.guard.do(address, "h", breaks_out, **clock())
        assert outcome.failure is not None
        assert (outcome.kind, outcome.failure.type, outcome.retryable) == ("failed", "definition", False)
        assert (await guard_database.state(address)).applied == 0


async def test_a_result_that_is_too_large_is_refused_before_commit(guard_database: GuardDatabase) -> None:
    address = guard_database.current = new_address()

    async def large(sql: SqlSession) -> str:
        await guard_database.body("applied")(sql)
        return "x" * MAX_PAYLOAD_BYTES

    outcome = await guard_database.guard.do(address, "h", large, **clock())
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert (await guard_database.state(address)).applied == 0


async def test_a_plain_function_uses_the_same_transaction(guard_database: GuardDatabase) -> None:
    address = guard_database.current = new_address()

    async def act(sql: SqlSession) -> int:
        handle = ActionSql(sql).sync()

        def plain() -> int:
            handle.execute("insert into effects values (:s, 'charge', 1, 'applied', 0)", s=address.saga_id)
            return handle.scalar("select count(*) from effects where saga_id = :s", s=address.saga_id)

        return await asyncio.to_thread(plain)

    assert (await guard_database.guard.do(address, "h", act, **clock())).result == 1
    assert (await guard_database.state(address)).applied == 1


async def test_a_full_pool_is_infrastructure(guard_database: GuardDatabase) -> None:
    connections = DatabaseConnections([SqlConnection(name="shop", url_setting=guard_database.url)], pool_size=1)
    guard, free = connections.guard("shop"), asyncio.Event()
    reached = asyncio.Event()

    async def holds(sql: SqlSession) -> None:
        reached.set()
        await free.wait()

    holding = asyncio.create_task(guard.do(new_address(), "h", holds, **clock()))
    await reached.wait()
    outcome = await guard.do(new_address(), "h", holds, **clock(0.5))
    assert (outcome.kind, outcome.infrastructure) == ("failed", True)
    free.set()
    assert (await holding).kind == "done"
    await connections.close()


async def test_an_existing_row_wins_over_a_manual_result(guard_database: GuardDatabase) -> None:
    guard = guard_database.guard
    first = guard_database.current = new_address()
    assert (await guard.record_manual_result(first, "do", {"id": 7}, **clock())).result == {"id": 7}
    assert (await guard.do(first, "h", guard_database.body("applied"), **clock())).result == {"id": 7}
    assert (await guard.record_manual_result(first, "do", {"id": 8}, **clock())).result == {"id": 7}
    assert (await guard.record_manual_result(first, "undo", "by hand", **clock())).result == "by hand"
    assert (await guard.record_manual_result(first, "do", {"id": 9}, **clock())).kind == "late"
    assert (await guard_database.state(first)).applied == 0


async def test_missing_tables_name_the_command(tmp_path: Path) -> None:
    connections = DatabaseConnections([SqlConnection(name="shop", url_setting=f"sqlite:///{tmp_path / 'empty.db'}")])

    async def nothing(sql: SqlSession) -> None:
        raise Rejected("never reached")

    outcome = await connections.guard("shop").do(EntryKey("s", "a"), "h", nothing, **clock())
    assert outcome.failure is not None
    assert "saga setup" in outcome.failure.message
    await connections.close()


async def test_timestamps_come_from_the_attempt(guard_database: GuardDatabase) -> None:
    address = guard_database.current = new_address()
    await guard_database.guard.do(
        address, "h", guard_database.body("applied"), scheduled_at=500.0, deadline=time.time() + 9
    )
    (row,) = await guard_database.rows("select created_at from saga_guard where saga_id = :s", s=address.saga_id)
    assert row.created_at == 500.0


async def test_a_statement_cut_short_leaves_no_lock(server_guard_database: GuardDatabase) -> None:
    """The attempt is cancelled while the server works on a statement: its transaction must not live on there."""
    guard_database, address = server_guard_database, new_address()
    guard_database.current = address
    sleep = "select pg_sleep(20)" if guard_database.kind == "postgres" else "select sleep(20)"
    reached = asyncio.Event()

    async def slow(sql: SqlSession) -> None:
        await guard_database.body("applied")(sql)
        reached.set()
        await sql.execute(sleep)

    doing = asyncio.create_task(guard_database.guard.do(address, "h", slow, **clock()))
    await reached.wait()
    await asyncio.sleep(0.3)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    outcome = await guard_database.guard.undo(address, guard_database.body("undone"), **clock(4))
    assert outcome.marker == "nothing_to_undo"
    assert (await guard_database.state(address)).applied == 0
