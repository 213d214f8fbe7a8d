"""Statements with `compensate: auto` of which only the database knows whether they insert, update or delete a row."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from sqlalchemy import text

from tests.helpers.waiting import until
from tests.integration.guard.automatic_steps import Tables

STOCK = [
    "create table @stock (sku varchar(20) primary key, free int, code varchar(20) unique)",
    "insert into @stock values ('a', 5, 'A'), ('b', 7, 'B'), ('c', 0, null)",
]
SOURCE = [
    "create table @delivery (sku varchar(20) primary key, n int)",
    "insert into @delivery values ('a', 1), ('d', 4), ('e', 2)",
]
ROWS = "insert into @stock (sku, free) values ('a', 1), ('d', 4), ('b', 2)"


@dataclass(frozen=True)
class Case:
    name: str
    on: Sequence[str]
    tables: Sequence[str]
    statement: str
    after: Sequence[tuple[object, ...]]
    query: str = "select sku, free from @stock order by sku"


POSTGRES, MARIADB, SQLITE = "postgres", "mariadb", "sqlite"
WAITING = {
    POSTGRES: "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()",
    MARIADB: "select 1 from information_schema.innodb_trx where trx_state = 'LOCK WAIT'",
}
ADDED = [("a", 6), ("b", 9), ("c", 0), ("d", 4)]
TWICE = "insert into @stock (sku, free) values ('d', 4), ('d', 5), ('a', 1), ('a', 1)"
ADDED_TWICE = [("a", 7), ("b", 7), ("c", 0), ("d", 9)]

CASES = [
    Case(
        "several rows",
        [POSTGRES, SQLITE],
        STOCK,
        f"{ROWS} on conflict (sku) do update set free = @stock.free + excluded.free",
        ADDED,
    ),
    Case(
        "several clauses",
        [SQLITE],
        STOCK,
        "insert into @stock values ('a', 1, 'X'), ('x', 2, 'B'), ('y', 3, 'Y') on conflict (sku) do update"
        " set free = 10 on conflict (code) do update set free = 20",
        [("a", 10), ("b", 20), ("c", 0), ("y", 3)],
    ),
    Case(
        "an identity overridden",
        [POSTGRES],
        ["create table @stock (sku int generated always as identity primary key, free int)"],
        "insert into @stock (sku, free) overriding system value values (7, 1) on conflict (sku) do update set free = 2",
        [(7, 1)],
    ),
    Case("several rows", [MARIADB], STOCK, f"{ROWS} on duplicate key update free = free + values(free)", ADDED),
    # PostgreSQL refuses that.
    Case(
        "the same row twice",
        [MARIADB],
        STOCK,
        f"{TWICE} on duplicate key update free = free + values(free)",
        ADDED_TWICE,
    ),
    Case(
        "the same row twice",
        [SQLITE],
        STOCK,
        f"{TWICE} on conflict (sku) do update set free = @stock.free + excluded.free",
        ADDED_TWICE,
    ),
    Case(
        "a second unique key",
        [MARIADB],
        STOCK,
        "insert into @stock (sku, free, code) values ('x', 1, 'A'), ('y', 2, 'Y'), ('y', 3, 'Z')"
        " on duplicate key update free = values(free)",
        [("a", 1), ("b", 7), ("c", 0), ("y", 3)],
    ),
    Case(
        "two rows in the way",
        [MARIADB],
        STOCK,
        "insert into @stock (sku, free, code) values ('b', 1, 'A') on duplicate key update free = free + 10",
        [("a", 5), ("b", 17), ("c", 0)],
    ),
    Case(
        "a prefix of a column",
        [MARIADB],
        [
            "create table @stock (sku varchar(20) primary key, free int, note varchar(200), unique key (note(3)))",
            "insert into @stock values ('a', 5, 'abcdef')",
        ],
        "insert into @stock (sku, free, note) values ('b', 1, 'abcxyz') on duplicate key update free = 9",
        [("a", 9)],
    ),
    Case(
        "a default value",
        [MARIADB],
        [
            "create table @stock (sku varchar(20) primary key, free int, note varchar(20) default 'none' unique)",
            "insert into @stock values ('a', 5, 'none')",
        ],
        "insert into @stock (sku, free) values ('b', 1) on duplicate key update free = 9",
        [("a", 9)],
    ),
    Case(
        "a collation that ignores case",
        [MARIADB],
        [
            "create table @stock (sku varchar(20) collate utf8mb4_general_ci primary key, free int)",
            "insert into @stock values ('a', 5)",
        ],
        "insert into @stock (sku, free) values ('A ', 1), ('B', 2) on duplicate key update free = 9",
        [("a", 9), ("B", 2)],
    ),
    Case(
        "another unique key, which is null in some rows",
        [POSTGRES, SQLITE],
        STOCK,
        "insert into @stock values ('x', 1, 'A'), ('y', 2, null) on conflict (code) do update set free = excluded.free",
        [("a", 1), ("b", 7), ("c", 0), ("y", 2)],
    ),
    Case(
        "nulls not distinct",
        [POSTGRES],
        [
            "create table @stock (sku varchar(20) primary key, free int, code text, unique nulls not distinct (code))",
            "insert into @stock values ('a', 5, null), ('b', 7, 'B')",
        ],
        "insert into @stock values ('x', 1, null), ('y', 2, 'B'), ('z', 3, 'Z')"
        " on conflict (code) do update set free = excluded.free",
        [("a", 1), ("b", 2), ("z", 3)],
    ),
    Case(
        "an index on an expression, of some rows",
        [POSTGRES, SQLITE],
        [*STOCK, "create unique index @lower_code on @stock (lower(code)) where free > 0"],
        "insert into @stock values ('x', 1, 'a'), ('y', 2, 'y')"
        " on conflict (lower(code)) where free > 0 do update set free = @stock.free + 100 where @stock.free < 100",
        [("a", 105), ("b", 7), ("c", 0), ("y", 2)],
    ),
    Case(
        "a named constraint",
        [POSTGRES],
        [*STOCK, "alter table @stock add constraint by_free unique (free)"],
        "insert into @stock values ('x', 5, 'X') on conflict on constraint by_free do update set free = 50",
        [("a", 50), ("b", 7), ("c", 0)],
    ),
    Case(
        "a condition that is false",
        [POSTGRES, SQLITE],
        STOCK,
        f"{ROWS} on conflict (sku) do update set free = 0 where @stock.free > 6",
        [("a", 5), ("b", 0), ("c", 0), ("d", 4)],
    ),
    Case(
        "generated keys",
        [POSTGRES],
        [
            "create table @stock (id serial primary key, sku text unique, free int)",
            "insert into @stock (sku, free) values ('a', 5)",
        ],
        "insert into @stock (sku, free) values ('a', 1), ('b', 2) on conflict (sku) do update set free = 9",
        [("a", 9), ("b", 2)],
    ),
    Case(
        "generated keys",
        [SQLITE],
        [
            "create table @stock (id integer primary key autoincrement, sku text unique, free int)",
            "insert into @stock (sku, free) values ('a', 5)",
        ],
        "insert into @stock (sku, free) values ('a', 1), ('b', 2) on conflict (sku) do update set free = 9",
        [("a", 9), ("b", 2)],
    ),
    Case(
        "generated keys",
        [MARIADB],
        [
            "create table @stock (id int auto_increment primary key, sku varchar(20) unique, free int)",
            "insert into @stock (sku, free) values ('a', 5)",
        ],
        "insert into @stock (sku, free) values ('a', 1), ('b', 2) on duplicate key update free = 9",
        [("a", 9), ("b", 2)],
    ),
    Case(
        "rows of a query",
        [POSTGRES, MARIADB, SQLITE],
        [*STOCK, *SOURCE],
        "insert into @stock (sku, free) select sku, n from @delivery where n > 1",
        [("a", 5), ("b", 7), ("c", 0), ("d", 4), ("e", 2)],
    ),
    Case(
        "an upsert of the rows of a query",
        [POSTGRES, SQLITE],
        [*STOCK, *SOURCE],
        "insert into @stock (sku, free) select sku, n from @delivery where true"
        " on conflict (sku) do update set free = @stock.free + excluded.free",
        [("a", 6), ("b", 7), ("c", 0), ("d", 4), ("e", 2)],
    ),
    Case(
        "do nothing",
        [POSTGRES, SQLITE],
        STOCK,
        f"{ROWS} on conflict do nothing",
        [("a", 5), ("b", 7), ("c", 0), ("d", 4)],
    ),
    Case(
        "a merge",
        [POSTGRES],
        [*STOCK, *SOURCE],
        "merge into @stock as s using @delivery d on d.sku = s.sku when matched then update set free = s.free + d.n"
        " when not matched and d.n > 3 then insert values (d.sku, d.n, null)"
        " when not matched by source and s.free = 0 then delete",
        [("a", 6), ("b", 7), ("d", 4)],
    ),
    Case(
        "a merge without an alias",
        [POSTGRES],
        STOCK,
        "merge into @stock using (values ('a', 1), ('z', 2)) v(sku, free) on v.sku = @stock.sku"
        " when matched then delete when not matched then insert (sku, free) values (v.sku, v.free)",
        [("b", 7), ("c", 0), ("z", 2)],
    ),
    Case(
        "a merge with the names of the engine",
        [POSTGRES],
        STOCK,
        "merge into @stock as saga_action using (values ('a', 1, 5), ('z', 2, 6))"
        " saga_merge(saga_image_action, saga_image_inserted, action)"
        " on saga_merge.saga_image_action = saga_action.sku when matched then update set free = saga_image_inserted"
        " when not matched then insert (sku, free) values (saga_image_action, saga_merge.action)",
        [("a", 1), ("b", 7), ("c", 0), ("z", 6)],
    ),
    Case(
        "a new primary key",
        [POSTGRES, SQLITE],
        STOCK,
        "update @stock set sku = sku || '!', free = 1 where sku in ('a', 'c')",
        [("a!", 1), ("b", 7), ("c!", 1)],
    ),
    Case(
        "shifted primary keys",
        [POSTGRES, SQLITE],
        ["create table @stock (sku int primary key, free int)", "insert into @stock values (1, 10), (2, 20), (3, 30)"],
        "update @stock set sku = sku - 1",
        [(0, 10), (1, 20), (2, 30)],
    ),
    Case(
        "swapped primary keys",
        [POSTGRES],
        [
            "create table @stock (sku int primary key deferrable, free int)",
            "insert into @stock values (1, 10), (2, 20), (3, 30)",
        ],
        "update @stock set sku = 3 - sku where sku < 3",
        [(1, 20), (2, 10), (3, 30)],
    ),
]
PARAMETERS = [(kind, case) for case in CASES for kind in case.on]


@pytest.mark.sampled("guard_database", keep=14)
@pytest.mark.parametrize(
    ("guard_database", "case"),
    PARAMETERS,
    ids=[f"{kind}: {case.name}" for kind, case in PARAMETERS],
    indirect=["guard_database"],
)
async def test_the_undo_restores_what_the_database_has_decided(tables: Tables, case: Case) -> None:
    await tables.sql(*case.tables)
    before = await tables.dump()
    outcome = await tables.do([case.statement])
    assert outcome.kind == "done", outcome.failure
    assert [tuple(row) for row in await tables.sql(case.query)] == case.after
    undone = await tables.undo()
    assert undone.kind == "done", undone.park_reason
    assert await tables.dump() == before


REFUSED = [
    ([POSTGRES, SQLITE], f"{ROWS} on conflict (sku) do update set sku = 'x'", "changes the primary key"),
    ([MARIADB], f"{ROWS} on duplicate key update sku = 'x'", "changes the primary key"),
    ([MARIADB, SQLITE], "replace into @stock (sku, free) values ('a', 1)", "REPLACE deletes every row"),
    ([MARIADB], "insert into @stock (sku) select 'a' on duplicate key update free = 1", "rows of VALUES"),
    ([MARIADB], "update @stock set sku = 'x' where sku = 'a'", "changes the primary key"),
    ([POSTGRES], "insert into @stock (sku) select sku from @stock, pg_notify('a', 'b')", "has an effect outside"),
    (
        [SQLITE],
        "insert into @stock (sku) values (hex(randomblob(9))) on conflict (sku) do update set free = 1",
        "differ from run to run",
    ),
]
REFUSALS = [(kind, statement, why) for kinds, statement, why in REFUSED for kind in kinds]


@pytest.mark.parametrize(("guard_database", "statement", "why"), REFUSALS, indirect=["guard_database"])
async def test_what_cannot_be_undone_is_refused_before_the_change(tables: Tables, statement: str, why: str) -> None:
    await tables.sql(*STOCK)
    before = await tables.dump()
    outcome = await tables.do([statement])
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert outcome.failure is not None
    assert why in outcome.failure.message
    assert await tables.dump() == before


MANY = ("create table @stock (sku int primary key, free int)", "insert into @stock select g, 0 from %s")
CHANCE = {
    POSTGRES: ("generate_series(1, 900) g", "(select sku from @stock order by random() limit 30)"),
    SQLITE: (
        "(with recursive s(g) as (select 1 union all select g + 1 from s where g < 900) select g from s)",
        "(select sku from @stock order by random() limit 30)",
    ),
}


async def test_a_statement_that_picks_other_rows_each_time_is_refused(tables: Tables) -> None:
    """A statement whose rows differ each time is not taken for a race, which is repeated."""
    if tables.kind == MARIADB:
        pytest.skip("only rows of VALUES are allowed there")
    numbers, chosen = CHANCE[tables.kind]
    await tables.sql(MANY[0], MANY[1] % numbers)
    before = await tables.dump()
    upsert = f"insert into @stock (sku) select sku from {chosen} s where true on conflict (sku) do update set free = 9"
    merge = f"merge into @stock using {chosen} s on @stock.sku = s.sku when matched then update set free = 9"
    for statement in (upsert, merge) if tables.kind == POSTGRES else (upsert,):
        outcome = await tables.do([statement])
        assert (outcome.kind, outcome.retryable) == ("failed", False), outcome.failure
        assert "the rows that it affects differ from run to run: write" in str(outcome.failure)
        assert await tables.dump() == before


async def test_an_upsert_by_a_generated_column_of_mariadb_is_refused(tables: Tables) -> None:
    if tables.kind != MARIADB:
        pytest.skip("on the other databases the database itself says which rows are in the way")
    await tables.sql(
        "create table @stock (sku int primary key, name varchar(9), lowered varchar(9) as (lower(name)) stored unique)"
    )
    outcome = await tables.do(["insert into @stock (sku, name) values (1, 'A') on duplicate key update name = 'B'"])
    assert "the unique key lowered of" in str(outcome.failure)
    assert await tables.dump() == {"stock": []}


async def test_expect_rows_counts_as_the_database_does(tables: Tables) -> None:
    """With `compensate: auto` and without it a statement affects the same number of rows."""
    await tables.sql(*STOCK)
    clause = "on duplicate key update free = values(free)"
    if tables.kind != MARIADB:
        clause = "on conflict (sku) do update set free = excluded.free"
    statement = f"insert into @stock (sku, free) values ('a', 1), ('b', 7), ('new', 2) {clause}"
    async with tables.database.engine.connect() as connection:
        await connection.execute(text("begin"))
        plain = (await connection.execute(text(tables.named(statement)))).rowcount
        await connection.execute(text("rollback"))
    for number, kind in ((plain + 1, "rejected"), (plain, "done")):
        outcome = await tables.do([{"sql": statement, "expect_rows": number}], step=kind)
        assert outcome.kind == kind, outcome.failure


async def test_rows_inserted_by_others_meanwhile_are_never_taken_for_rows_of_the_step(tables: Tables) -> None:
    """Two transactions upsert the same new key: the second must not believe that it has inserted the row."""
    if tables.kind == SQLITE:
        pytest.skip("one transaction writes at a time")
    await tables.sql(*STOCK)
    clause = "on duplicate key update free = free + 1"
    if tables.kind == POSTGRES:
        clause = "on conflict (sku) do update set free = @stock.free + 1"
    statement = f"insert into @stock (sku, free) values ('n', 1), ('a', 1) {clause}"
    async with tables.database.engine.execution_options(isolation_level="READ COMMITTED").connect() as other:
        await other.execute(text(tables.named("insert into @stock (sku, free) values ('n', 50)")))
        task = asyncio.create_task(tables.do([statement]))
        # The server renews innodb_trx only if nobody has read it for 0.1 seconds.
        await until(lambda: task.done() or tables.database.rows(WAITING[tables.kind]), pause=0.25)
        assert not task.done()
        await other.commit()
    outcome = await task
    while outcome.kind != "done":  # the loser of a race is repeated
        outcome = await tables.do([statement])
    assert (await tables.sql("select free from @stock where sku = 'n'"))[0][0] == 51
    assert (await tables.undo()).kind == "done"
    assert (await tables.sql("select free from @stock where sku = 'n'"))[0][0] == 50
