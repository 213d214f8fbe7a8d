"""The built-in action `sql` and the outbox, in the guard's transaction on every database."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from saga_activities.bodies.sql_action import sql_body
from saga_activities.guard.action_sql import ActionSql, until_return
from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, new_attempt

INSERT = "insert into effects values (:saga, 'charge', 1, 'applied', 1.5)"
COUNT = "select kind, count(*) as n from effects where saga_id = :saga group by kind"


async def perform(guard_database: GuardDatabase, run: Any, **more: Any) -> Outcome:
    address = guard_database.current = new_address()
    invocation = Invocation("sql", {}, str(address), address.saga_id, address.entry, "do", 1)
    params = {"params": {"saga": address.saga_id}}
    arguments = (
        {"run": [{**statement, **params} for statement in run]} if isinstance(run, list) else {"run": run, **params}
    )
    body = sql_body({**arguments, **more}, invocation, new_attempt())
    return await guard_database.guard.do(address, "h", body, **clock())


async def test_the_result_is_the_rows_of_the_last_query(guard_database: GuardDatabase) -> None:
    outcome = await perform(guard_database, [{"sql": INSERT}, {"sql": COUNT}, {"sql": INSERT}])
    assert outcome.result == [{"kind": "applied", "n": 1}]
    assert (await guard_database.state(guard_database.current)).applied == 2


async def test_one_statement(guard_database: GuardDatabase) -> None:
    assert (await perform(guard_database, INSERT, expect_rows=1)).result == []


async def test_rows_that_were_not_met_reject_everything(guard_database: GuardDatabase) -> None:
    update = "update effects set at_time = 0 where saga_id = :saga and kind = 'no such kind'"
    run = [{"sql": INSERT}, {"sql": update, "expect_rows": 1, "rejected": "sold out"}]
    outcome = await perform(guard_database, run)
    assert outcome.failure is not None
    assert (outcome.kind, outcome.failure.message) == ("rejected", "sold out")
    assert outcome.failure.details == {"rows": 0, "expected": 1}
    assert (await guard_database.state(guard_database.current)).applied == 0


async def test_an_event_is_a_row_of_the_same_transaction(guard_database: GuardDatabase) -> None:
    event = {"topic": "orders", "key": 7, "value": {"n": Decimal("1.10")}}
    assert (await perform(guard_database, INSERT, emit=[event])).kind == "done"
    query = "select topic, event_key, value, status from saga_outbox where saga_id = :s"
    (row,) = await guard_database.rows(query, s=guard_database.current.saga_id)
    assert tuple(row) == ("orders", "7", '{"n":1.10}', "NEW")
    refused = await perform(guard_database, "update effects set at_time = 0 where saga_id = :saga", expect_rows=5)
    assert refused.kind == "rejected"
    assert await guard_database.rows(query, s=guard_database.current.saga_id) == []


@pytest.mark.parametrize("statement", ["commit", "drop table effects"])
async def test_control_is_refused(guard_database: GuardDatabase, statement: str) -> None:
    outcome = await perform(guard_database, [{"sql": INSERT}, {"sql": statement}])
    assert outcome.kind == "failed"
    assert (await guard_database.state(guard_database.current)).applied == 0


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_statement_that_is_not_awaited_fails(guard_database: GuardDatabase) -> None:
    """An action that does not await its statement would be done without its effect."""

    async def forgetful(sql: SqlSession | None) -> Any:
        assert sql is not None
        step_sql = ActionSql(sql)
        with until_return(step_sql, []):
            step_sql.execute("insert into effects values ('s', 'p', 1, 'forgotten', 0)")  # pyright: ignore[reportUnusedCoroutine]
        return {}

    outcome = await guard_database.guard.do(new_address(), "h", forgetful, **clock())
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert outcome.failure is not None
    assert "`step.sql.execute` was called without `await`" in outcome.failure.message
    assert "write `await step.sql.execute(…)`" in outcome.failure.message
    assert await guard_database.rows("select * from effects where kind = 'forgotten'") == []


async def test_a_parameter_may_have_any_name(guard_database: GuardDatabase) -> None:
    """Among them those of the functions that a call goes through."""
    names = ("self", "statement", "parameters", "named", "name", "method", "args", "call", "sql", "session")
    statement = "select " + ", ".join(f":{name} as a{number}" for number, name in enumerate(names))

    async def work(sql: SqlSession | None) -> Any:
        assert sql is not None
        step_sql = ActionSql(sql)
        with until_return(step_sql, []):
            row = await step_sql.one(statement, **{name: f"it is {name}" for name in names})
        return list(row.values())

    outcome = await guard_database.guard.do(new_address(), "h", work, **clock())
    assert outcome.result == [f"it is {name}" for name in names], outcome
