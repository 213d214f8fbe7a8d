"""Outcomes of a guard and the health of its connection, on every database: only silence speaks against it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connection_health import has_answered
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.mysql import MysqlTransaction
from saga_activities.guard.postgresql import PostgresTransaction
from saga_activities.guard.rules import GuardedBody
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.unreadable_rows import ChangedRow, MissingRowKey
from sagas.errors import DefiniteFailure, InfrastructureError, NeedsOperator, Rejected, RowLocked, UsageError
from sagas.settings import SqlConnection
from tests.helpers.free_ports import free_port
from tests.integration.guard.conftest import GuardDatabase, clock, new_address


def raising(error: Exception) -> GuardedBody:
    async def act(_: SqlSession) -> Any:
        raise error

    return act


def running(*statements: str) -> GuardedBody:
    async def act(sql: SqlSession) -> Any:
        for statement in statements:
            await sql.execute(statement)

    return act


INSERT = "insert into saga_lock_order (id, position) values (7, 7)"
ANSWERED = {
    "done": running(),
    "a missing table": running("select * from missing"),
    "a value that never fits": running("insert into effects (generation) values (999999999999999999999999)"),
    "a conflict": running(INSERT, INSERT),
    "a row of another saga": raising(RowLocked("the row a", "other", "now")),
    "a row that cannot be restored yet": raising(
        InfrastructureError("the row a is locked, and cannot be restored yet")
    ),
    "a key that this worker lacks": raising(MissingRowKey("no key")),
    "a changed row": raising(ChangedRow()),
    "an operator": raising(NeedsOperator("decide")),
    "a refusal": raising(Rejected("no")),
    "a definite failure": raising(DefiniteFailure("Definite", "no")),
    "a wrong use": raising(UsageError("no")),
    "the action": raising(ValueError("broken")),
    "the action's own network": raising(ConnectionRefusedError("another service")),
    "the action's own timeout": raising(TimeoutError("another service")),
}


@pytest.mark.sampled
@pytest.mark.parametrize("body", ANSWERED.values(), ids=ANSWERED)
async def test_a_database_that_answers_is_well(guard_database: GuardDatabase, body: GuardedBody) -> None:
    outcome = await guard_database.guard.do(new_address(), None, body, **clock())
    assert has_answered(outcome, is_database=True), outcome
    undone = await guard_database.guard.undo(new_address(), body, mode="own", known_done=True, **clock())
    assert has_answered(undone, is_database=True), undone


async def test_an_action_that_takes_too_long_tells_nothing_bad(guard_database: GuardDatabase) -> None:
    async def act(_: SqlSession) -> Any:
        await asyncio.sleep(60)

    outcome = await guard_database.guard.do(new_address(), None, act, **clock(0.5))
    assert outcome.failure is not None
    assert (outcome.failure.type, has_answered(outcome, is_database=True)) == ("Timeout", True)


ENDLESS = {"postgres": "select pg_sleep(60)", "mariadb": "select sleep(60)"}


async def test_a_row_that_the_guard_waits_for_is_not_answered(
    server_guard_database: GuardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of an undo runs out while its second statement waits for a confirm that is not committed."""
    address, reached, ended = new_address(), asyncio.Event(), asyncio.Event()
    guard = server_guard_database.guard
    for transaction in (PostgresTransaction, MysqlTransaction):
        monkeypatch.setattr(transaction, "_lock_share", 10)  # the limit for locks never comes first

    async def hold(_: SqlSession) -> Any:
        reached.set()
        await ended.wait()

    await guard.do(address, None, running(), **clock())
    confirming = asyncio.create_task(guard.confirm(address, hold, **clock()))
    await reached.wait()
    outcome = await guard.undo(address, running(), mode="decide", known_done=True, **clock(0.5))
    ended.set()
    await confirming
    assert has_answered(outcome, is_database=True) is False, outcome


@pytest.mark.parametrize("of", ["the engine", "a thread"])
async def test_a_statement_without_an_answer_is_not_answered(server_guard_database: GuardDatabase, of: str) -> None:
    statement = ENDLESS[server_guard_database.kind]

    async def act(sql: SqlSession) -> Any:
        if of == "the engine":
            await sql.control(statement)
        task = asyncio.create_task(sql.all(statement))  # the end of the action does not cancel it either
        await asyncio.wait({task})

    outcome = await server_guard_database.guard.do(new_address(), None, act, **clock(0.5))
    assert has_answered(outcome, is_database=True) is False, outcome


async def test_an_attempt_that_did_not_begin_tells_nothing(guard_database: GuardDatabase) -> None:
    outcome = await guard_database.guard.do(
        new_address(), None, running(), scheduled_at=time.time(), deadline=time.time() - 1
    )
    assert has_answered(outcome, is_database=True) is None


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://saga@127.0.0.1:{port}/x", "mysql+asyncmy://saga@127.0.0.1:{port}/x"]
)
async def test_a_database_that_is_not_there_has_not_answered(url: str, tmp_path: Path) -> None:
    connections = DatabaseConnections(
        [SqlConnection(name="shop", root=tmp_path, url_setting=url.format(port=free_port()))]
    )
    try:
        outcome = await connections.guard("shop").do(new_address(), None, running(), **clock(5))
    finally:
        await connections.close()
    assert has_answered(outcome, is_database=True) is False, outcome


async def test_a_pool_without_a_free_connection_has_not_answered(guard_database: GuardDatabase) -> None:
    connection = SqlConnection(name="shop", url_setting=guard_database.url, pool_size=1)
    connections = DatabaseConnections([connection])
    reached, done = asyncio.Event(), asyncio.Event()

    async def hold(_: SqlSession) -> Any:
        reached.set()
        await done.wait()

    try:
        guard = connections.guard("shop")
        holder = asyncio.create_task(guard.do(new_address(), None, hold, **clock()))
        await reached.wait()
        outcome = await guard.do(new_address(), None, running(), **clock(0.5))
        done.set()
        await holder
    finally:
        await connections.close()
    assert has_answered(outcome, is_database=True) is False, outcome
