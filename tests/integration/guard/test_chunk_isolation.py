"""Items of a chunk are isolated: an effect or a delay of one is never another one's business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.bulk.result_room import encode_bounded
from sagas.actions.batch import BatchStep, Item
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.step import Step
from sagas.bulk.wire_format import decode_outcomes
from sagas.errors import UsageError
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import Invocation
from tests.helpers.database_servers import DatabaseServer
from tests.integration.guard.chunk_calls import call, kinds
from tests.integration.guard.conftest import GuardDatabase, new_attempt, open_guard_database

INSERT = "insert into isolated_note values (:id)"


async def work(sql: Any, saga_id: str, how: str) -> Any:
    await sql.execute(INSERT, id=saga_id)
    if how in ("hangs", "lingers"):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(60 if how == "lingers" else 0)  # until it is cancelled once more
    if how == "large":
        return "x" * 300_000
    if how == "unusable":
        raise UsageError("this item uses the engine in an unsupported way")
    return None


@action("isolated.one", connection="shop")
async def one_by_one(step: Step, n: int = 0, how: str = "ok") -> Any:
    return await work(step.sql, step.saga_id, how)


@action("isolated.all", connection="shop", batch=True)
async def all_at_once(step: BatchStep, items: list[Item]) -> list[Any]:
    return [await work(step.sql, item.saga_id, item["how"]) for item in items]


def sql(saga_id: str, run: str = INSERT, timeout: float = 30.0, **params: Any) -> Invocation:
    return call(saga_id, "sql", timeout, connection="shop", run=run, params=params)


def ids(count: int) -> list[str]:
    """In the order in which a chunk performs them, if their arguments begin with them."""
    return sorted(f"isolated-{uuid4()}" for _ in range(count))


async def perform(database: GuardDatabase, calls: Sequence[Invocation], seconds: float = 30.0) -> list[Outcome | None]:
    actions = Actions([getattr(function, ACTION_ATTRIBUTE) for function in (one_by_one, all_at_once)])
    performer = ChunkPerformer(database.guard, ActionBodies(actions))
    return await performer.perform(calls, new_attempt(seconds))


async def noted(database: GuardDatabase, sagas: Sequence[str]) -> list[bool]:
    """True for each saga that has had its effect."""
    noted_ids = {id for (id,) in await database.rows("select id from isolated_note where id = any(:ids)", ids=[*sagas])}
    return [id in noted_ids for id in sagas]


@pytest.fixture
async def database(postgres_server: DatabaseServer) -> AsyncIterator[GuardDatabase]:
    opened = await open_guard_database("postgres", postgres_server.url())
    await opened.rows("create table if not exists isolated_note (id text primary key)")
    yield opened
    await opened.connections.close()


# --- errors of the definition ----------------------------------------------------------------------------------------


async def test_a_missing_parameter_concerns_its_item(database: GuardDatabase) -> None:
    sagas = ids(4)
    outcomes = await perform(database, [sql(id) if n == 2 else sql(id, id=id) for n, id in enumerate(sagas)])
    assert kinds(outcomes) == ["done", "done", "failed", "done"]
    assert await noted(database, sagas) == [True, True, False, True]


async def test_a_usage_error_of_a_batch_action_concerns_its_item(database: GuardDatabase) -> None:
    sagas = ids(4)
    calls = [call(id, "isolated.all", how="unusable" if n == 2 else "ok") for n, id in enumerate(sagas)]
    outcomes = await perform(database, calls)
    assert kinds(outcomes) == ["done", "done", "failed", "done"]
    assert outcomes[2] is not None
    assert not outcomes[2].retryable
    assert await noted(database, sagas) == [True, True, False, True]


async def test_an_unknown_action_of_one_item_concerns_its_item(database: GuardDatabase) -> None:
    """Items of one chunk may have different actions: that which undoes a confirmed effect."""
    sagas = ids(4)
    uses = ["isolated.all", "isolated.all", "isolated.unknown", "isolated.all"]
    outcomes = await perform(database, [call(id, name, how="ok") for id, name in zip(sagas, uses, strict=True)])
    assert kinds(outcomes) == ["done", "done", "failed", "done"]
    assert outcomes[2] is not None
    assert outcomes[2].not_started
    assert await noted(database, sagas) == [True, True, False, True]


# --- settings of the session ------------------------------------------------------------------------------------------

SETS = (
    "with changed as (select set_config('search_path', 'aside', false), set_config('my.mark', 'left', false)"
    " where :sets)"
    " insert into isolated_note select :id || coalesce(current_setting('my.mark', true), '') || current_user"
    " from (select count(*) from changed) counted"
)


@pytest.mark.parametrize("form", ["block", "rows", "alone", "read"])
async def test_what_an_item_sets_does_not_concern_the_next_one(database: GuardDatabase, form: str) -> None:
    """The first item sets the search_path and a setting of its own, and where it writes nothing also the role."""
    await database.rows("create schema if not exists aside")
    await database.rows("create table if not exists aside.isolated_note (id text primary key)")
    reading = SETS.replace("insert into isolated_note ", "")
    reading = reading.replace(" where :sets", ", set_config('role', 'pg_monitor', false) where :sets")
    texts = {"rows": f"{SETS} returning id", "read": reading}
    sagas = ids(3)
    calls: list[Invocation] = []
    for id in sagas:
        statement = sql(id, texts.get(form, SETS), id=id, sets=id == sagas[0])
        if form == "alone":
            run = [{"sql": SETS, "params": statement.arguments["params"]}, {"sql": "select 1"}]
            statement = call(id, "sql", connection="shop", run=run)
        calls.append(replace(statement, reads=form == "read"))
    outcomes = await perform(database, calls)
    [(user,)] = await database.rows("select current_user")
    if form == "read":
        values = [next(iter(outcome.result[0].values())) for outcome in outcomes[1:] if outcome is not None]
    else:
        values = [id for (id,) in await database.rows("select id from isolated_note")]
    assert {f"{id}{user}" for id in sagas[1:]} <= set(values), outcomes


# --- time ------------------------------------------------------------------------------------------------------------


async def perform_all(database: GuardDatabase, calls: Sequence[Invocation], seconds: float) -> list[Outcome]:
    """Perform the calls, and what a chunk has left to the next one, until each has an outcome."""
    ended: dict[str, Outcome] = {}
    for _ in calls:
        remaining = [call for call in calls if call.saga_id not in ended]
        outcomes = await perform(database, remaining, seconds)
        new = {
            chunk_call.saga_id: outcome
            for chunk_call, outcome in zip(remaining, outcomes, strict=True)
            if outcome is not None
        }
        assert new, "nothing was done in a whole chunk"
        ended |= new
        if len(ended) == len(calls):
            break
    return [ended[call.saga_id] for call in calls]


def hanging(uses: str, saga_id: str, n: int, timeout: float, how: str) -> Invocation:
    if uses != "sql":
        return call(saga_id, uses, timeout, n=n, how=how)
    run = "insert into isolated_note select :id from pg_sleep(:seconds) where :a = :a"  # sorted by `a`
    return sql(saga_id, run, timeout, a=n, id=saga_id, seconds=0 if how == "ok" else 60)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(
    ("uses", "timeout", "how"),
    [
        ("isolated.one", 2.0, "hangs"),
        pytest.param("isolated.one", 1.0, "lingers", marks=pytest.mark.slow),
        ("isolated.all", 2.0, "hangs"),
        ("sql", 2.0, "hangs"),  # with less, a slow cancel of the shared statements takes the time of all
    ],
)
async def test_hanging_items_take_only_their_own_time(
    database: GuardDatabase, uses: str, timeout: float, how: str
) -> None:
    """Two of them take all the time of a chunk: it has twice the timeout of its step."""
    sagas = ids(6)
    calls = [hanging(uses, id, n, timeout, how if n in (1, 2) else "ok") for n, id in enumerate(sagas)]
    outcomes = await perform_all(database, calls, 2 * timeout)
    assert kinds(outcomes) == ["done", "failed", "failed", "done", "done", "done"], outcomes
    assert await noted(database, sagas) == [True, False, False, True, True, True]


async def test_reads_that_take_longer_than_a_chunk(database: GuardDatabase) -> None:
    """The last one that begins would end after the time for reads, though its own timeout is far."""
    sagas = ids(5)
    calls = [replace(sql(id, "select :id as id from pg_sleep(0.7)", id=id), reads=True) for id in sagas]
    assert None in await perform(database, calls, 2.0)
    outcomes = await perform_all(database, calls, 2.0)
    assert [(outcome.kind, outcome.result) for outcome in outcomes] == [("done", [{"id": id}]) for id in sagas]


@pytest.mark.parametrize("uses", ["isolated.one", "isolated.all", "sql", "guard row"])
async def test_a_row_that_another_transaction_has_locked_concerns_its_item(database: GuardDatabase, uses: str) -> None:
    sagas = ids(6)
    calls = [sql(id, id=id) if uses in ("sql", "guard row") else call(id, uses, how="ok") for id in sagas]
    statement = INSERT
    if uses == "guard row":
        statement = (
            "insert into saga_guard (saga_id, step, generation, op, reason, created_at)"
            " values (:id, 'pay', 1, 'do', 'do', 0)"
        )
    async with database.engine.connect() as other:
        await other.exec_driver_sql("BEGIN")
        await other.execute(text(statement), {"id": sagas[2]})
        outcomes = await perform(database, calls, 6.0)
        await other.exec_driver_sql("ROLLBACK")
    assert kinds(outcomes) == ["done", "done", "failed", "done", "done", "done"], outcomes
    assert outcomes[2] is not None
    assert outcomes[2].infrastructure
    assert await noted(database, sagas) == [True, True, False, True, True, True]


# --- the size of the results -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("uses", ["isolated.one", "isolated.all", "sql", "reads"])
async def test_results_beyond_one_payload_are_left_to_the_next_chunk(database: GuardDatabase, uses: str) -> None:
    sagas = ids(10)
    if uses == "sql":
        calls = [sql(id, f"{INSERT} returning id, repeat('x', 300000)", id=id) for id in sagas]
    elif uses == "reads":
        calls = [replace(sql(id, "select :id as id, repeat('x', 300000)", id=id), reads=True) for id in sagas]
    else:
        calls = [call(id, uses, n=n, how="large") for n, id in enumerate(sagas)]
    first = await perform(database, calls)
    told = [outcome is not None for outcome in first]
    assert told == [True] * 3 + [False] * 7, "what fits into 1 MiB"
    assert await noted(database, sagas) == ([False] * 10 if uses == "reads" else told), "what is not told had no effect"
    # The answer was lost: the results that are stored already take the room of new ones.
    assert [outcome is not None for outcome in await perform(database, calls)] == told
    postponed = await perform_all(database, calls[3:], 30.0)
    assert kinds(postponed) == ["done"] * 7
    assert all(len(json.dumps(outcome.result)) > 300_000 for outcome in postponed)


def test_failures_beyond_one_payload_are_told_by_the_next_chunk() -> None:
    failed = Outcome("failed", failure=Failure("ValueError", "x" * 8_000), attempt=1)
    stored = Outcome.done("x" * 8_000)
    encoded = encode_bounded([failed, stored] * 500, 1)
    assert len(json.dumps(encoded)) < 2 * 1024 * 1024, "what Temporal accepts"
    outcomes = decode_outcomes(encoded, 1000)
    told = sum(outcome is not None and outcome.failure == failed.failure for outcome in outcomes)
    assert told > 50
    assert kinds(outcomes) == ["failed", "done"] * told + ["none", "unknown"] * (500 - told)
