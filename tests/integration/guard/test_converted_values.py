"""A migration of MariaDB between a step and its undo: the undo leaves what the migration alone would have left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import database_url, open_guard_database


@pytest_asyncio.fixture
async def tables(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tables]:
    database = await open_guard_database("mariadb", database_url("mariadb", request, tmp_path))
    tables = Tables(database)
    yield tables
    await tables.drop()
    await database.connections.close()


KEPT = {
    "zerofill_removed": ("int(5) zerofill", "5", "6", "int"),
    "zerofill_added": ("int", "5", "6", "int(5) zerofill"),
    "other_width": ("bigint(5) zerofill", "18446744073709551615", "6", "bigint(9) zerofill"),
    "decimal": ("decimal(7,2) zerofill", "5.5", "0.5", "decimal(9,3)"),
    "decimal_zerofill_added": ("decimal(7,2)", "5.5", "0.5", "decimal(7,2) unsigned zerofill"),
    "integer_to_decimal": ("smallint(5) zerofill", "5", "6", "decimal(7,2) zerofill"),
    "enum": ("enum('new','paid')", "'new'", "'paid'", "enum('NEW','PAID','it''s \\\\ 1:x, 100%')"),
    "enum_in_another_order": ("enum('new','paid')", "'new'", "'paid'", "enum('PAID','New')"),
    "text_to_enum": ("varchar(9)", "'new'", "'Paid'", "enum('NEW','PAID')"),
    "enum_to_text": ("enum('new','paid')", "'new'", "'paid'", "varchar(9)"),
    "set": ("set('a','b','c')", "'a,b'", "'c'", "set('C','B','A')"),
    "empty_set": ("set('a','b','c')", "''", "'c,a'", "set('C','B','A')"),
    "blank_after_the_step": ("varchar(4)", "'Ä'", "'ab '", "char(4)"),
    "zero_after_the_step": ("varbinary(4)", "'abcd'", "'ab'", "binary(4)"),
    "text_to_latin": ("varchar(4) character set latin1", "'Ä'", "'ö'", "char(4) character set latin1"),
}
CHANGES = {
    "update": "update @t set v = {} where id = 1",
    "delete": "delete from @t where id = 1",
    "insert": "insert into @t values (2, {})",
}


@pytest.mark.sampled
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", KEPT)
async def test_the_undo_leaves_what_the_migration_would_have_left(tables: Tables, name: str, change: str) -> None:
    old, before, after, new = KEPT[name]
    for table in ("@t", "@wanted"):
        await tables.sql(f"create table {table} (id int primary key, v {old})")
        await tables.sql(f"insert into {table} values (1, {before})")
    assert (await tables.do([CHANGES[change].format(after)])).kind == "done"
    for table in ("@t", "@wanted"):
        await tables.sql(f"alter table {table} modify v {new}")
    assert (await tables.undo()).result == {"restored": 1}
    rows = await tables.dump()
    assert rows["t"] == rows["wanted"]


@pytest.mark.parametrize(("old", "new"), [("int(5) zerofill", "int"), ("int", "int(5) zerofill")])
async def test_a_row_is_found_by_a_key_that_is_shown_with_zeros(tables: Tables, old: str, new: str) -> None:
    await tables.sql(f"create table @t (id {old} primary key, n int)", "insert into @t values (7, 5)")
    before = await tables.dump()
    assert (await tables.do(["update @t set n = 6", "insert into @t values (8, 1)"])).kind == "done"
    await tables.sql(f"alter table @t modify id {new}")
    assert (await tables.undo()).result == {"restored": 2}
    assert await tables.dump() == before


LOST = {
    "blank": ("varchar(4)", "'ab '", "null", "char(4)", "the new type drops blanks from a value"),
    "blank_of_a_member": ("varchar(4)", "'ab '", "null", "enum('ab')", "the new type drops blanks from a value"),
    "zeros": ("varbinary(4)", "'ab'", "null", "binary(4)", "the new type adds zeros to a value"),
    "longer": ("binary(2)", "'ab'", "null", "binary(4)", "the new type adds zeros to a value"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("change", ["update", "delete"])
@pytest.mark.parametrize("name", LOST)
async def test_a_value_that_the_new_type_changes_parks_the_undo(tables: Tables, name: str, change: str) -> None:
    old, before, after, new, reason = LOST[name]
    await tables.sql(f"create table @t (id int primary key, v {old})", f"insert into @t values (1, {before})")
    assert (await tables.do([CHANGES[change].format(after)])).kind == "done"
    await tables.sql(f"alter table @t modify v {new}")
    migrated = await tables.dump()
    undone = await tables.undo()
    assert reason in (undone.park_reason or ""), undone
    assert "the column v of guard." in (undone.park_reason or "")
    assert await tables.dump() == migrated


async def test_a_value_that_the_step_has_not_changed_needs_no_room(tables: Tables) -> None:
    await tables.sql("create table @t (id int primary key, v varchar(4), n int)", "insert into @t values (1, 'ab ', 5)")
    assert (await tables.do(["update @t set n = 6"])).kind == "done"
    await tables.sql("alter table @t modify v char(4)")
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.sql("select v, n from @t") == [("ab", 5)]
