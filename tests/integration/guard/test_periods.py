"""Rows whose keys are periods: what an index excludes (`&&`) is not what makes two rows the same one (`=`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import open_guard_database

PERIODS = [
    "create table @p (id int, d daterange, v text, primary key (id, d without overlaps))",
    "insert into @p values (1, '[2026-01-01,2026-02-01)', 'a'), (1, '[2026-02-01,2026-03-01)', 'b'),"
    " (2, '[2026-01-01,2026-02-01)', 'c')",
]
REFERRED = [
    *PERIODS,
    "create table @c (id int primary key, p int, d daterange, foreign key (p, period d) references @p (id, period d))",
    "insert into @c values (1, 1, '[2026-01-15,2026-02-15)')",
]
ROOMS = [
    "create table @r (id int primary key, room int, d daterange, exclude using gist (room with =, d with &&))",
    "insert into @r values (1, 1, '[2026-01-01,2026-02-01)'), (2, 2, '[2026-01-01,2026-02-01)')",
]
CASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "another row in the period of a deleted one": (
        PERIODS,
        ["delete from @p where id = 2", "insert into @p values (2, '[2026-01-10,2026-01-11)', 'n')"],
    ),
    "a unique period": (
        [
            "create table @u (k int primary key, id int, d daterange, unique (id, d without overlaps))",
            "insert into @u values (1, 1, '[2026-01-01,2026-02-01)')",
        ],
        ["delete from @u", "insert into @u values (2, 1, '[2026-01-10,2026-01-11)')"],
    ),
    "several periods in one": (
        [
            "create table @m (id int, d datemultirange, primary key (id, d without overlaps))",
            "insert into @m values (1, '{[2026-01-01,2026-02-01)}')",
        ],
        ["delete from @m", "insert into @m values (1, '{[2026-01-10,2026-01-11),[2026-01-20,2026-01-22)}')"],
    ),
    "the freed part of a shortened period": (
        PERIODS,
        [
            "update @p set d = '[2026-01-01,2026-01-10)' where id = 1 and d @> date '2026-01-05'",
            "insert into @p values (1, '[2026-01-10,2026-02-01)', 'n')",
        ],
    ),
    "a period moved over itself": (
        PERIODS,
        [
            "update @p set d = '[2026-01-15,2026-02-10)' where id = 2",
            "update @p set d = '[2026-02-01,2026-03-01)', v = 'z' where id = 2",
        ],
    ),
    "a shortened period with references": (
        REFERRED,
        [
            "update @c set d = '[2026-01-15,2026-01-20)'",
            "update @p set d = '[2026-01-10,2026-02-01)' where id = 1 and d @> date '2026-01-20'",
            "delete from @p where id = 1 and d @> date '2026-02-20'",
            "insert into @p values (1, '[2026-02-01,2026-02-05)', 'n')",
            "update @c set d = '[2026-01-15,2026-02-03)'",
        ],
    ),
    "an exclusion constraint": (
        ROOMS,
        ["delete from @r where id = 1", "insert into @r values (3, 1, '[2026-01-10,2026-01-12)')"],
    ),
    "the freed part of an excluded period": (
        ROOMS,
        [
            "update @r set d = '[2026-01-01,2026-01-05)' where id = 1",
            "update @r set room = 1, d = '[2026-01-05,2026-01-12)' where id = 2",
        ],
    ),
    "a unique value": (
        ["create table @q (id int primary key, v text unique)", "insert into @q values (1, 'a')"],
        ["delete from @q", "insert into @q values (2, 'a')"],
    ),
}


@pytest_asyncio.fixture
async def tables(postgres_server: DatabaseServer) -> AsyncIterator[Tables]:
    database = await open_guard_database("postgres", new_database(postgres_server))
    tables = Tables(database)
    await tables.sql("create extension btree_gist")
    yield tables
    await database.connections.close()


@pytest.mark.parametrize("case", CASES)
async def test_periods_are_restored(tables: Tables, case: str) -> None:
    create, run = CASES[case]
    await tables.sql(*create)
    before = await tables.dump()
    done = await tables.do(run)
    assert done.kind == "done", done.failure
    assert await tables.dump() != before
    undone = await tables.undo()
    assert undone.kind == "done", undone.park_reason
    assert await tables.dump() == before


async def test_the_refusal_names_the_constraint_in_the_way(tables: Tables) -> None:
    """The row was valid for no constraint before the step; the references to it have nothing to do with that."""
    await tables.sql(*REFERRED, "update @c set d = '[2026-01-15,2026-01-20)'")
    await tables.sql("alter table @p add constraint young check (v <> 'a') not valid")
    before = await tables.dump()
    refused = await tables.do(
        [
            "update @p set v = 'z' where id = 1 and d @> date '2026-01-20'",
            "update @p set d = '[2026-01-10,2026-02-01)' where id = 1 and d @> date '2026-01-20'",
        ]
    )
    assert refused.failure is not None
    assert 'violates check constraint "young"' in refused.failure.message
    assert await tables.dump() == before
