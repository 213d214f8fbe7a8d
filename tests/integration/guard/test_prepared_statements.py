"""A connection of the guard whose session loses the statements that its driver has prepared, as behind a pooler."""

from __future__ import annotations

from typing import Any

import pytest

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections
from sagas.actions.registry import Actions
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.helpers.new_databases import new_url
from tests.integration.guard.conftest import GuardDatabase, new_address, new_attempt, open_guard_database

ADD = "update stock set free = free + 1 where sku = 'A'"
FORGET = "select forget()"


@pytest.fixture
async def shop(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    database = await open_guard_database("postgresql", await new_url("postgresql", request, tmp_path), pool_size=1)
    async with database.engine.connect() as connection:
        for statement in (
            "create table stock (sku text primary key, free int not null)",
            "insert into stock values ('A', 0)",
            "create function forget() returns void language plpgsql as $$ begin execute 'deallocate all'; end $$",
        ):
            await connection.exec_driver_sql(statement)
    yield database
    await database.connections.close()


async def attempt(shop: GuardDatabase, run: list[str], saga_id: str) -> Outcome:
    dispatcher = Dispatcher(ActionBodies(Actions([])), shop.connections, HttpConnections({}))
    arguments = {"run": [{"sql": statement} for statement in run]}
    call = Invocation("sql", arguments, "k", saga_id, "add", "do", 1, 30.0, GuardSpec("shop"))
    return await dispatcher.perform(call, new_attempt())


@pytest.mark.parametrize("run", [[ADD], [ADD, FORGET], [FORGET, ADD, ADD]], ids=["plain", "after", "before"])
async def test_many_steps_on_one_connection(shop: GuardDatabase, run: list[str]) -> None:
    """A lost statement costs no step an attempt."""
    for _ in range(20):
        outcome = await attempt(shop, run, new_address().saga_id)
        assert (outcome.kind, outcome.failure) == ("done", None)
    assert await shop.rows("select free from stock") == [(20 * run.count(ADD),)]


async def test_a_step_that_loses_its_statements_each_time_fails(shop: GuardDatabase) -> None:
    saga_id = new_address().saga_id
    outcome = await attempt(shop, [*[ADD] * 7, FORGET, ADD], saga_id)
    assert (outcome.kind, outcome.repeats, outcome.retryable, outcome.infrastructure) == ("failed", 2, False, False)
    assert outcome.failure is not None
    assert "has lost what was prepared for it" in outcome.failure.message
    assert outcome.failure.message.endswith(
        f"in `{ADD}`; do not send DEALLOCATE ALL, and let a pooler keep the session of a connection"
    )
    assert await shop.rows("select free from stock") == [(0,)]
