"""Parameters of SQL on real databases: what is bound, and what is refused before anything is sent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from saga_activities.bodies.sql_action import sql_body
from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, new_attempt

INSERT = "insert into effects values (:saga, 'charge', 1, 'applied', 1.5)"


async def perform(guard_database: GuardDatabase, arguments: dict[str, Any]) -> Outcome:
    address = guard_database.current
    invocation = Invocation("sql", {}, str(address), address.saga_id, address.entry, "do", 1)
    return await guard_database.guard.do(address, "h", sql_body(arguments, invocation, new_attempt()), **clock())


async def query(guard_database: GuardDatabase, statement: str, **parameters: Any) -> Outcome:
    """The outcome of an action in Python that runs one statement."""

    async def body(sql: SqlSession) -> Any:
        return [list(row.values()) for row in await sql.all(statement, **parameters)]

    return await guard_database.guard.do(new_address(), "h", body, **clock())


WRONG = [
    ("update effects set at_time = 9 -- all where saga_id = :saga", "takes the rest of the statement"),
    ("update effects set at_time = 9 -- all\n", "`saga` is given"),
    ("update effects set at_time = 9 where saga_id = :saga and kind = :kind", "`:kind`"),
    ("update effects set at_time = 9 where saga_id = ':saga'", "a part of a string"),
]


@pytest.mark.parametrize(("statement", "message"), WRONG)
async def test_a_statement_whose_parameters_differ_changes_nothing(
    guard_database: GuardDatabase, statement: str, message: str
) -> None:
    """The step fails for good, and the statements before it in the list have not run either."""
    guard_database.current = new_address()
    params = {"saga": guard_database.current.saga_id}
    run = [{"sql": INSERT, "params": params}, {"sql": statement, "params": params}]
    for arguments in ({"run": statement, "params": params}, {"run": run}):
        outcome = await perform(guard_database, arguments)
        assert outcome.failure is not None
        assert (outcome.kind, outcome.failure.type, outcome.retryable) == ("failed", "definition", False)
        assert message in f"{outcome.failure.message}"
    assert (await guard_database.state(guard_database.current)).applied == 0
    assert await guard_database.rows("select 1 from effects where at_time = 9") == []


async def test_a_refused_statement_of_an_action_fails_its_transaction(guard_database: GuardDatabase) -> None:
    guard_database.current = new_address()

    async def body(sql: SqlSession) -> Any:
        await sql.execute(INSERT, saga=guard_database.current.saga_id)
        with pytest.raises(Exception, match="`:kind`"):
            await sql.execute("update effects set at_time = 9 where kind = :kind", king="x")

    outcome = await guard_database.guard.do(guard_database.current, "h", body, **clock())
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert (await guard_database.state(guard_database.current)).applied == 0


EVERYWHERE = [
    ("select :größe as b, 'ö:a' as c", "y ö:a"),
    ("select '50%' as b, 7 % 4 as c", "50% 3"),
    ("select ':no' as b, '100%' as c, :a", ":no 100% x"),
    ("select /* :no % */ :a as b -- :no\n, 7 % 4 as c", "x 3"),
    ("select 'it''s :no' as b, :a as c, :a", "it's :no x x"),
]
OWN = {
    "postgres": [
        ("select :a::text as b, '12'::int % 5 as c", "x 2"),
        ("select (array[1,2,3])[1:2]::text as b, :a", "{1,2} x"),
        ("select (array[1,2,3])[:low : :high]::text", "{2,3}"),
        ("select '{\"x\": 1}'::jsonb ? :a as b, '{\"x\": 1}'::jsonb ?| array[:a] as c,"
         " '{\"a:b\": 2}'::jsonb ->> 'a:b'", "True True 2"),
        (r"select E'it\'s :no' as b, $$ :no $$ as c, $t$ ':no' $t$ as d, U&'\0061:no' as e, :a",
         "it's :no  :no   ':no'  a:no x"),
        ("select /* :no /* nested */ :no */ :a, \"n:no\" from (select 1 as \"n:no\") t", "x 1"),
        ("select b'101'::text as b, x'1F'::text as c, n'n:no' as d, :a", "101 00011111 n:no x"),
    ],
    "mariadb": [
        (r"""select 'it\'s :no' as b, "say \":no\"" as c, :a # :no""" + "\n", 'it\'s :no say ":no" x'),
        ("select 5--1 as b, @v:=:low as c, `n:no`, :a from (select 1 as `n:no`) t", "6 2 1 x"),
        ("select json_value('{\"a:b\": 2}', '$.a:b') as b, :a", "2 x"),
    ],
    "sqlite": [
        ("select [n:no] as b, \"n:no\" as c, `n:no` as d, :a from (select 1 as [n:no])", "1 1 1 x"),
        ("select 'back\\' as b, :a as c, hex(x'61') as d", "back\\ x 61"),
    ],
}  # fmt: skip


async def test_the_database_reads_the_placeholders_that_we_read(guard_database: GuardDatabase) -> None:
    values = {"a": "x", "low": 2, "high": 3, "größe": "y"}
    for statement, expected in [*EVERYWHERE, *OWN[guard_database.kind]]:
        used = {name: value for name, value in values.items() if re.search(f"(?<!ö):{name}\\b", statement)}
        outcome = await query(guard_database, statement, **used)
        assert outcome.kind == "done", (statement, outcome.failure)
        assert " ".join(map(str, outcome.result[0])) == expected, statement
