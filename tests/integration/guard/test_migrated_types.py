"""A migration of a type between a step and its undo: the name of a type, a label or a column is not an identity."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from sagas.sql_text.restoring_script import restoring_script
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import database_url, open_guard_database


@pytest.fixture
def tables(postgres_tables: Tables) -> Tables:
    return postgres_tables


PAIR = "create type pair as (a int, b int)"
MOOD = "create type mood as enum ('sad', 'glad')"
CROSSWISE = [
    "alter type pair rename attribute a to c",
    "alter type pair rename attribute b to a",
    "alter type pair rename attribute c to b",
]
AGAIN = ["alter type pair drop attribute a", "alter type pair add attribute a int"]
LABELS = [
    "alter type mood rename value 'sad' to 'x'",
    "alter type mood rename value 'glad' to 'sad'",
    "alter type mood rename value 'x' to 'glad'",
]
SAME_AGAIN = ["alter type pair drop attribute b", "alter type pair add attribute b int"]
SHIFTED = [
    "alter type pair drop attribute a",
    "alter type pair rename attribute b to a",
    "alter type pair add attribute b int",
]
SHELTERED = [
    "create type fresh as (b int, a int)",
    "alter table @t alter v type fresh using row((v).b, (v).a)::fresh",
    "drop type pair",
    "alter type fresh rename to pair",
]
WAS, IS = "(a integer, b integer)", "(b integer, a integer)"
ATTRIBUTES = f"the list of the attributes of public.pair was {WAS} when the step ran, and is {IS} now"
OTHERS = f"attributes of public.pair {WAS} were dropped or renamed, and others have their names now"
LABEL = "the label 'sad' of public.mood was that of another member when the step ran"
TIMES = [
    "alter table @t alter v type text using v::text",
    "drop domain moment",
    "create domain moment as timestamptz",
    "alter table @t alter v type moment using v::timestamptz",
]
RANGES = [
    "alter table @t alter v type text using v::text",
    "drop type span",
    "create type span as range (subtype = timestamptz)",
    "alter table @t alter v type span using v::span",
]
COLLATED = [*RANGES[:2], 'create type span as range (subtype = text, collation = "C")', RANGES[3]]
MULTIRANGES = [
    *RANGES[:2],
    "create type span as range (subtype = timestamptz, multirange_type_name = spans)",
    "alter table @t alter v type spans using v::spans",
]
COLUMNS = [statement.replace("type", "table").replace("attribute", "column") for statement in CROSSWISE]
NOON = "2026-06-01 12:00"
SPAN = "create type span as range (subtype = timestamp, multirange_type_name = spans)"
TEXTS = "create type span as range (subtype = text)"

PARKED = {
    "crosswise": ([PAIR], "pair", "row(1, 2)", CROSSWISE, ATTRIBUTES),
    "dropped_and_added": ([PAIR], "pair", "row(1, 2)", AGAIN, ATTRIBUTES),
    "same_attribute_again": ([PAIR], "pair", "row(1, 2)", SAME_AGAIN, OTHERS),
    "shifted": ([PAIR], "pair", "row(1, 2)", SHIFTED, OTHERS),
    "shifted_in_an_array": ([PAIR], "pair[]", "array[row(1, 2)::pair]", SHIFTED, OTHERS),
    "created_again": ([PAIR], "pair", "row(1, 2)", SHELTERED, ATTRIBUTES),
    "array": ([PAIR], "pair[]", "array[row(1, 2)::pair]", AGAIN, ATTRIBUTES),
    "domain": ([PAIR, "create domain twin as pair"], "twin", "row(1, 2)::pair", CROSSWISE, ATTRIBUTES),
    "nested": ([PAIR, "create type nest as (p pair[])"], "nest", "row(array[row(1, 2)::pair])", AGAIN, ATTRIBUTES),
    "table_row": (["create table pair (a int, b int)"], "pair", "row(1, 2)", COLUMNS, ATTRIBUTES),
    "labels": ([MOOD], "mood", "'sad'", LABELS, LABEL),
    "array_of_labels": ([MOOD], "mood[]", "'{sad}'", LABELS, LABEL),
    "labels_to_text": ([MOOD], "mood", "'sad'", [*LABELS, "alter table @t alter v type text"], LABEL),
    "domain_of_times": (["create domain moment as timestamp"], "moment", f"'{NOON}'", TIMES, "public.moment was time"),
    "range_of_times": ([SPAN], "span", f"'[{NOON},)'", RANGES, "the subtype of public.span was timestamp"),
    "multirange": ([SPAN], "spans", f"'{{[{NOON},)}}'", MULTIRANGES, "the subtype of public.span was timestamp"),
    "collation_of_a_range": ([TEXTS], "span", "'[a,b)'", COLLATED, "text collate pg_catalog"),
}


@pytest.mark.sampled(keep=8)
@pytest.mark.parametrize("name", PARKED)
async def test_a_type_that_has_another_meaning_parks_the_undo(tables: Tables, name: str) -> None:
    types, kind, value, migration, reason = PARKED[name]
    await tables.sql(*types, f"create table @t (id int primary key, v {kind})", f"insert into @t values (1, {value})")
    assert (await tables.do(["delete from @t"])).kind == "done"
    await tables.sql(*migration)
    undone = await tables.undo()
    assert undone.park_reason is not None, undone
    assert reason in undone.park_reason
    assert "the column v of public." in undone.park_reason
    assert await tables.sql("select * from @t") == []


MOOD_AGAIN = [
    "alter type mood rename to old",
    "create type mood as enum ('glad', 'sad')",
    "alter table @t alter v type mood using v::text::mood",
    "drop type old",
]
ADDED = ["alter type mood add value 'angry' before 'sad'"]
FELT = [MOOD, "create type felt as (m mood[])"]

KEPT = {
    "another_label": ([MOOD], "mood", "'sad'", ADDED),
    "another_label_in_a_row": (FELT, "felt", "row('{sad}'::mood[])", ADDED),
    "another_label_renamed": ([MOOD], "mood", "'sad'", ["alter type mood rename value 'glad' to 'x'"]),
    "labels_created_again": ([MOOD], "mood", "'sad'", MOOD_AGAIN),
    "label_to_text": ([MOOD], "mood", "'sad'", ["alter table @t alter v type text"]),
}


@pytest.mark.parametrize("name", KEPT)
async def test_a_type_that_has_the_same_meaning_is_restored(tables: Tables, name: str) -> None:
    types, kind, value, migration = KEPT[name]
    await tables.sql(*types, f"create table @t (id int primary key, v {kind})", f"insert into @t values (1, {value})")
    before = await tables.sql("select v::text from @t")
    assert (await tables.do(["delete from @t"])).kind == "done"
    await tables.sql(*migration)
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.sql("select v::text from @t") == before


SHOWN = {"pair": "row(1, 2)::pair", "pair[]": "array[row(1, 2)::pair]"}


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("migration", [None, AGAIN, SHIFTED])
async def test_the_sql_of_a_parked_undo_is_refused_after_a_migration(
    tables: Tables, kind: str, migration: list[str] | None
) -> None:
    await tables.sql(
        PAIR, f"create table @t (id int primary key, v {kind})", f"insert into @t values (1, {SHOWN[kind]})"
    )
    before = await tables.sql("select v::text from @t")
    assert (await tables.do(["delete from @t"])).kind == "done"
    await tables.sql("insert into @t values (1, null)")
    parked = await tables.undo()
    assert parked.failure is not None
    assert parked.failure.details["sql_refused"] is None
    (script,) = restoring_script("postgresql", parked.failure.details["sql"])
    if migration is None:
        await tables.sql(script)
        assert await tables.sql("select v::text from @t") == before
        return
    await tables.sql(*migration)
    with pytest.raises(DBAPIError, match=r"the attributes of public\.pair have changed since"):
        await tables.sql(script)
    assert await tables.sql("select v from @t") == [(None,)]


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
async def test_columns_that_have_exchanged_their_names_park_the_undo(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    database = await open_guard_database(kind, database_url(kind, request, tmp_path))
    tables = Tables(database)
    await tables.sql("create table @t (id int primary key, a int, b int)", "insert into @t values (1, 10, 20)")
    assert (await tables.do(["delete from @t"])).kind == "done"
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        await tables.sql(f"alter table @t rename column {old} to {new}")
    undone = await tables.undo()
    assert "the column b of " in (undone.park_reason or "")
    assert "is where a was when the step ran" in (undone.park_reason or "")
    assert (await tables.dump())["t"] == []
    await tables.drop()
    await database.connections.close()


DROPPED = ["drop column a", "rename column c to a", "add column c int"]
ADDED_AGAIN = ["drop column c", "add column c int"]
COPIED = ["rename column c to x", "add column c int", "drop column x"]
TYPES = [
    "rename column a to x",
    "rename column c to a",
    "rename column x to c",
    "alter column a type int, alter column c type bigint",
]
WHERE_C_WAS = "the column a of public.t_{} is where c was when the step ran, so the two may have exchanged their names"
WHERE_A_WAS = "the column c of public.t_{} is where a was when the step ran, so the two may have exchanged their names"
ANOTHER = "the column c of public.t_{} is another one than when the step ran, which was dropped or renamed"
EXCHANGES = {
    "dropped": ("a int, c int", DROPPED, WHERE_C_WAS),
    "added_again": ("a int, c int", ADDED_AGAIN, ANOTHER),
    "copied": ("a int, c int", COPIED, ANOTHER),
    "with_their_types": ("a int, c bigint", TYPES, WHERE_A_WAS),
}


@pytest.mark.parametrize("change", ["delete from @t where id = 1", "update @t set a = 0, c = 0 where id = 1"])
@pytest.mark.parametrize("name", EXCHANGES)
async def test_a_column_with_the_name_of_another_one_parks_the_undo(tables: Tables, name: str, change: str) -> None:
    columns, migration, reason = EXCHANGES[name]
    await tables.sql(f"create table @t (id int primary key, {columns})", "insert into @t values (1, 10, 20)")
    assert (await tables.do([change])).kind == "done"
    await tables.sql(*(f"alter table @t {part}" for part in migration))
    after = await tables.dump()
    undone = await tables.undo()
    assert reason.format(tables.id) in (undone.park_reason or ""), undone
    assert await tables.dump() == after


async def test_a_column_dropped_before_the_step_is_no_obstacle(tables: Tables) -> None:
    await tables.sql("create table @t (id int primary key, a int, b int, c int)", "insert into @t values (1, 5, 6, 7)")
    await tables.sql("alter table @t drop column a")
    before = await tables.dump()
    assert (await tables.do(["delete from @t"])).kind == "done"
    await tables.sql("alter table @t alter b type bigint")
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.dump() == before


EXCHANGED = {
    "mariadb": [
        "rename column a to x",
        "rename column c to a",
        "rename column x to c",
        "modify a int, modify c bigint",
    ],
    "sqlite": ["drop column a", "add column a int"],
}


@pytest.mark.parametrize("kind", EXCHANGED)
async def test_a_column_in_another_place_parks_the_undo(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    database = await open_guard_database(kind, database_url(kind, request, tmp_path))
    tables = Tables(database)
    await tables.sql("create table @t (id int primary key, a int, c bigint)", "insert into @t values (1, 10, 20)")
    assert (await tables.do(["delete from @t"])).kind == "done"
    await tables.sql(*(f"alter table @t {part}" for part in EXCHANGED[kind]))
    undone = await tables.undo()
    assert "is where a was when the step ran" in (undone.park_reason or ""), undone
    await tables.drop()
    await database.connections.close()
