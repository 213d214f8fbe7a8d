"""A migration between a step and its undo: rows are restored only if it is certain which ones, and to which values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import database_url, open_guard_database

CHANGES = {"insert": "insert into @t values (1, 2, 9)", "update": "update @t set v = 7", "delete": "delete from @t"}


@pytest.mark.sampled
@pytest.mark.parametrize("key", ["b, a", "v, b"])
@pytest.mark.parametrize("change", CHANGES)
async def test_another_primary_key_parks_the_undo(tables: Tables, change: str, key: str) -> None:
    columns = "a int not null, b int not null, v int not null"
    await tables.sql(f"create table @t ({columns}, primary key (a, b))", "insert into @t values (2, 1, 5)")
    before = await tables.dump()
    assert (await tables.do([CHANGES[change]])).kind == "done"
    after = await tables.dump()
    await migrate_key(tables, columns, key)
    undone = await tables.undo()
    assert undone.park_reason is not None, undone
    assert f"the primary key of {await shown_name(tables)} was a, b when the step ran, and is {key} now" in (
        undone.park_reason
    )
    assert undone.failure is not None
    (row,) = undone.failure.details["rows"]
    assert (row["table"], row["unread"], undone.failure.details["sql"]) == (await shown_name(tables), True, [])
    assert await tables.dump() == after
    await migrate_key(tables, columns, "a, b")
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.dump() == before


async def migrate_key(tables: Tables, columns: str, key: str) -> None:
    if tables.kind == "sqlite":
        await rebuild(tables, f"{columns}, primary key ({key})")
        return
    drop = f"constraint {tables.named('@t')}_pkey" if tables.kind == "postgres" else "primary key"
    await tables.sql(f"alter table @t drop {drop}, add primary key ({key})")


async def rebuild(tables: Tables, definition: str) -> None:
    new = f"new_{tables.id}"
    copied = f"insert into {new} select * from @t"
    await tables.sql(f"create table {new} ({definition})", copied, "drop table @t", f"alter table {new} rename to @t")


async def shown_name(tables: Tables) -> str:
    schema = {"postgres": "public.", "mariadb": "guard.", "sqlite": ""}[tables.kind]
    return f"{schema}{tables.named('@t')}"


NOON = "'2026-06-01 12:00:00'"
DEPENDING = {
    "postgres": [
        ("timestamp", "timestamptz", NOON),
        ("timestamptz", "timestamp", NOON),
        ("date", "timestamptz", NOON),
        ("timestamptz", "date", NOON),
        ("timetz", "time", NOON),
        ("timestamp[]", "timestamptz[]", "'{2026-06-01 12:00}'"),
        ("int", "text using 'K-' || @c", "5"),
        ("int", "text", "5"),
        ("money", "numeric", "5"),
        ("bit(3)", "bit(5) using ('00' || @c)::bit(5)", "b'101'"),
    ],
    "mariadb": [("timestamp", "datetime", NOON), ("datetime", "timestamp", NOON), ("int", "varchar(9)", "5")],
    "sqlite": [("int", "text", "5"), ("int", "real", "5")],
}


@pytest.mark.sampled("kind", "column", keep=10)
@pytest.mark.parametrize(("column", "change"), [("k", "insert"), ("v", "delete")])
@pytest.mark.parametrize(
    ("kind", "old", "new", "value"), [(kind, *rest) for kind, cases in DEPENDING.items() for rest in cases]
)
async def test_a_conversion_that_its_session_decides_parks_the_undo(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
    old: str,
    new: str,
    value: str,
    column: str,
    change: str,
) -> None:
    database = await open_guard_database(kind, database_url(kind, request, tmp_path))
    tables = Tables(database)
    k, v = (old, "int") if column == "k" else ("int", old)
    insert = f"insert into @t (k, v) values ({f'{value}, 9' if column == 'k' else f'9, {value}'})"
    await tables.sql(f"create table @t (k {k} not null, v {v}, primary key (k))")
    if change == "delete":
        await tables.sql(insert)
    assert (await tables.do([insert if change == "insert" else "delete from @t"])).kind == "done"
    await migrate_type(tables, column, old, new.replace("@c", column))
    migrated = await tables.dump()
    undone = await tables.undo()
    assert undone.park_reason is not None, undone
    assert f"the column {column} of {await shown_name(tables)} had the type " in undone.park_reason
    assert await tables.dump() == migrated
    await tables.drop()
    await database.connections.close()


@pytest.mark.parametrize("value", ["-18.299999999999997", "'cold'", "x'00ff'", "null"])
async def test_a_numeric_column_of_sqlite_becomes_real(
    request: pytest.FixtureRequest, tmp_path: Path, value: str
) -> None:
    database = await open_guard_database("sqlite", database_url("sqlite", request, tmp_path))
    tables = Tables(database)
    await tables.sql("create table @t (k int primary key, v numeric)", f"insert into @t values (1, {value})")
    before = await tables.dump()
    assert (await tables.do(["delete from @t"])).kind == "done"
    await rebuild(tables, "k int primary key, v real")
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.dump() == before
    await tables.drop()
    await database.connections.close()


async def migrate_type(tables: Tables, column: str, old: str, new: str) -> None:
    """In a session of another time zone than UTC."""
    if tables.kind == "sqlite":
        k, v = (new, "int") if column == "k" else ("int", new)
        await rebuild(tables, f"k {k} not null, v {v}, primary key (k)")
        return
    verb = f"modify {column} {new}" if tables.kind == "mariadb" else f"alter {column} type {new}"
    zone = {"postgres": "set timezone = '{}'", "mariadb": "set time_zone = '{}'"}[tables.kind]
    async with tables.database.engine.connect() as connection:
        await connection.exec_driver_sql(zone.format("+02:00"))
        await connection.exec_driver_sql(tables.named(f"alter table @t {verb}"))
        await connection.exec_driver_sql(zone.format("+00:00"))


@pytest.mark.parametrize("change", ["insert", "update"])
async def test_a_row_whose_key_has_become_another_one_parks_the_undo(postgres_tables: Tables, change: str) -> None:
    tables = postgres_tables
    await tables.sql("create table @t (id int primary key, v int)")
    if change == "update":
        await tables.sql("insert into @t values (150, 1)")
    run = {"insert": "insert into @t values (150, 9)", "update": "update @t set v = 9"}[change]
    assert (await tables.do([run])).kind == "done"
    await tables.sql("alter table @t alter id type numeric using id / 100.0")
    undone = await tables.undo()
    assert undone.park_reason is not None, undone
    assert "no row has this key, whose type a migration has changed" in undone.park_reason
    assert "INSERT" not in str(undone)
    assert [str(row[0]) for row in await tables.sql("select id * 10 from @t")] == ["15.0000000000000000"]


NAMES = """
at was text value number given changed same base before after now name type position row key locks t n c k i o k0_0 v0
r0_0 saga_action saga_merge saga_rows started read write
""".split()  # noqa: SIM905


@pytest.mark.sampled(keep=1)
async def test_columns_may_have_the_names_that_the_engine_uses(tables: Tables) -> None:
    quote, decimal = ("`", "decimal") if tables.kind == "mariadb" else ('"', "numeric")
    quoted = [f"{quote}{name}{quote}" for name in NAMES]
    columns = ", ".join(f"{name} {decimal}(10, 1) not null" for name in quoted)
    key = ", ".join(quoted[:10])
    row = f"({', '.join(['{0}'] * len(NAMES))})"
    await tables.sql(f"create table @t ({columns}, primary key ({key}))")
    await tables.sql(f"insert into @t values {row.format(1)}, {row.format(2)}")
    before = await tables.dump()
    assert before["t"]
    last = quoted[-1]
    run = [
        f"update @t set {last} = 7 where {quoted[0]} = 1",
        f"delete from @t where {quoted[0]} = 2",
        f"insert into @t values {row.format(3)}",
    ]
    if tables.kind != "mariadb":
        run.append(f"insert into @t values {row.format(1)} on conflict ({key}) do update set {last} = 9")
    assert (await tables.do(run)).kind == "done"
    assert (await tables.undo()).kind == "done"
    assert await tables.dump() == before
    assert (await tables.do(run, step="migrated")).kind == "done"
    change = {"postgres": "alter {0} type numeric(12, 2)", "mariadb": "modify {0} decimal(12, 2) not null"}
    if tables.kind in change:
        await tables.sql(f"alter table @t {', '.join(change[tables.kind].format(name) for name in quoted)}")
    await tables.sql(f"update @t set {last} = 6 where {quoted[0]} = 1")
    parked = await tables.undo("migrated")
    assert parked.failure is not None
    assert parked.failure.details["sql_refused"] is None
    assert len(parked.failure.details["sql"]) == 3
    digit = 7 if tables.kind == "mariadb" else 9
    await tables.sql(f"update @t set {last} = {digit} where {quoted[0]} = 1")
    assert (await tables.undo("migrated")).kind == "done"
    rows = await tables.sql(f"select {', '.join(quoted)} from @t order by 1")
    assert [set(map(int, row)) for row in rows] == [{1}, {2}]


async def test_the_prefix_of_the_engines_own_columns_is_refused(tables: Tables) -> None:
    await tables.sql("create table @t (id int primary key, Saga_image_0 int)")
    refused = await tables.do(["insert into @t values (1, 1)"])
    assert "has a name that the engine uses itself" in str(refused.failure)
