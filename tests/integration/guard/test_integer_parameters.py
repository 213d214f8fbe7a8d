"""Integers as parameters of PostgreSQL: what a statement computes with them does not depend on their size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from tests.integration.guard.conftest import GuardDatabase, clock, new_address

SIZES = (3, 200, 20_000, 200_000, 2**31, 2**40)


@pytest_asyncio.fixture
async def postgres(guard_database: GuardDatabase) -> AsyncIterator[GuardDatabase]:
    if guard_database.kind != "postgres":
        pytest.skip("MariaDB and SQLite have one type of integers")
    yield guard_database


async def run(database: GuardDatabase, statement: str, *params: Any, **named: Any) -> Outcome:
    async def body(sql: SqlSession) -> Any:
        return await sql.execute(statement, *params, **named)

    return await database.guard.do(new_address(), "h", body, **clock())


async def value(database: GuardDatabase, expression: str, **named: Any) -> Any:
    async def body(sql: SqlSession) -> Any:
        return await sql.scalar(f"select {expression} as v", **named)

    outcome = await database.guard.do(new_address(), "h", body, **clock())
    assert outcome.kind == "done", (expression, named, outcome.failure)
    return outcome.result


async def test_arithmetic_does_not_depend_on_the_size(postgres: GuardDatabase) -> None:
    for a in SIZES:
        for b in SIZES:
            if a * b < 2**63:
                assert await value(postgres, ":a * :b", a=a, b=b) == a * b
                assert await value(postgres, "(select x * y from (select :a as x, :b as y) s)", a=a, b=b) == a * b
                assert await value(postgres, "(select sum(x * y) from (values (:a, :b)) s(x, y))", a=a, b=b) == a * b
            assert await value(postgres, ":a + :b", a=a, b=b) == a + b
            assert await value(postgres, "-:a - :b", a=a, b=b) == -a - b
    assert (
        await value(postgres, "(select sum(q * p) from unnest(:q, :p) s(q, p))", q=[200_000], p=[200_000])
        == 40_000_000_000
    )
    outcome = await run(postgres, "select :a * :b", a=2**40, b=2**40)
    assert outcome.failure is not None
    assert "bigint out of range" in outcome.failure.message
    assert await value(postgres, ":a * 2", a=2**63) == 2**64


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("left('abcdef', :n)", "abc"),
        ("left('abcdef', :n + 1)", "abcd"),
        ("left('abcdef', coalesce(:n, 1))", "abc"),
        ("substring('abcdef', :n)", "cdef"),
        ("substring('abcdef' from :n for :n)", "cde"),
        ("split_part('a,b,c', ',', :n)", "c"),
        ("(date '2026-01-01' + :n)::text", "2026-01-04"),
        ("(date '2026-01-01' - :n)::text", "2025-12-29"),
        ("(:n + date '2026-01-01')::text", "2026-01-04"),
        ("(make_date(2026, 1, :n) + :n)::text", "2026-01-06"),
        ("(timestamp '2026-01-01' + make_interval(days => :n))::text", "2026-01-04 00:00:00"),
        ("(timestamp '2026-01-01' + :n * interval '1 day')::text", "2026-01-04 00:00:00"),
        ("'[1, 2, 3, 4]'::jsonb -> :n", 4),
        ("('[1, 2, 3, 4]'::jsonb - :n)::text", "[1, 2, 3]"),
        ("'[1, 2, 3, 4]'::jsonb #>> array[:n]::text[]", "4"),
        ("(array[1, 2, 3])[:n]", 3),
        ("array[1, 2, 3] @> array[:n]", True),
        ("array[1, 2, 3] && array[:n]", True),
        ("array_position(array[1, 2, 3], :n)", 3),
        ("(select sum(v) from generate_series(1, :n) g(v))", 6),
        ("(select count(*) from (select 1 from generate_series(1, 9) limit :n offset :n) l)", 3),
        ("round(1.23456, :n)", Decimal("1.235")),
        ("round(:n * 1.5, 1)", Decimal("4.5")),
        ("1 << :n", 8),
        ("repeat('x', :n)", "xxx"),
        ("(select lag(v, :n) over () from (values (7)) t(v))", None),
        ("nullif(:n, 3)", None),
        (":n = any(array[1, 2, 3])", True),
        ("chr(:n + 62)", "A"),
        ("pg_advisory_xact_lock(:n) is null", False),
        ("jsonb_build_object('a', :n)", {"a": 3}),
    ],
)  # fmt: skip
async def test_functions_and_operators_that_take_an_integer(
    postgres: GuardDatabase, expression: str, expected: Any
) -> None:
    assert await value(postgres, expression, n=3) == expected


async def test_lists(postgres: GuardDatabase) -> None:
    assert await value(postgres, "array[1, 2] @> :l", l=[1, 2]) is True
    assert await value(postgres, "array_length(:l, 1)", l=[1, 2**40]) == 2
    assert await value(postgres, "2 = any(:l)", l=[1, 2]) is True
    assert await value(postgres, "(select sum(v) from unnest(:l) u(v))", l=[2**31, None, 1]) == 2**31 + 1


async def test_a_column_of_integers_uses_its_index(postgres: GuardDatabase) -> None:
    name = f"integers_{uuid4().hex[:12]}"
    async with postgres.engine.connect() as connection:
        for type in ("smallint", "int", "bigint", "numeric"):
            await connection.exec_driver_sql(f"create table {name}_{type} (id {type} primary key)")
            fill = f"insert into {name}_{type} select v from generate_series(1, 9000) g(v)"
            await connection.exec_driver_sql(f"{fill}; analyze {name}_{type}")
    for type in ("smallint", "int", "bigint", "numeric"):
        async with postgres.engine.connect() as connection:
            query = f"explain select * from {name}_{type} where id = %(n)s"
            plan = (await connection.exec_driver_sql(query, {"n": 7})).all()
        assert "Index Only Scan" in str(plan), (type, plan)


async def test_a_parameter_with_both_types_in_one_statement(postgres: GuardDatabase) -> None:
    name = f"both_{uuid4().hex[:12]}"
    async with postgres.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table {name} (d date, n bigint, s text)")
    rows = [{"n": 2}, {"n": 3}]
    insert = f"insert into {name} values (date '2026-01-01' + :n, :n * 2000000000, left('abc', :n))"
    assert (await run(postgres, insert, rows)).kind == "done"
    assert await postgres.rows(f"select d::text, n, s from {name} order by n") == [
        ("2026-01-03", 4_000_000_000, "ab"),
        ("2026-01-04", 6_000_000_000, "abc"),
    ]
    grouped = f"select left(s, :n) as s, count(*) as c from {name} where n > :n group by left(s, :n)"
    outcome = await run(postgres, grouped, n=2)
    assert outcome.kind == "done", outcome


async def test_the_divisions_of_the_page_on_sql(guard_database: GuardDatabase) -> None:
    whole, exact = {
        "postgres": ("3", "3.3333333333333333"),
        "sqlite": ("3", "3.33333333333333"),
        "mariadb": ("3.3333", "3.33333"),
    }[guard_database.kind]
    as_text = "cast(:x / 3 as char(40))" if guard_database.kind == "mariadb" else "cast(:x / 3 as text)"
    assert str(await value(guard_database, as_text, x=10)).startswith(whole)
    assert str(await value(guard_database, as_text, x=10))[len(whole) :].strip("0.") == ""
    assert str(await value(guard_database, as_text, x=Decimal("10.0"))).startswith(exact)
    cast = {"postgres": ":x::numeric", "sqlite": "cast(:x as real)", "mariadb": "cast(:x as decimal(20, 6))"}
    assert await value(guard_database, f"{cast[guard_database.kind]} / 3", x=10) == await value(
        guard_database, f"{cast[guard_database.kind]} / 3", x=Decimal("10.0")
    )


@pytest.mark.parametrize(
    ("expression", "cast"),
    [
        ("left(:name, :q % 3)", ":q::int"),
        ("left('x', -(3 * :q))", ":q::int"),
        ("(current_date + :q * 2)::text", ":q::int"),
        ("(:q * 2 + current_date)::text", ":q::int"),
        ("substring(:name from :q % 3)", ":q::int"),
    ],
)
async def test_the_advice_names_the_cast_that_works(postgres: GuardDatabase, expression: str, cast: str) -> None:
    given = {"q": 5, "name": "abcdef"} if ":name" in expression else {"q": 5}
    outcome = await run(postgres, f"select {expression} as v", given)
    assert outcome.failure is not None, expression
    assert f"an integer is sent as bigint: cast it where it stands, as `{cast}`" in outcome.failure.message
    await value(postgres, expression.replace(":q", cast), **given)
