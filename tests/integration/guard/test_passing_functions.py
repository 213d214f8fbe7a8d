"""Functions around a parameter: a value that one gives on unchanged is stored whole, or refused before the effect.

Each test draws from the products of functions, expressions, statements, columns and values.
"""

from __future__ import annotations

import random
from decimal import Decimal
from itertools import product

import pytest

from tests.helpers.sampling import every_nth, scaled
from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

SCHEMA = {
    "postgres": """
drop schema if exists passing cascade;
create schema passing;
create domain passing.cents as numeric(10, 2);
create function passing.keep(x numeric) returns numeric language sql as 'select x';
create or replace function passing_keep(x numeric) returns numeric language sql as 'select x';
create or replace function passing_any(x anyelement) returns anyelement language sql as 'select x';
create or replace function passing_second(label text, x numeric) returns numeric language plpgsql
 as 'begin return x; end';
create or replace function passing_each(variadic x numeric[]) returns numeric language sql as 'select x[2]';
create or replace function passing_out(x numeric, out y numeric) language sql as 'select x';
create or replace function passing_rows(x numeric) returns table (y numeric) language sql as 'select x';
create or replace function "Passing Case"(x numeric) returns numeric language sql as 'select x';
create or replace function passing_cents(x passing.cents) returns text language sql as 'select x';
create or replace function passing_double(x float8) returns text language sql as 'select x';
drop aggregate if exists passing_last(numeric);
create aggregate passing_last(numeric) (sfunc = numeric_larger, stype = numeric);
drop table if exists passing_values;
create table passing_values (id int, a numeric(10, 2), f float8, r real, label text)
""",
    "mariadb": """
create or replace function passing_keep(x decimal(40, 20)) returns decimal(40, 20) deterministic return x;
create or replace function passing_second(label text, x decimal(40, 20)) returns decimal(40, 20) deterministic return x;
create or replace function passing_double(x double) returns double deterministic return x;
create or replace function passing_cents(x decimal(10, 2)) returns decimal(40, 20) deterministic return x;
create or replace table passing_values (id int, a decimal(10, 2), f double, r float, label text)
""",
}
FUNCTIONS = {
    "postgres": [
        "passing.keep({})", "passing_keep({})", "passing_keep(x => {})", "passing_any({}::numeric)",
        '"Passing Case"({})',
        "passing_second('x', {})", "passing_each(1, {}, 2)", "passing_out({})",
        "(select y from passing_rows({}) as k(y))",
        "(select passing_last(s.v) from (values ({}::numeric)) s(v))",
        "(select passing_keep(s.v) from (select {}::numeric as v) s)",
        "(select lag(s.v, 0) over () from (select {}::numeric as v) s)",
    ],
    "mariadb": [
        "passing_keep({})", "guard.passing_keep({})", "passing_second('x', {})", "passing_double({})",
        "passing_cents({})", "(select passing_keep(s.v) from (select {} as v) s)",
    ],
}  # fmt: skip
EXPRESSIONS = ["{}", "coalesce({}, 0)", "case when 1 = 1 then {} else 0 end", "({})", "nullif({}, 77)", "0 + {}"]
STATEMENTS = [
    "insert into passing_values (id, {column}) values (1, {value})",
    "insert into passing_values (id, {column}) select 1, {value}",
    "update passing_values set {column} = {value} where id = 0",
    "update passing_values set label = 'x', {column} = (select {value}) where id = 0",
]
VALUES = ["1.005", Decimal("1.005"), Decimal("1.25"), "1.25", 7, Decimal("0.12345678901234567"), "16777217.25"]
FITS = (Decimal("1.25"), "1.25", 7)


async def _new_tables(database: GuardDatabase) -> None:
    async with database.engine.connect() as connection:
        for statement in SCHEMA[database.kind].split(";\n"):
            await connection.exec_driver_sql(statement.strip())


async def _fresh(database: GuardDatabase) -> None:
    await execute(database, "delete from passing_values")
    await execute(database, "insert into passing_values (id) values (0)")


@pytest.mark.parametrize("seed", range(scaled(1, 10)))
async def test_a_value_that_passes_through_is_stored_whole_or_refused(
    server_guard_database: GuardDatabase, seed: int
) -> None:
    database = server_guard_database
    await _new_tables(database)
    cases = list(product(FUNCTIONS[database.kind], EXPRESSIONS, STATEMENTS, ("a", "f", "r"), VALUES))
    refused = 0
    for function, expression, statement, column, value in random.Random(seed).sample(cases, 40):
        run = statement.format(column=column, value=expression.format(function.format(":v")))
        await _fresh(database)
        outcome = await execute(database, run, v=value)
        assert outcome.kind == "done" or not outcome.retryable, (run, value, outcome)
        rows = await database.rows(f"select {column} from passing_values where {column} is not null")
        if outcome.kind == "done":
            assert [Decimal(str(stored)) for (stored,) in rows] == [Decimal(str(value))], (run, value)
        else:
            refused += 1
            assert rows == [], (run, value)
            assert value not in FITS, (run, value, outcome)
            assert outcome.failure is not None
            assert outcome.failure.message.startswith("the parameter v is "), (run, value, outcome)
    assert 8 < refused < 32


AUTHOR = [
    "round(passing_keep(:v), 2)", "passing_keep(round(:v, 2))", "cast(passing_keep(:v) as decimal(10, 2))",
    "passing_keep(:v) * 1.19", "passing_keep(:v * 2)", "round(:v, 2)", ":v * 1.19", "floor(passing_keep(:v))",
]  # fmt: skip


async def test_what_the_author_computes_is_rounded_by_the_column(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    await _new_tables(database)
    for value in ("1.005", Decimal("1.005")):
        for expression in AUTHOR:
            outcome = await execute(database, f"insert into passing_values (a) values ({expression})", v=value)
            assert outcome.kind == "done", (expression, value, outcome)
        outcome = await execute(database, "insert into passing_values (a) values (passing_keep(:v))", v=value)
        assert outcome.failure is not None, value
        assert "the function passing_keep may give it on unchanged" in outcome.failure.message
        assert "such as cast(passing_keep(…) as " in outcome.failure.message


async def test_an_argument_that_a_function_would_round_is_refused(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    await _new_tables(database)
    for call, value in [("passing_cents(:v)", "1.005"), ("passing_double(:v)", "0.12345678901234567890")]:
        for given in (value, Decimal(value)):
            run = f"update passing_values set label = 'x' where {call} is not null"
            outcome = await execute(database, run, v=given)
            assert (outcome.kind, outcome.retryable) == ("failed", False), (call, given, outcome)
            assert outcome.failure is not None
            assert outcome.failure.message.startswith("the parameter v is "), (call, given, outcome)


TIMES = {
    "postgres": {
        "t": "timestamp(0)", "tz": "timestamptz(0)", "d": "date", "c": "time(0)", "n": "numeric(10, 2)",
        "i": "interval(0)",
    },
    "mariadb": {"t": "datetime", "d": "date", "c": "time", "n": "decimal(10, 2)"},
}  # fmt: skip
CONVERSIONS = {
    "postgres": [
        '"timestamp"({})', '"timestamp"({}::timestamptz)', 'pg_catalog."timestamp"({}::timestamptz)', "timestamptz({})",
        '"time"({})', '"time"({}::timestamp)', "timetz({}::timestamptz)", '"interval"({})', '"numeric"({})',
        '"numeric"({}::numeric)',
        "passing_moment({})", "passing.amount({})", "timezone('UTC', {}::timestamptz)",
    ],
    "mariadb": [
        "timestamp({})", "timestamp({}, '00:00:00')", "timestamp('2026-05-01', {})", "time({})",
        "convert_tz({}, '+00:00', '+00:00')", "regexp_replace({}, 'q', '')", "(select group_concat(v) from"
        " (select {} as v) s)", "convert({}, datetime(6))", "convert({} using utf8mb4)", "concat({})", "upper({})",
    ],
}  # fmt: skip
"""Casts that are written as functions, and functions that keep what they get."""

MOMENTS = ("2026-05-01T10:00:00.7Z", "2026-05-01T10:00:00Z", "2026-05-01", "10:00:00.7", "10:00:00", "1.239", "1.25")


async def _stored(database: GuardDatabase, column: str) -> list[str]:
    return [str(value) for (value,) in await database.rows(f"select {column} from passing_times")]


@pytest.mark.sampled(keep=1)
async def test_a_cast_that_is_written_as_a_function_keeps_a_value(server_guard_database: GuardDatabase) -> None:
    database, columns = server_guard_database, TIMES[server_guard_database.kind]
    table = ", ".join(map(" ".join, columns.items()))
    statements = ["drop table if exists passing_times", f"create table passing_times ({table})"]
    if database.kind == "postgres":
        statements += [
            "create schema if not exists passing",
            "drop domain if exists passing_moment, passing.amount",
            "create domain passing_moment as timestamptz",
            "create domain passing.amount as numeric",
        ]
    async with database.engine.connect() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)
    done = 0
    for call, column, value in every_nth(5, product(CONVERSIONS[database.kind], columns, MOMENTS)):
        run = f"insert into passing_times ({column}) values ({call.format(':v')})"
        await execute(database, "delete from passing_times")
        outcome = await execute(database, run, v=value)
        about = (run, value, outcome.failure)
        stored = await _stored(database, column)
        if outcome.kind != "done":
            assert (outcome.retryable, stored) == (False, []), about
            continue
        done += 1
        assert not (".7" in value and column != "n"), about
        assert not (value == "1.239" and column == "n"), about
        assert not ("10:00" in value and column == "d"), about
        literal = value if database.kind == "postgres" else value.rstrip("Z")
        async with database.engine.connect() as connection:
            await connection.exec_driver_sql("delete from passing_times")
            await connection.exec_driver_sql(run.replace(":v", f"'{literal}'"))
        assert await _stored(database, column) == stored, about
    is_postgres = database.kind == "postgres"
    for call, column in [
        ('"timestamp"(:v)' if is_postgres else "timestamp(:v)", "t"),
        ('"time"(:v::timestamptz)' if is_postgres else "time(:v)", "c"),
    ]:
        run = f"insert into passing_times ({column}) values ({call})"
        assert (await execute(database, run, v="2026-05-01T10:00:00Z")).kind == "done", run
    assert done > scaled(4, 20)


async def test_a_conversion_of_the_author_is_not_refused(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql("drop table if exists passing_times")
        await connection.exec_driver_sql("create table passing_times (d date, n numeric(10, 2))")
    for call, column, value in [
        ("date(:v)", "d", "2026-05-01T10:00:00Z"),
        ("cast(:v as date)", "d", "2026-05-01T10:00:00Z"),
        ("cast(cast(:v as decimal(10, 3)) as decimal(10, 2))", "n", "1.239"),
    ]:
        outcome = await execute(database, f"insert into passing_times ({column}) values ({call})", v=value)
        assert outcome.kind == "done", (call, outcome)
