"""A migration between two changes of one saga: each image is converted from the types that it was taken with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from saga_activities.automatic.nested_images import close_nested
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import clock, database_url, open_guard_database
from tests.integration.guard.parallel_undos import ParallelStep, confirm, undo

CREATE = (
    "create table @t (id int primary key, code varchar(9) unique, v decimal(10,2))",
    "insert into @t values (1, 'x', 1.00), (2, 'a', 1.25)",
)
WIDER = {"postgres": "alter table @t alter v type numeric(12,3)", "mariadb": "alter table @t modify v decimal(12,3)"}
TO_TEXT = {
    "postgres": "alter table @t alter v type text using case v when 2 then '2.00' else 'K-' || v end",
    "mariadb": "alter table @t modify v varchar(20)",
}


@pytest_asyncio.fixture(params=["postgres", "mariadb"])
async def tables(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tables]:
    database = await open_guard_database(request.param, database_url(request.param, request, tmp_path))
    tables = Tables(database)
    await tables.sql(*CREATE)
    yield tables
    await tables.drop()
    await database.connections.close()


async def values(tables: Tables) -> list[tuple[int, str]]:
    return [(row[0], str(row[1])) for row in await tables.sql("select id, v from @t order by id")]


async def test_images_that_an_older_step_inherits_keep_their_types(tables: Tables) -> None:
    """The older step restored 1.005 as 1.010: it took the value for one of its own type, which has two digits."""
    assert (await tables.do(["update @t set v = 2 where id = 1"], "older")).kind == "done"
    await tables.sql(WIDER[tables.kind], "update @t set v = 1.005 where id = 2")
    assert (await tables.do(["delete from @t where id = 2"], "deletes")).kind == "done"
    assert (await tables.do(["insert into @t values (3, 'a', 5)"], "inserts")).kind == "done"
    assert (await tables.undo("deletes")).result == {"restored": 0, "left_to": ["older"]}
    assert (await tables.undo("inserts")).kind == "done"
    assert (await tables.undo("older")).result == {"restored": 2}
    assert await values(tables) == [(1, "1.000"), (2, "1.005")]


@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_row_that_was_changed_before_and_after_the_migration_is_restored(tables: Tables, first: str) -> None:
    assert (await tables.do(["update @t set v = v + 1 where id = 1"], "a")).kind == "done"
    await tables.sql(WIDER[tables.kind])
    assert (await tables.do(["update @t set v = v + 0.005 where id = 1"], "b")).kind == "done"
    undone = await tables.undo(first)
    assert undone.result == ({"restored": 0, "left_to": ["b"]} if first == "a" else {"restored": 1})
    assert (await tables.undo("b" if first == "a" else "a")).kind == "done"
    assert await values(tables) == [(1, "1.000"), (2, "1.250")]


@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_conversion_that_is_not_certain_parks_the_undo(tables: Tables, first: str) -> None:
    assert (await tables.do(["update @t set v = v + 1 where id = 1"], "a")).kind == "done"
    await tables.sql(TO_TEXT[tables.kind])
    assert (await tables.do(["update @t set v = '3' where id = 1"], "b")).kind == "done"
    if first == "b":
        assert (await tables.undo("b")).result == {"restored": 1}
    before = await tables.dump()
    parked = await tables.undo("a")
    assert "the column v of" in (parked.park_reason or "")
    assert "when the step ran" in (parked.park_reason or "")
    assert await tables.dump() == before


async def test_a_confirm_after_the_migration_is_undone_by_its_statement(tables: Tables) -> None:
    undo_it = ["update @t set v = v - 1.005 where id = 1"]
    step = ParallelStep(["update @t set v = 2 where id = 1"], undo_it, ["update @t set v = v + 0.005 where id = 1"])
    assert (await tables.do(step.run, "a")).kind == "done"
    await tables.sql(WIDER[tables.kind])
    await confirm(tables, "a", step, "saga")
    rows = f"select sequence, after_image from saga_image where saga_id = 'saga-{tables.id}' order by sequence"
    header, _, appended = await tables.sql(rows)
    assert '"v":"2.005"' in appended[1].replace(" ", "")
    assert '"2":{' in header[1]  # the types of the second image are others than those of the step
    assert (await undo(tables, "a", step)).kind == "done"
    assert await values(tables) == [(1, "1.000"), (2, "1.250")]


@pytest.mark.parametrize("migrates", [False, True])
async def test_an_undo_by_statement_of_a_row_that_others_have_changed_parks_after_a_migration(
    tables: Tables, migrates: bool
) -> None:
    step = ParallelStep(["update @t set v = v + 1 where id = 1"], confirmed=["update @t set v = v - 1 where id = 1"])
    assert (await tables.do(step.run, "a")).kind == "done"
    assert (await tables.do(["update @t set v = v + 5 where id = 1"], "b")).kind == "done"
    await confirm(tables, "a", step, "saga")
    if migrates:
        await tables.sql(WIDER[tables.kind])
    undone = await undo(tables, "a", step)
    assert (undone.kind == "done") != migrates
    assert ("whose columns a migration has changed since" in (undone.park_reason or "")) == migrates


async def test_the_images_of_a_nested_saga_keep_their_types(tables: Tables) -> None:
    assert (await tables.do(["update @t set v = 2 where id = 1"], "a", "saga/n")).kind == "done"
    await tables.sql(WIDER[tables.kind], "update @t set v = 1.005 where id = 2")
    assert (await tables.do(["update @t set v = 3 where id = 2"], "b", "saga/n")).kind == "done"
    request = {"saga_id": tables.entry("a", "saga/n").saga_id, "connections": ["shop"], "images": None, "skip": True}
    closed = await close_nested(tables.database.connections, request, **clock())
    (part,) = closed.result["parts"]
    assert (part["open_rows"], part["changed_rows"]) == (2, 0)
    assert {row for change in part["sql"] for row in ("1.000", "1.005") if row in change["sql"]} == {"1.000", "1.005"}
