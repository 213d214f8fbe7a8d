"""Chunks under faults: what one item does concerns it alone, and what is not answered is never guessed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk import chunk_performer
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.connections import DatabaseConnections
from saga_activities.guard import commit_wait, watermark
from sagas.actions.batch import BatchStep, Item
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.step import Step
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import FaultProxy, fault_proxy
from tests.helpers.new_databases import new_database
from tests.helpers.waiting import LIMIT
from tests.integration.guard.chunk_calls import call, kinds
from tests.integration.guard.conftest import GuardDatabase, new_attempt, open_guard_database
from tests.integration.guard.test_cancelled_attempts import ENDLESS
from tests.integration.guard.test_lost_commit import COMMIT

Proxied = tuple[GuardDatabase, FaultProxy]


@action("note", connection="shop")
async def note(step: Step, how: str = "ok") -> Any:
    if how == "idles":
        await asyncio.sleep(60)
    await step.sql.execute("insert into chunk_note values (:id)", id=step.saga_id)
    step.emit("notes", key=step.saga_id, value={})
    if how == "hangs":
        await asyncio.sleep(60)
    if how == "freezes":
        freeze()
    if how == "waits":
        await step.sql.all(ENDLESS[step.sql.dialect.replace("postgresql", "postgres")])
    return "x" * (MAX_PAYLOAD_BYTES + 1) if how == "large" else "noted"


@action("notes", connection="shop", batch=True)
async def notes(step: BatchStep, items: list[Item]) -> list[Any]:
    for item in items:
        await step.sql.execute("insert into chunk_note values (:id)", id=item.saga_id)
        item.emit("notes", key=item.saga_id, value={})
    if items[0]["how"] == "freezes":
        freeze()
    if items[0]["how"] == "slow":
        await asyncio.sleep(2.5)
    return ["x" * (MAX_PAYLOAD_BYTES + 1) if item["how"] == "large" else "noted" for item in items]


def freeze() -> None:
    """Stop this process, as if its machine had stopped."""
    print("frozen", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def sql(saga_id: str, run: str, **params: Any) -> Invocation:
    return call(saga_id, "sql", connection="shop", run=run, params=params)


def ids(count: int) -> list[str]:
    return [f"fault-{uuid4()}" for _ in range(count)]


async def perform(database: GuardDatabase, calls: Sequence[Invocation], seconds: float = 30.0) -> list[Outcome | None]:
    actions = Actions([getattr(function, ACTION_ATTRIBUTE) for function in (note, notes)])
    performer = ChunkPerformer(database.guard, ActionBodies(actions))
    return await performer.perform(calls, new_attempt(seconds))


async def counts_of(database: GuardDatabase, saga_id: str) -> tuple[int, int, int]:
    """Numbers of effects, guard rows and events of a saga."""
    counts: Mapping[str, str] = {"chunk_note": "id", "saga_guard": "saga_id", "saga_outbox": "saga_id"}
    totals = [
        (await database.rows(f"select count(*) from {table} where {column} = :id", id=saga_id))[0][0]
        for table, column in counts.items()
    ]
    return totals[0], totals[1], totals[2]


async def make_tables(database: GuardDatabase) -> None:
    await database.rows("create table if not exists chunk_note (id varchar(200) primary key)")
    await database.rows("create table if not exists chunk_account (id varchar(200) primary key, balance integer)")


@pytest.fixture
async def database(guard_database: GuardDatabase) -> GuardDatabase:
    await make_tables(guard_database)
    return guard_database


@pytest.fixture(params=["postgres", "mariadb"])
async def behind_proxy(request: pytest.FixtureRequest) -> AsyncIterator[Proxied]:
    server: DatabaseServer = request.getfixturevalue(f"{request.param}_server")
    async with fault_proxy(server.port) as proxy:
        opened = await open_guard_database(request.param, server.url(port=proxy.port))
        await make_tables(opened)
        yield opened, proxy
        await opened.connections.close()


@pytest.mark.sampled
@pytest.mark.parametrize("fault", ["cut_after", "cut_before", "swallow_answer"])
async def test_a_lost_commit_is_repeated(behind_proxy: Proxied, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    database, proxy = behind_proxy
    monkeypatch.setattr(commit_wait, "COMMIT_GRACE", 1.0)
    sagas = ids(6)
    proxy.arm(COMMIT[database.kind], fault)
    assert kinds(await perform(database, [call(id) for id in sagas])) == ["done"] * 6
    assert proxy.triggered == 1
    assert [await counts_of(database, id) for id in sagas] == [(1, 1, 1)] * 6


async def test_the_commit_of_a_chunk_has_the_time_of_its_attempt(
    postgres_server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_wait, "COMMIT_GRACE", 0.3)
    database = await open_guard_database("postgres", new_database(postgres_server))
    await make_tables(database)
    await database.rows(
        "create function check_slowly() returns trigger language plpgsql as"
        " 'begin perform pg_sleep(1); return null; end'"
    )
    await database.rows(
        "create constraint trigger slow after insert on chunk_note deferrable initially deferred"
        " for each row execute function check_slowly()"
    )
    sagas = ids(3)
    assert kinds(await perform(database, [call(id) for id in sagas])) == ["done"] * 3
    assert [await counts_of(database, id) for id in sagas] == [(1, 1, 1)] * 3
    late = ids(4)
    outcomes = await perform(database, [call(id) for id in late], seconds=3.0)
    assert kinds(outcomes) == ["unknown"] * 4
    assert all("set a longer `timeout`" in str(outcome) for outcome in outcomes)
    await database.connections.close()


async def test_a_lost_commit_is_unknown_while_nobody_answers(behind_proxy: Proxied) -> None:
    """Each repetition fails for certain, and none of them tells what became of the first."""
    database, proxy = behind_proxy
    sagas = ids(4)
    proxy.arm(COMMIT[database.kind], "cut_after")

    async def refuse() -> None:
        while not proxy.triggered:  # noqa: ASYNC110 - the proxy has no event for it
            await asyncio.sleep(0.0005)
        proxy.refuse = True

    outcomes, _ = await asyncio.gather(perform(database, [call(id) for id in sagas]), refuse())
    proxy.refuse = False
    if kinds(outcomes) != ["done"] * 4:  # the repetition was faster than the fault
        assert kinds(outcomes) == ["unknown"] * 4
    assert kinds(await perform(database, [call(id) for id in sagas])) == ["done"] * 4
    assert [await counts_of(database, id) for id in sagas] == [(1, 1, 1)] * 4


@pytest.mark.sampled
@pytest.mark.parametrize(("uses", "how"), [("note", "hangs"), ("note", "large"), ("notes", "large")])
async def test_one_item_fails_alone(database: GuardDatabase, uses: str, how: str) -> None:
    sagas = ids(6)
    calls = [call(id, uses, timeout=1.0, how=how if n == 2 else "ok") for n, id in enumerate(sagas)]
    outcomes = await perform(database, calls)
    assert kinds(outcomes) == ["done", "done", "failed", "done", "done", "done"], outcomes
    assert [await counts_of(database, id) for id in sagas] == [(0, 0, 0) if n == 2 else (1, 1, 1) for n in range(6)]


@pytest.mark.parametrize("how", ["idles", "waits"])
async def test_the_database_has_not_answered_a_statement_that_takes_too_long(database: GuardDatabase, how: str) -> None:
    [outcome] = await perform(database, [call(id, timeout=0.5, how=how) for id in ids(1)])
    assert outcome is not None
    assert (outcome.failure and outcome.failure.type, outcome.answered) == ("Timeout", how == "idles")


async def test_a_constraint_at_commit_concerns_its_item(postgres_server: DatabaseServer) -> None:
    database = await open_guard_database("postgres", postgres_server.url())
    table = f"deferred_{uuid4().hex}"
    await database.rows(f"create table {table} (id text unique deferrable initially deferred)")
    await database.rows(f"insert into {table} values ('taken')")
    sagas = ids(8)
    statement = f"insert into {table} values (:id)"
    calls = [sql(id, statement, id="taken" if n == 5 else id) for n, id in enumerate(sagas)]
    outcomes = await perform(database, calls)
    assert kinds(outcomes) == ["done"] * 5 + ["failed"] + ["done"] * 2
    assert (await database.rows(f"select count(*) from {table}"))[0][0] == 8
    guards = await database.rows("select saga_id from saga_guard where saga_id = any(:ids)", ids=sagas)
    assert {id for (id,) in guards} == {*sagas} - {sagas[5]}
    await database.connections.close()


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_chunks_that_meet_at_the_same_rows(postgres_server: DatabaseServer, isolation: str) -> None:
    """Opposite orders of locks, and conflicts of snapshots: each call that says done has its effect, exactly once."""
    database = await open_guard_database("postgres", postgres_server.url(), isolation=isolation)
    await make_tables(database)
    accounts = [f"account-{uuid4()}" for _ in range(6)]
    for account in accounts:
        await database.rows("insert into chunk_account values (:id, 0)", id=account)
    statement = "update chunk_account set balance = balance + 1 where id = :account and :a = :a"

    def chunk(order: Sequence[str]) -> list[Invocation]:
        # Sorted by their arguments, where `a` comes first: so that the chunks lock the rows in opposite orders.
        return [
            sql(id, statement, a=n, account=account)
            for n, (id, account) in enumerate(zip(ids(len(order)), order, strict=True))
        ]

    chunks = [chunk(accounts[::step]) for step in (1, -1, 1, -1)]
    told = await asyncio.gather(*(perform(database, calls) for calls in chunks))
    for _ in range(20):
        failed = [
            outcome.infrastructure
            for outcomes in told
            for outcome in outcomes
            if outcome is not None and outcome.kind != "done"
        ]
        if not failed:
            break
        assert all(failed), told
        told = await asyncio.gather(*(perform(database, calls) for calls in chunks))
    assert [kinds(outcomes) for outcomes in told] == [["done"] * 6] * 4
    rows = await database.rows("select balance from chunk_account where id = any(:ids)", ids=accounts)
    assert [balance for (balance,) in rows] == [4] * 6
    await database.connections.close()


async def test_a_chunk_below_the_watermark_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("watermark")
    database = await open_guard_database("sqlite", f"sqlite:///{folder / 'own.db'}")
    await make_tables(database)
    sagas = ids(3)
    await watermark.raise_to(database.engine, new_attempt().scheduled_at + 1000.0)
    outcomes = await perform(database, [call(id) for id in sagas])
    assert kinds(outcomes) == ["late"] * 3
    assert [await counts_of(database, id) for id in sagas] == [(0, 0, 0)] * 3
    await database.connections.close()


async def perform_and_freeze(kind: str, url: str, uses: str, *sagas: str) -> None:
    """In a process of its own: perform a chunk that freezes in its effects, and has ten minutes; then perform it again,
    as an attempt after it would."""
    chunk_performer.IDLE_GRACE = 0.5
    database = GuardDatabase(DatabaseConnections([SqlConnection(name="shop", url_setting=url)]), kind, url)
    calls = [call(id, uses, timeout=1.0, how="freezes" if n == 0 else "ok") for n, id in enumerate(sagas)]
    for _ in range(2):
        print(*kinds(await perform(database, calls, seconds=600.0)), flush=True)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("uses", [pytest.param("note", marks=pytest.mark.slow), "notes"])
async def test_a_frozen_worker_loses_its_locks_before_the_time_of_its_chunk_ends(
    server_guard_database: GuardDatabase, uses: str
) -> None:
    database, sagas = server_guard_database, ids(4)
    await make_tables(database)
    run = "import asyncio, sys; from tests.integration.guard.test_chunk_faults import perform_and_freeze as go;"
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"{run} asyncio.run(go(*sys.argv[1:]))", database.kind, database.url, uses, *sagas),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        assert worker.stdout is not None
        assert await asyncio.wait_for(worker.stdout.readline(), LIMIT) == b"frozen\n"
        calls = [call(id, uses, how="freezes" if n == 0 else "ok") for n, id in enumerate(sagas)]
        with pytest.MonkeyPatch.context() as here:
            here.setitem(globals(), "freeze", lambda: None)
            assert kinds(await perform(database, calls)) == ["done"] * 4
        worker.send_signal(signal.SIGCONT)
        first, again = [(await asyncio.wait_for(worker.stdout.readline(), LIMIT)).split() for _ in range(2)]
        # An item on its own has exceeded the timeout of its step, which a batch action does not have.
        assert first == ([b"failed"] + [b"none"] * 3 if uses == "note" else [b"done"] * 4)
        assert again == [b"done"] * 4
    finally:
        if worker.returncode is None:
            worker.send_signal(signal.SIGCONT)
            worker.kill()
        await worker.wait()
    assert [await counts_of(database, id) for id in sagas] == [(1, 1, 1)] * 4


async def test_a_batch_action_may_work_for_longer_than_its_transaction_may_be_idle(
    server_guard_database: GuardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, sagas = server_guard_database, ids(3)
    await make_tables(database)
    monkeypatch.setattr(chunk_performer, "IDLE_GRACE", 0.5)
    calls = [call(id, "notes", timeout=0.5, how="slow") for id in sagas]
    assert kinds(await perform(database, calls)) == ["done"] * 3
    assert [await counts_of(database, id) for id in sagas] == [(1, 1, 1)] * 3
