"""A migration between a step and its undo: rows are restored only if it is certain which ones, and to which values."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import GuardDatabase, open_guard_database


@pytest_asyncio.fixture
async def tables(guard_database: GuardDatabase) -> AsyncIterator[Tables]:
    tables = Tables(guard_database)
    yield tables
    await tables.drop()


@pytest_asyncio.fixture
async def postgres_tables(postgres_server: DatabaseServer) -> AsyncIterator[Tables]:
    database = await open_guard_database("postgres", new_database(postgres_server))
    yield Tables(database)
    await database.connections.close()


CHANGES = {"insert": "insert into @t values (1, 2, 9)", "update": "update @t set v = 7", "delete": "delete from @t"}


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
    assert (undone.failure.details["rows"], undone.failure.details["sql"]) == ([], [])
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
