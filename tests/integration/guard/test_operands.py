"""Parameters as operands: the statement computes, compares and counts with the value that was given, or fails."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

BIG = 9007199254740993
"""The first integer that a binary float does not have, plus one more."""

EXACT_TYPE = {"postgres": "numeric(38, 18)", "mariadb": "decimal(38, 18)", "sqlite": "integer"}


async def fresh(database: GuardDatabase) -> None:
    exact = EXACT_TYPE[database.kind]
    text = "varchar(60)" if database.kind == "mariadb" else "text"
    async with database.engine.connect() as connection:
        for statement in (
            "drop table if exists operand_rows",
            f"create table operand_rows (id int primary key, n bigint, m {exact}, held {exact}, label {text})",
            f"insert into operand_rows values (1, {BIG}, {BIG}, {BIG}, '{BIG}')",
            "insert into operand_rows values (2, 5, 5, 5, '5')",
        ):
            await connection.exec_driver_sql(statement)
        await connection.commit()


async def rows(database: GuardDatabase, read: str = "n") -> list[Any]:
    return [row[0] for row in await database.rows(f"select {read} from operand_rows order by id")]


ARITHMETIC = [
    ("update operand_rows set n = n - :v where id = 1", BIG - 100),
    ("update operand_rows set n = coalesce(:v, 0) + n where id = 1", BIG + 100),
    ("update operand_rows set n = n + (select :v) where id = 1", BIG + 100),
    ("update operand_rows set n = n * (:v - 99) where id = 1", BIG),
    ("update operand_rows set n = n - case when n > 5 then :v else 0 end where id = 1", BIG - 100),
    ("update operand_rows set n = n + -:v where id = 1", BIG - 100),
    ("update operand_rows set n = (select q.n - :v from (select {0} as n) q) where id = 1", BIG - 100),
    ("update operand_rows set n = (select {0} - q.v from (select :v as v) q) where id = 1", BIG - 100),
]
OF_MARIADB = [
    ("update operand_rows t join (select :v as v) s set t.n = t.n - s.v where id = 1", BIG - 100),
    ("insert into operand_rows (id, n) values (1, {0}) on duplicate key update n = values(n) - :v", BIG - 100),
    ("insert into operand_rows (id, n) select 1, n from (select {0} as n) s on duplicate key update n = s.n - :v",
     BIG - 100),
    ("update low_priority operand_rows set n = n - :v where id = 1", BIG - 100),
    ("update operand_rows set n = (n - :v) where id = 1 order by id limit 1", BIG - 100),
]  # fmt: skip
OF_SQLITE = [
    ("with w(v) as (values (:v)) update operand_rows set n = n - (select v from w) where id = 1", BIG - 100),
    ("insert into operand_rows (id, n) values (1, {0}) on conflict (id) do update set n = excluded.n - :v", BIG - 100),
]


@pytest.mark.sampled
@pytest.mark.parametrize("value", ["100", " +100 ", "100.0", "1e2", 100, Decimal("100.0"), 100.0])
async def test_arithmetic_is_exact(guard_database: GuardDatabase, value: Any) -> None:
    database = guard_database
    if database.kind == "postgres" and isinstance(value, float):
        pytest.skip("PostgreSQL computes with a float of Python as with a float")
    cases = [*ARITHMETIC, *{"mariadb": OF_MARIADB, "sqlite": OF_SQLITE}.get(database.kind, [])]
    for statement, expected in cases:
        await fresh(database)
        outcome = await execute(database, statement.replace("{0}", str(BIG)), v=value)
        case = (statement, value, outcome)
        if database.kind == "postgres" and outcome.kind == "failed":  # it reads text as a bigint, or finds no type
            assert isinstance(value, str), case
            assert (await rows(database))[0] == BIG, case
        else:
            assert outcome.kind == "done", case
            assert (await rows(database))[0] == expected, case


CHOSEN = [
    ("update operand_rows set n = greatest(n, :v) where id = 1", BIG),
    ("update operand_rows set n = greatest(:v, :w) where id = 2", 100),
    ("update operand_rows set n = least(n - 0, :v) where id = 1", 100),
]


async def test_the_greatest_is_the_greatest_number(guard_database: GuardDatabase) -> None:
    database = guard_database
    for statement, expected in CHOSEN:
        if database.kind == "sqlite":
            statement = statement.replace("greatest(", "max(").replace("least(", "min(")
        values = {"v": "100", "w": "9"} if ":w" in statement else {"v": "100"}
        await fresh(database)
        outcome = await execute(database, statement, **values)
        if database.kind == "postgres" and ":w" in statement:
            assert outcome.kind == "failed"  # text for a column of numbers
            continue
        assert outcome.kind == "done", (statement, outcome)
        assert (await rows(database))[1 if "id = 2" in statement else 0] == expected, statement
    await fresh(database)
    least = "min" if database.kind == "sqlite" else "least"
    assert (await execute(database, f"update operand_rows set label = {least}(label, :v)", v="007")).kind == "done"
    assert await rows(database, "label") == ["007", "007"]


COLUMNS = {
    "(select max(x) from (select :v as x union all select 10) s)": 10,
    "(select max(x) from (select 10 as x union all select :v union all select 7) s)": 10,
    "(select x from (select :v as x union all select n + 5 from operand_rows) s order by x desc limit 1 offset 1)": 10,
    "(select count(*) from (select :v as x union select 5) s)": 1,
    "(with s(x) as (values (:v), (10)) select max(x) from s)": 10,
    "(select min(x) from (select :v as x union all select 10) s)": 5,
}


@pytest.mark.parametrize("expression", COLUMNS)
async def test_a_number_in_a_column_of_numbers_is_one(guard_database: GuardDatabase, expression: str) -> None:
    await fresh(guard_database)
    if guard_database.kind == "mariadb" and "values (" in expression:
        pytest.skip("sqlglot does not know this form of VALUES for MariaDB")
    outcome = await execute(guard_database, f"update operand_rows set n = {expression} where id = 1", v="5")
    assert outcome.kind == "done", outcome
    assert (await rows(guard_database))[0] == COLUMNS[expression]


COMPARED: Sequence[tuple[str, str, list[int]]] = [
    ("n + 0 > :v", "6", [1]),
    ("coalesce(n, 0) > :v", "6", [1]),
    ("abs(n) > :v", "6", [1]),
    ("(select n) <= :v", "6", [2]),
    ("n + 1 between :v and :v", "6", [2]),
    ("n between :v and :v", str(BIG - 1), []),
    ("m between :v and :v", str(BIG - 1), []),
    ("case n + 0 when :v then 1 else 0 end = 1", "5", [2]),
    ("n - 0 in (:v)", "5", [2]),
    (":v = n * 1", "5", [2]),
    ("(n + 0, id) = (:v, 2)", "5", [2]),
    ("n >= held + :v", "0", [1, 2]),
    ("n >= held + :v", "1", []),
    ("label = :v", "05", []),
    ("label like :v", "5", [2]),
    ("nullif(n + 0, :v) is null", "5", [2]),
]


@pytest.mark.parametrize(("condition", "value", "matched"), COMPARED)
async def test_text_is_compared_as_a_number_with_numbers(
    guard_database: GuardDatabase, condition: str, value: str, matched: list[int]
) -> None:
    await fresh(guard_database)
    outcome = await execute(guard_database, f"delete from operand_rows where {condition}", v=value)
    assert outcome.kind == "done", outcome
    assert await rows(guard_database, "id") == [id for id in (1, 2) if id not in matched]


async def test_digits_beyond_a_float(guard_database: GuardDatabase) -> None:
    if guard_database.kind == "sqlite":
        pytest.skip("SQLite has no decimals")
    await fresh(guard_database)
    tiny = "0.000000000000000001"
    full = f"{BIG}.000000000000000001"
    added = await execute(guard_database, "update operand_rows set m = m + :v where id = 1", v=tiny)
    assert (added.kind, str((await rows(guard_database, "m"))[0])) == ("done", full)
    held = "update operand_rows set held = held + :v where id = 1 and m >= held + :v"
    assert (await execute(guard_database, held, v="0.000000000000000002")).kind == "done"
    assert str((await rows(guard_database, "held"))[0]) == f"{BIG}.000000000000000000"
    assert (await execute(guard_database, held, v=tiny)).kind == "done"
    assert str((await rows(guard_database, "held"))[0]) == full


@pytest.mark.sampled
@pytest.mark.parametrize("value", ["2 apples", "", "1_000", "0x10", "2026-01-01"])
@pytest.mark.parametrize("expression", ["n + :v", "sum(:v)", "n * :v", "abs(:v)", "n & :v"])
async def test_text_that_is_no_number_is_no_operand(guard_database: GuardDatabase, expression: str, value: str) -> None:
    database = guard_database
    await fresh(database)
    outcome = await execute(database, f"update operand_rows set n = (select {expression}) where id = 2", v=value)
    assert outcome.kind == "failed", outcome
    assert outcome.failure is not None
    if database.kind != "postgres":
        assert f"the parameter v is the text {value}, and its place is an operand" in outcome.failure.message
    assert await rows(database) == [BIG, 5]


@pytest.mark.sampled(turns="guard_database")
@pytest.mark.parametrize("value", ["0x10", "1_0", "-0b1", "1_0.5", " 0o17 "])
async def test_a_number_of_a_program_is_no_number(guard_database: GuardDatabase, value: str) -> None:
    database = guard_database
    await fresh(database)
    if database.kind == "sqlite":
        return  # stores it as the text that it is
    for statement in (
        "update operand_rows set n = :v where id = 2",
        "update operand_rows set m = :v where id = 2",
        "insert into operand_rows (id, n) select 3, x from (select n as x from operand_rows where n = :v) s",
    ):
        outcome = await execute(database, statement, v=value)
        assert (outcome.kind, outcome.retryable) == ("failed", False), statement
        if database.kind == "postgres":
            assert f"the parameter v is the text {value}, which PostgreSQL would read in the notation of a" in str(
                outcome.failure
            )
    if database.kind == "postgres":
        listed = await execute(database, "delete from operand_rows where n = any(:v)", v=["5", value])
        assert listed.kind == "failed"
    assert await rows(database) == [BIG, 5]
    assert (await execute(database, "update operand_rows set label = :v where id = 2", v=value)).kind == "done"
    assert (await rows(database, "label"))[1] == value


async def test_a_time_is_moved_by_an_interval(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "mariadb":
        pytest.skip("the other databases know the types of both operands")
    await fresh(guard_database)
    outcome = await execute(
        guard_database, "update operand_rows set label = :d + interval 1 day where id = 2", d="2026-01-01"
    )
    assert outcome.kind == "done", outcome
    assert (await rows(guard_database, "label"))[1] == "2026-01-02"


COUNTS = {
    "postgres": [
        "update operand_rows set label = (array['a', 'b', 'c'])[:v] where id = 2",
        "update operand_rows set label = (array['a', 'b', 'c'])[:v : 3]::text where id = 2",
        "delete from operand_rows where id in (select id from operand_rows order by id limit :v)",
        "delete from operand_rows where id in (select id from operand_rows order by id offset :v)",
        "delete from operand_rows where id in (select id from operand_rows order by id fetch first (:v) rows only)",
        "update operand_rows set label = (select sum(n) over (order by id rows :v preceding)"
        " from operand_rows limit 1)",
    ],
    "mariadb": [
        "update operand_rows set label = date_add('2026-01-01', interval :v day) where id = 2",
        "update operand_rows set label = '2026-01-01' + interval :v month where id = 2",
        "update operand_rows set label = timestampadd(hour, :v, '2026-01-01') where id = 2",
        "update operand_rows set label = adddate('2026-01-01', :v) where id = 2",
        "update operand_rows set label = left('abcdef', :v) where id = 2",
        "update operand_rows set label = substring('abcdef', :v, 2) where id = 2",
        "update operand_rows set label = repeat('ab', :v) where id = 2",
        "update operand_rows set label = lpad('a', :v, 'b') where id = 2",
        "update operand_rows set m = round(m, :v) where id = 2",
        "update operand_rows set n = n & :v where id = 2",
        "update operand_rows set n = n << :v where id = 2",
        "delete from operand_rows order by id limit :v",
    ],
    "sqlite": [
        "update operand_rows set label = substr('abcdef', :v) where id = 2",
        "update operand_rows set n = n % :v where id = 2",
        "update operand_rows set n = n << :v where id = 2",
        "update operand_rows set n = round(n, :v) where id = 2",
        "delete from operand_rows where id in (select id from operand_rows order by id limit :v)",
    ],
}


@pytest.mark.sampled(turns="guard_database")
@pytest.mark.parametrize("value", [Decimal("1.5"), 1.5, "1.5"])
async def test_a_number_with_a_fraction_counts_nothing(guard_database: GuardDatabase, value: Any) -> None:
    database = guard_database
    await fresh(database)
    read = f"label{' || ' if database.kind != 'mariadb' else ', '}n"
    read = f"concat({read})" if database.kind == "mariadb" else read
    before = await rows(database, read)
    for statement in COUNTS[database.kind]:
        outcome = await execute(database, statement, v=value)
        assert (outcome.kind, await rows(database, read)) == ("failed", before), (statement, outcome)
        assert outcome.failure is not None
        assert not outcome.retryable, (statement, outcome)
        if not (isinstance(value, str) and database.kind == "postgres"):
            assert "the parameter v is 1.5, and its place is an integer" in outcome.failure.message
    for statement in COUNTS[database.kind]:
        outcome = await execute(database, statement, v=2)
        assert outcome.kind == "done", (statement, outcome)


async def test_mariadb_takes_fractions_of_seconds(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "mariadb":
        pytest.skip("the others have no such intervals")
    await fresh(guard_database)
    run = "update operand_rows set label = date_add('2026-01-01 00:00:00', interval :v second) where id = 2"
    assert (await execute(guard_database, run, v=Decimal("1.5"))).kind == "done"
    assert (await rows(guard_database, "label"))[1].startswith("2026-01-01 00:00:01.5")


async def test_an_error_about_the_place_of_a_time_names_the_parameter(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "postgres":
        pytest.skip("only PostgreSQL is asked for the types of places")
    for statement, problem in (
        ("select :v is null as n", "could not determine data type of parameter :v"),
        ("delete from operand_rows where no_column < :v", 'column "no_column" does not exist'),
    ):
        await fresh(guard_database)
        outcome = await execute(guard_database, statement, v="2026-05-01T08:00:00")
        assert outcome.failure is not None
        assert problem in outcome.failure.message
        assert not outcome.retryable


async def test_constructs_of_sqlalchemy_have_operands_too(guard_database: GuardDatabase) -> None:
    """SQLAlchemy binds their parameters itself, so text is refused where it would not be the value."""
    await fresh(guard_database)
    kind = guard_database.kind
    table = sa.table("operand_rows", sa.column("id"), sa.column("n", sa.Numeric), sa.column("label", sa.DateTime))
    if kind == "postgres":
        times = sa.table("operand_rows", sa.column("id"), sa.column("until", sa.DateTime))
        async with guard_database.engine.connect() as connection:
            await connection.exec_driver_sql("alter table operand_rows add column until timestamp default '2026-05-01'")
            await connection.commit()
        statement = sa.delete(times).where(times.c.until.in_(["2026-04-30T23:00:00-05:00"]))
        problem = "holds no time zone and would drop -05:00"
    else:
        statement = sa.update(table).values(n=table.c.n - "100")
        problem = "give a Decimal"
    outcome = await execute(guard_database, statement)
    assert outcome.failure is not None, "it was sent"
    assert problem in outcome.failure.message
    assert await rows(guard_database) == [BIG, 5]
