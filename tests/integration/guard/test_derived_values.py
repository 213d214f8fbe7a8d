"""Parameters whose only destination is a derived table: the right one reaches the column whole, or none is written."""

from __future__ import annotations

import random
from decimal import Decimal
from itertools import product
from typing import NamedTuple

from tests.helpers.sampling import scaled
from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

TYPES = {"postgres": "numeric", "mariadb": "decimal", "sqlite": "numeric"}


class Form(NamedTuple):
    """``is_greatest``: the greatest of both values is written, else the least."""

    statement: str
    is_greatest: bool


FORMS = [
    Form("insert into @ (id, {c}) select 1, max(x) from (select :v as x union select :w) s", True),
    Form("insert into @ (id, {c}) select 1, min(x) from (select :v as x union all select :w) s", False),
    Form("with s(x) as (values (:v), (:w)) insert into @ (id, {c}) select 1, max(x) from s", True),
    Form("insert into @ (id, {c}) with s(x) as (values (:v), (:w)) select 1, max(x) from s", True),
    Form("insert into @ (id, {c}) with s(n, x) as (values (1, :v), (2, :w)) select 1, min(x) from s", False),
    Form("insert into @ (id, {c}) with s(x) as (select :v union select :w) select 1, max(x) from s", True),
    Form("insert into @ (id, {c}) select 1, greatest(coalesce(:v, null), :w)", True),
    Form("insert into @ (id, {c}) select 1, (select max(q) from (select greatest(:v, :w) as q) z)", True),
    Form("insert into @ (id, {c}) select 1, x from (select :v as x union select :w order by x desc limit 1) s", True),
    Form(
        "insert into @ (id, {c}) select distinct 1, x from (select :v as x union select :w) s order by x limit 1", False
    ),
    Form("insert into @ (id, {c}) select 1, :v union select 1, :w order by 2 limit 1", False),
    Form("update @ set {c} = (select max(x) from (select :v as x union select :w) s) where id = 0", True),
    Form(
        "update @ set {c} = (select nullif(max(x), 7) from (select :v as x union all select :w) s) where id = 0", True
    ),
]
PAIRS = [
    ("10.50", "9.25"), (Decimal("10.50"), Decimal("9.25")), ("1.005", "0.5"), (Decimal("1.005"), Decimal("0.5")),
    ("12345678.12345678", "9"), ("10.50", Decimal("9.25")), (10, "9.5"), (100, 9),
]  # fmt: skip


async def test_the_right_value_arrives_whole(guard_database: GuardDatabase) -> None:
    database, type = guard_database, TYPES[guard_database.kind]
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql("drop table if exists derived_values")
        await connection.exec_driver_sql(f"create table derived_values (id int, a {type}(10, 2), b {type}(30, 10))")
    done, cases = 0, list(product(FORMS, ("a", "b"), PAIRS))
    for form, column, (v, w) in random.Random(0).sample(cases, scaled(len(cases) // 8, len(cases))):
        run = form.statement.replace("@", "derived_values").replace("{c}", column)
        if database.kind == "sqlite":
            run = run.replace("greatest(", "max(")
        await execute(database, "delete from derived_values")
        await execute(database, "insert into derived_values (id) values (0)")
        outcome = await execute(database, run, v=v, w=w)
        assert outcome.kind == "done" or not outcome.retryable, (run, v, w, outcome)
        rows = await database.rows(f"select {column} from derived_values where {column} is not null")
        expected = (max if form.is_greatest else min)(Decimal(v), Decimal(w))
        assert [Decimal(str(value)) for (value,) in rows] == ([expected] if outcome.kind == "done" else []), (run, v, w)
        done += outcome.kind == "done"
    assert done > len(cases) // 50
