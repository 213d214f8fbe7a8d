"""Text that is a number, compared with a value without a type on SQLite, where the two are never equal: refused."""

from __future__ import annotations

import pytest

from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

CONDITIONS = [
    "json_extract(doc, '$.n') = {}", "doc ->> '$.n' < {}", "x = {}", "x in ({}, '7')", "x between {} and 9",
    "coalesce(json_extract(doc, '$.n'), 0) = {}", "max(x, 1) >= {}", "(x, n) = ({}, 5)", "not (x <> {})",
    "exists (select 1 from (select {} as v) s where s.v = typeless.x)", "case x when {} then 1 else 0 end = 1",
    "exists (select 1 from json_each(typeless.doc) where value = {})",
    "exists (select 1 from json_each(typeless.doc) as each where each.value = {})",
]  # fmt: skip
TYPED = ["n = {}", "s = {}", "doc -> '$.n' = {}", "abs(x) = {}", "upper(x) = {}", "x like {}", "coalesce(n, 0) = {}"]


async def test_text_is_not_compared_with_what_may_be_a_number(guard_database: GuardDatabase) -> None:
    database = guard_database
    if database.kind != "sqlite":
        pytest.skip("the other databases have types")
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql(
            "create table typeless (doc json, x, n integer, s text, hits integer default 0)"
        )
    await execute(database, """insert into typeless (doc, x, n, s) values ('{"n": 5}', 5, 5, '5')""")
    for condition in CONDITIONS:
        run = f"update typeless set hits = hits + 1 where {condition}"
        outcome = await execute(database, run.format(":v"), v="5")
        assert (outcome.kind, outcome.retryable) == ("failed", False), (condition, outcome)
        assert outcome.failure is not None
        assert "which are never equal for SQLite: write `cast(:v as text)` or `cast(:v as numeric)`" in str(outcome)
        assert (await execute(database, run.format(":v"), v=5)).kind == "done", condition
        assert (await execute(database, run.format("cast(:v as text)"), v="5")).kind == "done", condition
        assert (await execute(database, run.format("cast(:v as numeric)"), v="5")).kind == "done", condition
        assert (await execute(database, run.format(":v"), v="five")).kind == "done", condition
    for condition in TYPED:
        before = await database.rows("select hits from typeless")
        run = f"update typeless set hits = hits + 1 where {condition}"
        assert (await execute(database, run.format(":v"), v="5")).kind == "done", condition
        assert await database.rows("select hits from typeless") == [(before[0][0] + 1,)], condition
