"""What one item of a chunk does, or takes, is never another one's business."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from saga_activities.action_bodies import ActionBodies
from saga_activities.bulk.chunk_runner import ChunkRunner
from sagas.actions import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.batch import BatchStep, Item
from sagas.errors import UsageError
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, idempotency_key
from tests.helpers.database_servers import DatabaseServer
from tests.integration.guard.conftest import GuardDatabase, new_attempt, open_guard_database

INSERT = "insert into isolated_note values (:id)"


@action("isolated.all", connection="shop", batch=True)
async def all_at_once(step: BatchStep, items: list[Item]) -> list[Any]:
    for item in items:
        await step.sql.execute(INSERT, id=item.saga_id)
        if item["how"] == "unusable":
            raise UsageError("this item uses the engine in an unsupported way")
    return [None for _ in items]


def call(saga_id: str, uses: str, timeout: float = 30.0, **arguments: Any) -> Invocation:
    key = idempotency_key(saga_id, "pay", 1, "")
    return Invocation(uses, arguments, key, saga_id, "pay", "do", 1, timeout, GuardSpec("shop"), saga="order")


def sql(saga_id: str, run: str = INSERT, timeout: float = 30.0, **params: Any) -> Invocation:
    return call(saga_id, "sql", timeout, connection="shop", run=run, params=params)


def ids(count: int) -> list[str]:
    """In the order in which a chunk performs them, if their arguments begin with them."""
    return sorted(f"isolated-{uuid4()}" for _ in range(count))


async def perform(database: GuardDatabase, calls: Sequence[Invocation], seconds: float = 30.0) -> list[Outcome | None]:
    runner = ChunkRunner(database.guard, ActionBodies(Actions([getattr(all_at_once, ACTION_ATTRIBUTE)])))
    return await runner.perform(calls, new_attempt(seconds))


def kinds(outcomes: Sequence[Outcome | None]) -> list[str]:
    return ["none" if one is None else one.kind for one in outcomes]


async def noted(database: GuardDatabase, sagas: Sequence[str]) -> list[bool]:
    """Which of the sagas have had their effect."""
    found = {id for (id,) in await database.rows("select id from isolated_note where id = any(:ids)", ids=[*sagas])}
    return [id in found for id in sagas]


@pytest.fixture
async def database(postgres_server: DatabaseServer) -> AsyncIterator[GuardDatabase]:
    opened = await open_guard_database("postgres", postgres_server.url())
    await opened.rows("create table if not exists isolated_note (id text primary key)")
    yield opened
    await opened.connections.close()


# --- errors of the definition ----------------------------------------------------------------------------------------


async def test_a_missing_parameter_concerns_its_item(database: GuardDatabase) -> None:
    sagas = ids(4)
    outcomes = await perform(database, [sql(id, **({} if n == 2 else {"id": id})) for n, id in enumerate(sagas)])
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
