"""SQL of a step without an effect, a check or a probe: the database refuses its writes, whatever they look like."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from saga_activities.attempt_context import AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections
from sagas.actions.registry import Actions
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.conftest import EntryKey, GuardDatabase, clock, new_address

WRITES = {
    "postgres": (
        "delete from effects",
        "with gone as (delete from effects returning 1) select * from gone",
        "select setval('counter', 7)",
        "select step from effects for update",
        "select remove_effects()",
    ),
    "mariadb": ("delete from effects", "replace into effects (saga_id) values ('x')", "select remove_effects()"),
    "sqlite": (
        "delete from effects",
        "with some as (select 'x' as id) insert into effects (saga_id) select id from some",
    ),
}
FUNCTIONS = {
    "postgres": (
        "create sequence if not exists counter",
        "create or replace function remove_effects() returns int language sql as 'delete from effects returning 1'",
    ),
    "mariadb": (
        "drop function if exists remove_effects",
        "create function remove_effects() returns int begin delete from effects; return 1; end",
    ),
    "sqlite": (),
}


async def perform(
    database: GuardDatabase, address: EntryKey, statement: str, op: str = "do", **expected: Any
) -> Outcome:
    """One attempt of `sql` with this statement."""
    guard = GuardSpec("shop") if op == "do" else None
    arguments = {"connection": "shop", "run": [{"sql": statement, **expected}]}
    invocation = Invocation(
        "sql", arguments, str(address), address.saga_id, address.entry, op, 1, guard=guard, reads=op == "do"
    )
    dispatcher = Dispatcher(ActionBodies(Actions([])), database.connections, HttpConnections({}))
    attempt = AttemptContext(1, time.time(), time.time() + 30, lambda _: None, logging.getLogger("test"))
    return await dispatcher.perform(invocation, attempt)


@pytest.mark.parametrize("op", ["do", "probe"])
async def test_a_read_that_writes_is_refused_by_the_database(guard_database: GuardDatabase, op: str) -> None:
    written = new_address()
    async with guard_database.engine.connect() as connection:
        for statement in FUNCTIONS[guard_database.kind]:
            await connection.exec_driver_sql(statement)
    await guard_database.guard.do(written, "h", guard_database.body("applied", written), **clock())
    for statement in WRITES[guard_database.kind]:
        address = new_address()
        outcome = await perform(guard_database, address, statement, op)
        assert outcome.kind == "failed", statement
        assert outcome.failure is not None
        assert outcome.failure.type == "definition"
        assert outcome.failure.message.startswith("a step without an effect, a check or a probe only reads"), statement
        assert not outcome.retryable
        assert (await guard_database.state(address)).do is None
    assert (await guard_database.state(written)).applied == 1
    another = new_address()  # on the same connections
    assert (
        await guard_database.guard.do(another, "h", guard_database.body("applied", another), **clock())
    ).kind == "done"


async def test_a_read_keeps_the_result_of_its_first_attempt(guard_database: GuardDatabase) -> None:
    address, written = new_address("look"), new_address()
    statement = f"select count(*) as n from effects where saga_id = '{written.saga_id}'"
    assert (await perform(guard_database, address, statement)).result == [{"n": 0}]
    await guard_database.guard.do(written, "h", guard_database.body("applied", written), **clock())
    assert (await perform(guard_database, address, statement)).result == [{"n": 0}]
    assert (await perform(guard_database, new_address("look"), statement)).result == [{"n": 1}]
    assert (await perform(guard_database, new_address("look"), statement, "probe")).result == [{"n": 1}]


async def test_a_read_that_does_not_find_what_it_expects_is_rejected(guard_database: GuardDatabase) -> None:
    address = new_address("look")
    outcome = await perform(guard_database, address, "select 1 as n", expect_rows=2, rejected="not two")
    assert (outcome.kind, outcome.failure and outcome.failure.message) == ("rejected", "not two")
    assert (await guard_database.state(address)).do is None
