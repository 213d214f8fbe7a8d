"""A row is the same row if the database says so, however its key is written: images, row locks, migrated types."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_activities.automatic import row_locks
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import database_url, open_guard_database


async def reconnect(tables: Tables) -> None:
    """The next statement has a new session."""
    await tables.database.engine.dispose()


STYLES = {
    "timezone": "Europe/Berlin",
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "extra_float_digits": "-3",
    "bytea_output": "escape",
}


async def test_settings_of_the_database_change_no_image(postgres_tables: Tables) -> None:
    tables = postgres_tables
    await tables.sql(
        "create table @ev (at timestamptz primary key, v int, t interval, f float8, b bytea, d date)",
        "insert into @ev values ('2026-03-01 00:00+00', 1, '1 day 02:03:04', 0.1, '\\xff00', '2026-02-03')",
    )
    before = await tables.dump()
    insert = "insert into @ev values ('2026-02-01 00:00+00', 7, '1 mon', 0.30000000000000004, '\\x01', '2026-05-06')"
    assert (await tables.do([insert, "update @ev set v = 2, f = f / 3 where v = 1"])).kind == "done"
    database = (await tables.sql("select current_database()"))[0][0]
    for name, value in STYLES.items():
        await tables.sql(f"alter database {database} set {name} = '{value}'")
    await reconnect(tables)
    assert (await tables.undo()).result == {"restored": 2}
    assert await tables.dump() == before


MIGRATIONS = {
    "postgres": [
        ("numeric(10, 1)", "numeric(12, 2)", "1.5", "2.5"),
        ("varchar(10)", "text", "'a'", "'b c '"),
        ("char(4)", "varchar(10)", "'a'", "'b'"),
        ("int", "bigint", "5", "-6"),
        ("int", "numeric", "5", "-6"),
        ("int[]", "bigint[]", "'[2:3]={1,2}'", "'{}'"),
        ("real", "double precision", "0.1", "-0.2"),
        ("timestamp(0)", "timestamp", "'2026-01-02 03:04:05'", "'infinity'"),
        ("date", "timestamp", "'2026-01-02'", "'infinity'"),
    ],
    "mariadb": [
        ("decimal(10, 1)", "decimal(12, 2)", "1.5", "2.5"),
        ("int", "bigint", "5", "-6"),
        ("int", "decimal(10, 2)", "5", "-6"),
        ("varchar(10)", "varchar(80)", "'a'", "'b '"),
        ("datetime", "datetime(6)", "'2026-01-02 03:04:05'", "'2026-10-25 00:30:00'"),
    ],
}


@pytest.mark.sampled("kind", keep=6)
@pytest.mark.parametrize(
    ("kind", "old", "new", "first", "second"),
    [(kind, *rest) for kind, cases in MIGRATIONS.items() for rest in cases],
)
async def test_a_migrated_type_holds_the_same_rows(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, old: str, new: str, first: str, second: str
) -> None:
    database = await open_guard_database(kind, database_url(kind, request, tmp_path))
    tables = Tables(database)
    await tables.sql(
        f"create table @t (k {old} not null, v {old}, n int, primary key (k))",
        f"insert into @t values ({first}, {first}, 0)",
    )
    run = [f"update @t set v = {second}, n = 1", f"insert into @t values ({second}, {second}, 7)"]
    assert (await tables.do(run)).kind == "done"
    change = "alter table @t " + (
        f"modify k {new} not null, modify v {new}" if kind == "mariadb" else f"alter k type {new}, alter v type {new}"
    )
    await tables.sql(change)
    undone = await tables.undo()
    rows = await tables.sql("select count(*), min(n), sum(case when k = v then 1 else 0 end) from @t")
    assert (undone.result, [tuple(map(int, row)) for row in rows]) == ({"restored": 2}, [(1, 0, 1)]), undone
    await tables.drop()
    await database.connections.close()


async def test_a_type_that_cannot_hold_the_values_parks_the_undo(postgres_tables: Tables) -> None:
    tables = postgres_tables
    await tables.sql("create table @t (k int primary key, v numeric)", "insert into @t values (1, 1.25)")
    assert (await tables.do(["update @t set v = 3"])).kind == "done"
    await tables.sql("alter table @t alter v type numeric(5, 1)")
    undone = await tables.undo()
    assert undone.park_reason is not None
    assert "the column v of public.t" in undone.park_reason
    assert "had the type numeric when the step ran, and has numeric(5,1) now" in undone.park_reason
    assert [row[0] for row in await tables.sql("select v from @t")] == [3]


SPELLINGS = {
    "postgres": [
        ("numeric", "1.0", "1.00"),
        ("float8", "0", "'-0'"),
        ("float8", "'NaN'", "'nan'"),
        ("real", "'0.1'", "'0.10000000'"),
        ("interval", "'1 day'", "'24 hours'"),
        ("interval", "'1 mon -1 hour'", "'29 days 23 hours'"),
        ("timestamptz", "'2026-01-01 00:00+00'", "'2026-01-01 01:00+01'"),
        ("char(5)", "'a'", "'a  '"),
        ("jsonb", '\'{"a": 1, "b": 2}\'', '\'{"b": 2.0, "a": 1.0}\''),
        ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a0eebc999c0b4ef8bb6d6bb9bd380a11'"),
        ("inet", "'10.0.0.1'", "'10.0.0.1/32'"),
        ("numeric[]", "'{1.0,2}'", "'{1,2.00}'"),
        ("numrange", "'[1.0,2)'", "'[1,2.0)'"),
        ("@pair", "row(1.0, 'x')::@pair", "row(1, 'x')::@pair"),
        ("@amount", "1.0", "1"),
    ],
    "mariadb": [
        ("varchar(20)", "'Ada'", "'aDA '"),
        ("varchar(20) collate utf8mb4_unicode_ci", "'Straße'", "'STRASSE'"),
        ("char(20) collate utf8mb4_bin", "'a'", "'a  '"),
        ("varchar(20) collate utf8mb4_nopad_bin", "'a'", "'a'"),
        ("decimal(10, 2)", "1.0", "1.00"),
        ("double", "0e0", "-0e0"),
        ("timestamp", "'2026-10-25 00:30:00'", "'2026-10-25 00:30:00.000'"),
        ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'a0eebc999c0b4ef8bb6d6bb9bd380a11'"),
        ("enum('x', 'y')", "'X'", "1"),
    ],
    "sqlite": [
        ("integer", "1", "1.0"),
        ("numeric", "1", "'1.0'"),
        ("blob", "1", "1.0"),
        ("text collate nocase", "'Ada'", "'aDA'"),
        ("text collate rtrim", "'a'", "'a  '"),
        ("real", "0", "-0.0"),
    ],
}


@pytest.mark.sampled("kind", keep=10)
@pytest.mark.parametrize(
    ("kind", "type", "spelling", "other"), [(kind, *rest) for kind, cases in SPELLINGS.items() for rest in cases]
)
async def test_two_spellings_are_one_row(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, type: str, spelling: str, other: str
) -> None:
    database = await open_guard_database(kind, database_url(kind, request, tmp_path))
    tables = Tables(database)
    if kind == "postgres":
        await tables.sql(
            "create type @pair as (n numeric, t text)",
            "create domain @amount as numeric check (value > 0)",
        )
    await tables.sql(
        f"create table @t (k {type} not null, v int, primary key (k))", f"insert into @t values ({spelling}, 1)"
    )
    before = await tables.dump()
    assert (await tables.do([f"update @t set v = 2 where k = {spelling}"])).kind == "done"
    refused = await tables.do([f"update @t set v = 3 where k = {other}"], saga="other")
    assert refused.failure is not None
    assert refused.failure.type == "RowLocked", refused
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.dump() == before
    # Deleted and inserted with another spelling: one row, whose first spelling comes back.
    outcome = await tables.do(["delete from @t", f"insert into @t values ({other}, 4)"], step="again")
    assert outcome.kind == "done", outcome
    refused = await tables.do([f"delete from @t where k = {spelling}"], saga="other", step="again")
    assert refused.failure is not None
    assert refused.failure.type == "RowLocked", refused
    assert (await tables.undo("again")).kind == "done"
    assert await tables.dump() == before
    await tables.drop()
    await database.connections.close()


DIFFERENT = [
    ("numeric[]", "'{1,2}'", "'{{1},{2}}'"),
    ("int[]", "'{1,2}'", "'[0:1]={1,2}'"),
    ("jsonb", "'[]'", "'[[]]'"),
    ("jsonb", "'[1, 2]'", "'[[1], 2]'"),
    ("text", "'a'", "'A'"),
    ("numeric", "1.0000000000000000000000000001", "1"),
    ("numrange", "'[1,2)'", "'(1,2]'"),
]


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize(("type", "value", "other"), DIFFERENT)
async def test_values_that_differ_are_two_rows(postgres_tables: Tables, type: str, value: str, other: str) -> None:
    tables = postgres_tables
    await tables.sql(f"create table @t (k {type} primary key, v int)", f"insert into @t values ({value}, 1)")
    before = await tables.dump()
    assert (await tables.do([f"update @t set k = {other}", "update @t set v = 2"])).kind == "done"
    assert (await tables.undo()).kind == "done"
    assert await tables.dump() == before
    await row_locks.release(tables.database.engine, f"saga-{tables.id}")
    assert (await tables.do([f"insert into @t values ({other}, 1)"], saga="second")).kind == "done"
    assert (await tables.do([f"update @t set v = 3 where k = {value}"], saga="third")).kind == "done"


@pytest.mark.parametrize("type", ["tsvector", "jsonb[]", "@deep"])
async def test_a_key_without_a_canonical_form_is_refused(postgres_tables: Tables, type: str) -> None:
    tables = postgres_tables
    await tables.sql("create type @deep as (n int, a int[])", f"create table @t (k {type} primary key, v int)")
    refused = await tables.do(["delete from @t"])
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert "two values of the key column k of public.t" in str(refused.failure)
