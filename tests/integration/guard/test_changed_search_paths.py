"""A statement of an action changes the search_path of its transaction: the engine writes into its own tables anyway."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections
from sagas.actions.batch import BatchStep, Item
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.step import Step
from sagas.protocol.messages import GuardSpec
from sagas.protocol.payloads import Invocation, idempotency_key
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.conftest import new_attempt, open_guard_database

CHANGE = "select set_config('search_path', 'elsewhere', false)"


@action("one", connection="shop")
async def act(step: Step) -> dict[str, Any]:
    at_first = await step.sql.scalar("select current_schema()::text")
    await step.sql.execute(CHANGE)
    step.emit("effects", key=step.saga_id, value={})
    return {"at first": at_first}


@action("many", connection="shop", batch=True)
async def many(step: BatchStep, items: list[Item]) -> list[Any]:
    await step.sql.execute(CHANGE)
    for item in items:
        item.emit("effects", key=item.saga_id, value={})
    return [{"at first": "public"} for _ in items]


FIND = "select current_schema()::text as \"at first\", set_config('search_path', 'elsewhere', true) as set"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "one": {},
    "many": {},
    "sql": {"connection": "shop", "run": FIND, "emit": [{"topic": "effects", "key": "k", "value": {}}]},
}


def call(name: str) -> Invocation:
    id = f"path-{uuid4()}"
    guard = GuardSpec("shop", "decide", False, None)
    key = idempotency_key(id, "pay", 1, "")
    return Invocation(name, ARGUMENTS[name], key, id, "pay", "do", 1, guard=guard, saga="order")


async def test_results_and_events_are_stored(postgres_server: DatabaseServer) -> None:
    database = await open_guard_database("postgres", new_database(postgres_server))
    await database.rows("create schema elsewhere")
    for table in ("saga_guard", "saga_outbox_row", "saga_outbox_home"):
        await database.rows(f"create table elsewhere.{table} (like public.{table} including all)")
    bodies = ActionBodies(Actions([getattr(act, ACTION_ATTRIBUTE), getattr(many, ACTION_ATTRIBUTE)]))
    single = Dispatcher(bodies, database.connections, HttpConnections({}))
    chunks = ChunkPerformer(database.guard, bodies)
    calls = {name: [call(name) for _ in range(4)] for name in ARGUMENTS}
    outcomes: list[Any] = []
    for alone, *together in calls.values():
        outcomes += [await single.perform(alone, new_attempt()), *await chunks.perform(together, new_attempt())]
    assert [outcome.kind for outcome in outcomes] == ["done"] * 12, outcomes
    stored = await database.rows("select saga_id, result from saga_guard where op = 'do'")
    assert sorted(row.saga_id for row in stored if "public" in row.result) == sorted(
        each.saga_id for calls_of_name in calls.values() for each in calls_of_name
    )
    assert await database.rows("select count(*) from saga_outbox_row") == [(12,)]
    for table in ("saga_guard", "saga_outbox_row"):
        assert await database.rows(f"select count(*) from elsewhere.{table}") == [(0,)]
    await database.connections.close()
