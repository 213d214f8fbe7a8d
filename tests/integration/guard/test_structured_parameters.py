"""Lists and objects in conditions: a database takes them as their items, or the statement is refused before it runs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from tests.integration.guard.conftest import GuardDatabase, clock, new_address

VALUES: list[Any] = [["A", "B"], [1, 2], [1, "B"], [], {"a": "A"}, {}]

PASSING = (
    *("{}", "({})", "coalesce({}, null)", "case when 1 = 1 then {} end", "(select {})", "nullif({}, '')"),
    *("(select c from (select {} as c) s)", "(select s.c from (select * from (select {} as c) q) s)"),
    "(select c from (select 'A' as c union all select {}) s where c <> 'A')",
)
"""Expressions that give a value on."""

SINGLE = (
    *("sku <> {}", "sku not in ({})", "(sku, 1) <> ({}, 1)", "case sku when {} then 1 else 0 end = 0"),
    *("nullif(sku, {}) is not null", "not sku between {} and {}", "sku not like {}", "lower({}) <> sku"),
    "not exists (select 1 from (select {} as c) k where k.c = sku)",
)
"""Conditions that take single values, and hold for every row if these are JSON text."""

OF_DATABASE = {
    "postgres": ("sku not in (values ({}))", "sku <> all (select {})", "sku not in ({} || '')", "sku <> {}::text"),
    "mariadb": (
        *("sku not in (values ({}))", "sku <> all (select {})", "row(sku, 1) <> row({}, 1)", "sku <> greatest({}, '')"),
        *("strcmp(sku, {}) <> 0", "not ifnull({}, 0)", "sku <> cast({} as char)", "not find_in_set(sku, {})"),
        "not json_contains(tags, json_array({}))",
    ),
    "sqlite": ("sku not in (values ({}))", "sku not in ({} || '')", "sku is not {}", "id > cast({} as integer)"),
}  # fmt: skip

TAKEN = {
    "postgres": (
        *(
            "sku <> all({})",
            "sku not in (select v from unnest({}::text[]) v)",
            "not sku = any(coalesce({}, '{{}}'::text[]))",
        ),
        *("not array[sku::text] <@ {}::text[]", "with", "not jsonb_exists(to_jsonb({}::text[]), sku)"),
    ),
    "mariadb": (
        "sku not in (select v from json_table({}, '$[*]' columns (v varchar(9) path '$')) j)",
        *("not json_contains({}, json_quote(sku))", "with"),
    ),
    "sqlite": ("sku not in (select value from json_each({}))", "with"),
}
"""Conditions for the rows whose sku is not in a list; `with`: through a common table expression."""

THROUGH = {
    "postgres": "with k as (select {} as c) delete from TABLE where sku <> all((select c from k)::text[])",
    "mariadb": "delete TABLE from TABLE, (select {} as c) k where not json_contains(k.c, json_quote(sku))",
    "sqlite": "with k as (select {} as c) delete from TABLE where sku not in (select value from k, json_each(k.c))",
}


async def _delete(database: GuardDatabase, statement: str, value: Any) -> tuple[Outcome, list[Any]]:
    """The outcome for a table with A, B and C, and those that are in the table afterwards."""
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql("delete from of_lists")
        await connection.exec_driver_sql("insert into of_lists values (1, 'A', '[]'), (2, 'B', '[]'), (3, 'C', '[]')")

    async def body(sql: SqlSession) -> None:
        await sql.execute(statement.replace("TABLE", "of_lists"), v=value)

    outcome = await database.guard.do(new_address(), "h", body, **clock())
    return outcome, [sku for (sku,) in await database.rows("select sku from of_lists order by sku")]


@pytest.fixture
async def database(guard_database: GuardDatabase) -> GuardDatabase:
    json = "jsonb" if guard_database.kind == "postgres" else "json"
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql("drop table if exists of_lists")
        await connection.exec_driver_sql(f"create table of_lists (id int primary key, sku varchar(20), tags {json})")
    return guard_database


async def test_a_single_value_is_no_list(database: GuardDatabase) -> None:
    chance = random.Random(27)
    conditions = (*SINGLE, *OF_DATABASE[database.kind])
    for number, condition in enumerate(conditions * 6):
        passing = PASSING[0] if number < len(conditions) else chance.choice(PASSING)
        value = chance.choice(VALUES)
        statement = f"delete from TABLE where {condition.replace('{}', passing.format(':v'))}"
        outcome, rows = await _delete(database, statement, value)
        about = (statement, value, outcome)
        assert rows == ["A", "B", "C"], about
        assert (outcome.kind, outcome.retryable) == ("failed", False), about
        assert outcome.failure is not None
        assert outcome.failure.message.startswith("the parameter v is a"), about


async def test_what_takes_a_list_has_its_items(database: GuardDatabase) -> None:
    for condition in TAKEN[database.kind]:
        text = THROUGH[database.kind] if condition == "with" else f"delete from TABLE where {condition}"
        outcome, rows = await _delete(database, text.format(":v"), ["A", "B"])
        assert (outcome.kind, rows) == ("done", ["A", "B"]), (text, outcome.failure)


async def test_an_array_of_postgresql_is_no_object(database: GuardDatabase) -> None:
    if database.kind != "postgres":
        pytest.skip("arrays are PostgreSQL's")
    for condition in ("sku <> all(:v)", "not sku = any(:v::text[])", "not sku = any(array_append(:v, 'A'))"):
        for value in ({}, {"a": "A"}, [1, "A"]):
            outcome, rows = await _delete(database, f"delete from TABLE where {condition}", value)
            assert (outcome.kind, rows) == ("failed", ["A", "B", "C"]), (condition, value, outcome)
            assert outcome.failure is not None
            assert "its place is an array of PostgreSQL: give a list whose items" in outcome.failure.message
