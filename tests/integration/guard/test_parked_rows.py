"""A parked automatic undo shows rows and SQL; run by a person, the SQL restores them, and the retry agrees."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, make_url

from saga_activities.automatic.changed_rows import MAX_SHOWN_BYTES, MAX_SHOWN_ROWS
from sagas.sql_text.restoring_script import CHANGED_SINCE, restoring_command, restoring_script
from tests.integration.guard.automatic_steps import Tables

COLUMNS = {
    "postgres": "b bytea, j json, a text[], t timestamptz, f float8, n numeric, c char(5), i interval,"
    ' p point, d date, m money, "found" text',
    "mariadb": "b varbinary(20), j json, t timestamp null on update current_timestamp, f float, n decimal(30, 10),"
    " d datetime(6), x bit(9), e enum('a', 'b')",
    "sqlite": "b blob, f real, n numeric, i integer, x",
}
VALUES = {
    "postgres": "'\\x00ff27', '{\"a\": \"it''s\"}', '{\"x,y\",null}', '2026-02-01 00:00+00', 0.1, 1.10, 'ab',"
    " '-1 day 2 hours', '(1,2)', '2026-02-03', 1.10, 'ß'",
    "mariadb": "x'00ff27', '{\"a\": \"it''s\"}', '2026-02-01 00:00:00', 0.1, 1.10, '2026-02-01 00:00:00.5', b'11', 'b'",
    "sqlite": "x'00ff27', 0.1, 12345678901234567890.5, 42, 9e999",
}
TEXTS = ["plain", "it's \\ 100% :x ?", "two\nlines\ttab", "\x1b[31m\u202e\u200b Ä €", ""]


async def parked(tables: Tables) -> tuple[str, Mapping[str, Any]]:
    outcome = await tables.undo()
    assert outcome.park_reason is not None
    assert outcome.failure is not None
    return outcome.park_reason, outcome.failure.details


async def paste(tables: Tables, details: Mapping[str, Any]) -> list[str]:
    """Run what `saga show` prints, in a session with other settings, in a client that goes on after an error.

    Returns the errors and results that the client shows.
    """
    script = restoring_script(details["dialect"], details["sql"])
    assert all(line.isprintable() for statement in script for line in statement.splitlines())
    return await asyncio.to_thread(_paste, make_url(tables.database.url), tables.kind, script)


def _paste(url: URL, kind: str, script: Sequence[str]) -> list[str]:
    if kind == "mariadb":
        mode = "SET time_zone = '+02:00', sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES', foreign_key_checks = 0"
        options = ["--no-defaults", "--force", "--default-character-set=latin1", f"--init-command={mode}"]
        server = [f"--host={url.host}", f"--port={url.port}", f"--user={url.username}", str(url.database)]
        run = subprocess.run(["mariadb", *options, *server], input="\n".join(script), capture_output=True, text=True)
        return (run.stdout + run.stderr).splitlines()
    shown = []
    with closing(_session(url, kind)) as connection:
        cursor: Any = connection.cursor()
        for statement in script:
            try:
                cursor.execute(statement)
            except (sqlite3.Error, psycopg.Error) as error:
                shown.append(str(error))
    return shown


def _session(url: URL, kind: str) -> Any:
    if kind == "sqlite":
        return sqlite3.connect(str(url.database), isolation_level=None)
    styles = "-c DateStyle=German,DMY -c TimeZone=Europe/Berlin -c IntervalStyle=sql_standard -c array_nulls=off"
    others = "-c standard_conforming_strings=off -c bytea_output=escape -c extra_float_digits=-9 -c xmloption=document"
    names = "-c quote_all_identifiers=on -c transform_null_equals=on"
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(address, options=f"{styles} {others} {names}", client_encoding="LATIN1", autocommit=True)


async def accepted(tables: Tables, before: object, restored: int) -> None:
    assert await tables.dump() == before
    assert (await tables.undo()).result == {"restored": restored}
    assert await tables.dump() == before


STEPS = [
    ("update @t set note = 'changed' where id <= 2", "update @t set note = 'other' where id = 1"),
    ("update @t set note = 'changed' where id <= 2", "delete from @t where id = 1"),
    ("delete from @t", "insert into @t (id, note) values (1, 'other')"),
    ("insert into @t (id, note) values (9, 'new')", "update @t set note = 'other' where id = 9"),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("statement", "change"), STEPS)
async def test_the_sql_restores_every_value(tables: Tables, statement: str, change: str) -> None:
    await tables.sql(f"create table @t (id int primary key, note varchar(80), {COLUMNS[tables.kind]})")
    for id, note in enumerate(TEXTS):
        async with tables.database.engine.connect() as connection:
            driver = {"postgres": "%s", "mariadb": "%s", "sqlite": "?"}[tables.kind]
            insert = f"insert into @t values ({id}, {driver}, {VALUES[tables.kind]})"
            await connection.exec_driver_sql(tables.named(insert), (note,))
    before = await tables.dump()
    outcome = await tables.do([statement])
    assert outcome.kind == "done", outcome
    await tables.sql(change)
    why, details = await parked(tables)
    assert "has been changed since by something without automatic compensation" in why
    assert (details["changed_rows"], details["sql_refused"]) == (1, None)
    assert await paste(tables, details) == []
    await accepted(tables, before, 0)


async def test_the_sql_for_sqlite_restores_no_value_of_another_type(tables: Tables) -> None:
    if tables.kind != "sqlite":
        pytest.skip("columns of the other databases have one type")
    await tables.sql("create table @t (id int primary key, a)", "insert into @t values (1, 5)")
    await tables.do(["update @t set a = 2 where id = 1"])
    await tables.sql("update @t set a = 1.0 where id = 1")
    _, details = await parked(tables)
    await tables.sql("update @t set a = 1 where id = 1")
    assert any(CHANGED_SINCE in shown for shown in await paste(tables, details))
    assert await tables.database.rows(tables.named("select a, typeof(a) from @t")) == [(1, "integer")]


async def test_the_rows_have_key_before_after_and_now(tables: Tables) -> None:
    await tables.sql("create table @t (id int primary key, n int, same int)", "insert into @t values (1, 5, 0)")
    await tables.do(["update @t set n = 4 where id = 1"])
    await tables.sql("update @t set n = 40 where id = 1")
    _, details = await parked(tables)
    (row,) = details["rows"]
    assert row["key"] == {"id": "1"}
    assert (row["before"], row["after"], row["now"]) == ({"n": "5"}, {"n": "4"}, {"n": "40"})
    assert row["changed_by"] == "something without automatic compensation"
    await tables.sql("delete from @t")
    _, details = await parked(tables)
    assert details["rows"][0]["now"] is None
    assert details["sql"][0]["sql"].startswith("INSERT INTO")


async def test_an_inserted_row_that_others_refer_to_is_shown(tables: Tables) -> None:
    """Nobody has changed it, so no column differs between its images: all are shown."""
    await tables.sql("create table @t (id int primary key, n int)", "create table @t_child (id int references @t (id))")
    if tables.kind == "mariadb":  # which ignores a REFERENCES next to a column
        await tables.sql("alter table @t_child add foreign key (id) references @t (id)")
    await tables.do(["insert into @t values (1, 5)"])
    await tables.sql("insert into @t_child values (1)")
    _, details = await parked(tables)
    (row,) = details["rows"]
    assert (row["before"], row["after"], row["now"]) == (None, {"id": "1", "n": "5"}, {"id": "1", "n": "5"})


ORDERS: Sequence[tuple[Sequence[str], Sequence[str], str]] = [
    (
        ["create table @t (id int primary key, up int references @t(id))", "insert into @t values (1, null), (2, 1)"],
        ["delete from @t where id = 2", "delete from @t where id = 1"],
        "insert into @t values (2, null)",
    ),
    (
        ["create table @t (id int primary key, pos int unique)", "insert into @t values (3, 1), (2, 2), (1, 3)"],
        ["update @t set pos = pos + 10", "update @t set pos = pos - 11"],
        "update @t set pos = 9 where id = 3",
    ),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("created", "run", "change"), ORDERS)
async def test_the_sql_is_in_an_order_that_works(
    tables: Tables, created: Sequence[str], run: Sequence[str], change: str
) -> None:
    await tables.sql(*created)
    before = await tables.dump()
    assert (await tables.do(run)).kind == "done"
    await tables.sql(change)
    _, details = await parked(tables)
    assert details["sql_refused"] is None
    assert await paste(tables, details) == []
    await accepted(tables, before, 0)


async def test_a_swap_is_restored_as_new_rows(tables: Tables) -> None:
    """Two rows have each other's unique value, and a person has changed one of them."""
    await tables.sql(
        "create table @t (id int primary key, pos int unique, n int)", "insert into @t values (1, 1, 0), (2, 2, 0)"
    )
    before = await tables.dump()
    await tables.do(
        [
            "update @t set pos = null where id = 1",
            "update @t set pos = 1 where id = 2",
            "update @t set pos = 2 where id = 1",
        ]
    )
    await tables.sql("update @t set n = 5 where id = 1")
    _, details = await parked(tables)
    assert [statement["sql"].split()[0] for statement in details["sql"]] == ["DELETE", "DELETE", "INSERT", "INSERT"]
    assert await paste(tables, details) == []
    await accepted(tables, before, 0)


CIRCLES: Sequence[tuple[Sequence[str], Sequence[str], str]] = [
    (  # the first row takes the place of the third one, to which it refers
        [
            "create table @t (id int primary key, up int, label varchar(9), slot int unique,"
            " foreign key (up) references @t (id))",
            "insert into @t values (1, null, 'top', 1), (2, 1, 'left', 2), (4, 2, 'leaf', 4)",
        ],
        [
            "delete from @t where id = 4",
            "update @t set slot = 12 where id = 2",
            "insert into @t values (9, 1, 'new', 2)",
            "update @t set up = 9 where id = 2",
        ],
        "update @t set label = 'other' where id = 2",
    ),
    (  # a swap of two rows that others refer to
        [
            "create table @t (id int primary key, pos int unique, n int)",
            "create table @t_child (id int, foreign key (id) references @t (id))",
            "insert into @t values (1, 1, 0), (2, 2, 0)",
            "insert into @t_child values (1), (2)",
        ],
        [
            "update @t set pos = null where id = 1",
            "update @t set pos = 1 where id = 2",
            "update @t set pos = 2 where id = 1",
        ],
        "update @t set n = 5 where id = 1",
    ),
    (  # the same with a value that the author has parked, as the column takes no NULL
        [
            "create table @t (id int primary key, pos int not null unique, n int)",
            "create table @t_child (id int, foreign key (id) references @t (id))",
            "insert into @t values (1, 1, 0), (2, 2, 0)",
            "insert into @t_child values (1), (2)",
        ],
        [
            "update @t set pos = -1 where id = 1",
            "update @t set pos = 1 where id = 2",
            "update @t set pos = 2 where id = 1",
        ],
        "update @t set n = 5 where id = 1",
    ),
    (  # two rows that refer to each other are inserted again
        [
            "create table @t (id int primary key, up int, n int, foreign key (up) references @t (id))",
            "insert into @t values (1, null, 0), (2, 1, 0), (3, null, 0)",
            "update @t set up = 2 where id = 1",
        ],
        [
            "update @t set n = 1 where id = 3",
            "update @t set up = null where id = 1",
            "delete from @t where id = 2",
            "delete from @t where id = 1",
        ],
        "update @t set n = 5 where id = 3",
    ),
    (  # and deleted
        ["create table @t (id int primary key, up int, foreign key (up) references @t (id))"],
        [
            "insert into @t values (1, null)",
            "insert into @t values (2, 1)",
            "insert into @t values (3, null)",
            "update @t set up = 2 where id = 1",
        ],
        "update @t set up = 1 where id = 3",
    ),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("created", "run", "change"), CIRCLES)
async def test_rows_in_each_others_way_are_restored_in_several_statements(
    tables: Tables, created: Sequence[str], run: Sequence[str], change: str
) -> None:
    await tables.sql(*created)
    before = await tables.dump()
    outcome = await tables.do(run)
    assert outcome.kind == "done", outcome
    await tables.sql(change)
    _, details = await parked(tables)
    assert details["sql_refused"] is None, details["sql"]
    assert await paste(tables, details) == []
    await accepted(tables, before, 0)


async def test_the_sql_says_that_something_is_in_the_way(tables: Tables) -> None:
    await tables.sql("create table @t (id int primary key, pos int unique)", "insert into @t values (1, 1)")
    before = await tables.dump()
    await tables.do(["delete from @t where id = 1"])
    await tables.sql("insert into @t values (2, 1)")
    why, details = await parked(tables)
    assert "the row id=1 of" in why
    assert details["sql_refused"] is not None
    assert (details["changed_rows"], details["open_rows"], len(details["sql"])) == (0, 1, 1)
    await tables.sql("delete from @t where id = 2")
    assert await paste(tables, details) == []
    await accepted(tables, before, 0)


@pytest.mark.sampled(keep=1)
async def test_many_rows_are_shown_and_restored_in_parts(tables: Tables) -> None:
    rows = ", ".join(f"({id}, 0, '{'x' * 300}')" for id in range(1, 71))
    await tables.sql("create table @t (id int primary key, n int, note varchar(300))", f"insert into @t values {rows}")
    before = await tables.dump()
    await tables.do(["update @t set n = 1"])
    await tables.sql("update @t set n = 2 where id <= 50")
    for changed in (50, 30, 10):
        _, details = await parked(tables)
        assert (details["changed_rows"], len(details["rows"])) == (changed, min(changed, MAX_SHOWN_ROWS))
        assert await paste(tables, details) == []
    assert (await tables.undo()).result == {"restored": 10}  # the last part had room for ten others
    assert await tables.dump() == before


async def test_long_values_do_not_make_the_details_long(tables: Tables) -> None:
    await tables.sql("create table @t (id int primary key, note text)")
    await tables.sql(f"insert into @t values (1, '{'x' * 20000}'), (2, 'y')")
    before = await tables.dump()
    await tables.do(["delete from @t"])
    await tables.sql("insert into @t values (1, 'other')")
    _, details = await parked(tables)
    assert sum(len(statement["sql"]) for statement in details["sql"]) <= MAX_SHOWN_BYTES
    assert all(len(str(image)) < 300 for row in details["rows"] for image in (row["before"], row["now"]))
    await tables.sql("delete from @t where id = 1")
    assert (await tables.undo()).result == {"restored": 2}
    assert await tables.dump() == before


KEYS = [
    ("create type @t_of as (n numeric, t text)", "'(1.0,a)'"),
    ("create domain @t_of as numeric check (value > 0)", "1.0"),
    ("create type @t_of as enum ('a', 'b')", "'a'"),
    ("create type @t_of as range (subtype = numeric)", "'[1.0,2)'"),
    ("create domain @t_of as text[]", "'{a,\"b c\"}'"),
]


@pytest.mark.parametrize(("create", "key"), KEYS)
async def test_the_sql_finds_a_row_by_a_key_of_any_type(tables: Tables, create: str, key: str) -> None:
    if tables.kind != "postgres":
        pytest.skip("the other databases have no types of their own")
    await tables.sql(create, "create table @t (id @t_of primary key, n int)", f"insert into @t values ({key}, 5)")
    before = await tables.dump()
    try:
        await tables.do(["update @t set n = 4"])
        await tables.sql("update @t set n = 40")
        _, details = await parked(tables)
        assert (details["sql_refused"], await paste(tables, details)) == (None, [])
        await accepted(tables, before, 0)
    finally:
        await tables.sql(f"drop {'domain' if 'domain' in create else 'type'} @t_of cascade")


async def test_a_reference_that_would_be_open_is_announced(tables: Tables) -> None:
    """References are announced also if the database checks them at COMMIT."""
    later = "deferrable initially deferred" if tables.kind == "postgres" else ""
    reference = f"constraint of_parent foreign key (parent) references @t (id) {later}"
    await tables.sql(f"create table @t (id int primary key, parent int, {reference})")
    await tables.sql("insert into @t values (1, null)", "insert into @t values (2, 1)", "insert into @t values (3, 2)")
    await tables.do(["delete from @t where id = 3", "delete from @t where id = 2"])
    await tables.sql("delete from @t where id = 1")
    before = await tables.dump()
    _, details = await parked(tables)
    assert await paste(tables, details)
    assert await tables.dump() == before
    refused = details["sql_refused"]
    assert tables.named("@t") in refused
    assert ("(foreign key parent)" if tables.kind == "sqlite" else "of_parent") in refused


async def test_a_null_of_json_and_a_text_are_told_from_no_value(tables: Tables) -> None:
    kind = {"postgres": "jsonb", "mariadb": "json"}.get(tables.kind, "text")
    await tables.sql(f"create table @t (id int primary key, j {kind}, note varchar(9), n int)")
    await tables.sql("insert into @t values (1, 'null', 'NULL', null)")
    await tables.do(["delete from @t"])
    await tables.sql("insert into @t values (1, null, null, 1)")
    _, details = await parked(tables)
    assert details["rows"][0]["before"] == {"j": "'null'", "note": "'NULL'", "n": "NULL"}


async def test_a_table_with_a_new_trigger_has_advice_and_images(tables: Tables) -> None:
    await tables.sql("create table @t (id int primary key, n int)", "insert into @t values (1, 5)")
    before = await tables.dump()
    await tables.do(["update @t set n = 4"])
    create, drop = {
        "postgres": (
            "before update on @t for each row execute function suppress_redundant_updates_trigger()",
            " on @t",
        ),
        "mariadb": ("before update on @t for each row set new.n = new.n", ""),
        "sqlite": ("before update on @t begin select 1; end", ""),
    }[tables.kind]
    await tables.sql(f"create trigger @tg {create}")
    why, details = await parked(tables)
    assert tables.named("has the trigger @tg, which may change other rows; ") in why
    assert "change the table back, then retry" in why
    (row,) = details["rows"]
    assert (details["open_rows"], details["sql"], row["before"], row["after"]) == (1, [], {"n": "5"}, {"n": "4"})
    await tables.sql(f"drop trigger @tg{drop}")
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.dump() == before


TWO = [
    "create table @t (id int primary key, n int, note varchar(20))",
    "insert into @t values (1, 5, 'a'), (2, 5, 'b')",
]


@pytest.mark.parametrize("change", ["update @t set n = 60 where id = 2", "delete from @t where id = 2"])
async def test_the_sql_changes_no_row_if_a_row_has_changed_since(tables: Tables, change: str) -> None:
    await tables.sql(*TWO)
    await tables.do(["update @t set n = 4"])
    await tables.sql("update @t set n = 50")
    _, details = await parked(tables)
    await tables.sql(change)
    before = await tables.dump()
    shown = await paste(tables, details)
    assert await tables.dump() == before
    assert any(CHANGED_SINCE in line for line in shown)


async def test_the_command_of_a_residue_restores_its_rows(tables: Tables) -> None:
    kind = {"mariadb": "timestamp"}.get(tables.kind, "text")
    await tables.sql(f"create table @t (id int primary key, t {kind} null)")
    await tables.sql("insert into @t values (1, '2026-02-01 00:00:00'), (2, '2026-02-02 00:00:00')")
    before = await tables.dump()
    await tables.do(["delete from @t where id = 1", "update @t set t = null where id = 2"])
    await tables.sql("update @t set t = '2026-03-01 00:00:00' where id = 2")
    _, details = await parked(tables)
    for _ in range(2):  # the second time it finds no row to change
        await run_residue(tables, details)
        assert await tables.dump() == before


async def test_the_command_of_a_residue_restores_rows_that_exchange_unique_values(tables: Tables) -> None:
    constraint = "unique (pos) deferrable" if tables.kind == "postgres" else "unique (pos)"
    await tables.sql(f"create table @t (id int primary key, pos int, note varchar(9), {constraint})")
    await tables.sql("insert into @t values (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')")
    before = await tables.dump()
    swap = ["update @t set pos = -1 where id = 1", "update @t set pos = 1 where id = 2"]
    await tables.do([*swap, "update @t set pos = 2 where id = 1"])
    await tables.sql("update @t set note = 'other' where id = 1")
    _, details = await parked(tables)
    assert await run_residue(tables, details) == []
    await tables.sql("update @t set note = 'a' where id = 1")
    assert await tables.dump() == before


async def run_residue(tables: Tables, details: Mapping[str, Any]) -> list[str]:
    command = restoring_command(details["dialect"], details["sql"])
    return await asyncio.to_thread(_paste, make_url(tables.database.url), tables.kind, command.splitlines())


async def test_a_deletion_names_all_values_of_the_row(tables: Tables) -> None:
    await tables.sql(*TWO)
    await tables.do(["insert into @t values (3, 5, 'new')"])
    await tables.sql("update @t set n = 50 where id = 3")
    _, details = await parked(tables)
    await tables.sql("update @t set note = 'NEW' where id = 3")  # equal under some collations
    before = await tables.dump()
    await paste(tables, details)
    assert await tables.dump() == before


async def test_the_sql_restores_all_rows_or_none(tables: Tables) -> None:
    """The insert is refused, in a client that goes on after an error."""
    await tables.sql(*TWO)
    await tables.do(["update @t set n = 4 where id = 1", "delete from @t where id = 2"])
    await tables.sql("update @t set n = 50 where id = 1")
    _, details = await parked(tables)
    assert len(details["sql"]) == 2
    await tables.sql("insert into @t values (2, 7, 'c')")
    before = await tables.dump()
    assert await paste(tables, details)
    assert await tables.dump() == before
