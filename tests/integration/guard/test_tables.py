"""The engine's tables: created twice, and created concurrently, on every database."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.exc import SAWarning
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.outbox_postgresql import needed_tables, outbox_rows
from saga_activities.guard.schema import SCHEMA_VERSION, NewerTables, create_tables, ddl
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.tables import outbox_table
from saga_activities.messaging.outbox import insert_events
from sagas.actions.events import Event
from sagas.protocol.payloads import Invocation
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.waiting import LIMIT
from tests.integration.guard.conftest import clock, database_url


@pytest_asyncio.fixture(params=["postgres", "mariadb", "sqlite"])
async def empty(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, AsyncEngine]]:
    """A database of its own without any table."""
    kind = request.param
    url = database_url(kind, request, tmp_path)
    if kind != "sqlite":
        name = f"tables_{abs(hash(request.node.name)) % 10**9}"
        server: DatabaseServer = request.getfixturevalue(f"{kind}_server")
        admin = open_engine("admin", server.url(), 1)
        async with admin.connect() as connection:
            await connection.exec_driver_sql(f"drop database if exists {name}")
            await connection.exec_driver_sql(f"create database {name}")
        await admin.dispose()
        url = server.url(name)
    engine = open_engine("own", url, 5)
    yield kind, engine
    await engine.dispose()


def _columns(kind: str) -> set[str]:
    return {column.name for column in outbox_table.columns} | ({"xid"} if kind == "postgres" else set())


def _indexes(kind: str) -> set[str]:
    own = ("saga_outbox_written", "saga_outbox_set_aside") if kind == "postgres" else ("saga_outbox_waiting",)
    return {"saga_outbox_held", *own}


async def _look(engine: AsyncEngine) -> tuple[set[str], set[str], set[str | None]]:
    def read(sync: sa.Connection) -> tuple[set[str], set[str], set[str | None]]:
        inspector, rows = sa.inspect(sync), outbox_rows(engine.dialect.name).name
        with warnings.catch_warnings(action="ignore", category=SAWarning):  # of types it does not know: xid8
            columns = {column["name"] for column in inspector.get_columns(rows)}
        return set(inspector.get_table_names()), columns, {index["name"] for index in inspector.get_indexes(rows)}

    async with engine.connect() as connection:
        return await connection.run_sync(read)


async def _one(engine: AsyncEngine, statement: str) -> tuple[object, ...]:
    async with engine.connect() as connection:
        return tuple((await connection.execute(sa.text(statement))).one())


async def test_three_workers_create_the_tables_concurrently(empty: tuple[str, AsyncEngine]) -> None:
    kind, engine = empty
    await asyncio.gather(*(create_tables(engine) for _ in range(3)))
    await create_tables(engine)
    await _check_tables(kind, engine)


async def _check_tables(kind: str, engine: AsyncEngine) -> None:
    tables, columns, indexes = await _look(engine)
    assert needed_tables(engine.dialect.name) <= tables
    assert columns == _columns(kind)
    assert _indexes(kind) <= indexes
    assert await _one(engine, "select version from saga_version where part = 'guard'") == (SCHEMA_VERSION,)
    assert await _one(engine, "select count(*) from saga_outbox_home") == (1,)


@pytest.mark.parametrize("empty", ["mariadb"], indirect=True)
async def test_a_deadlock_with_another_setup_is_repeated(empty: tuple[str, AsyncEngine]) -> None:
    """MySQL and MariaDB alone lock the gap that a missing row leaves."""
    _, engine = empty
    await create_tables(engine)
    async with engine.connect() as connection:
        for statement in ("delete from saga_watermark", "delete from saga_version"):
            await connection.execute(sa.text(statement))
        await connection.execute(sa.text("create table heavier (n int)"))
    async with engine.execution_options(isolation_level="REPEATABLE READ").connect() as other:
        # Of two that are deadlocked the server gives up the one that has written less.
        await other.execute(sa.text(f"insert into heavier values {', '.join(['(1)'] * 100)}"))
        await other.execute(sa.text("select * from saga_watermark where id = 1 for update"))
        setup = asyncio.create_task(create_tables(engine))
        waiting = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
        async with asyncio.timeout(LIMIT):
            while await _one(engine, waiting) == (0,):
                assert not setup.done(), setup
                await asyncio.sleep(0.25)  # the server renews this table only if nobody has read it for 0.1 seconds
        await other.execute(sa.text("insert into saga_watermark values (1, 0, 0)"))
        await other.commit()
        await setup
    assert await _one(engine, "select count(*) from saga_watermark") == (1,)


async def test_the_identity_of_an_outbox_never_changes(empty: tuple[str, AsyncEngine]) -> None:
    _, engine = empty
    await create_tables(engine)
    home = await _one(engine, "select home, shards from saga_outbox_home")
    async with engine.connect() as connection:
        await connection.execute(sa.text("delete from saga_version"))
    await create_tables(engine)
    assert await _one(engine, "select home, shards from saga_outbox_home") == home


async def test_the_number_of_shards_is_decided_when_the_tables_are_made(empty: tuple[str, AsyncEngine]) -> None:
    _, engine = empty
    await create_tables(engine, shards=7)
    async with engine.connect() as connection:
        await connection.execute(sa.text("delete from saga_version"))
    await create_tables(engine, shards=3)
    assert await _one(engine, "select shards from saga_outbox_home") == (7,)


async def test_tables_of_a_newer_engine_are_not_changed(empty: tuple[str, AsyncEngine]) -> None:
    _, engine = empty
    await create_tables(engine)
    async with engine.connect() as connection:
        await connection.execute(sa.text(f"update saga_version set version = {SCHEMA_VERSION + 1}"))
    with pytest.raises(NewerTables, match="update the engine"):
        await create_tables(engine)


async def test_the_printed_sql_makes_the_same_tables(empty: tuple[str, AsyncEngine]) -> None:
    kind, engine = empty
    async with engine.connect() as connection:
        for _ in range(2):
            for statement in ddl({"postgres": "postgresql"}.get(kind, kind)).split(";\n"):
                if statement.strip():
                    await connection.execute(sa.text(statement))
    await _check_tables(kind, engine)


async def test_an_action_without_tables_is_an_infrastructure_error(empty: tuple[str, AsyncEngine]) -> None:
    """The worker was started before `saga setup` ran: its attempts are retried, and say what to do."""
    kind, engine = empty
    await create_tables(engine)
    async with engine.connect() as connection:
        tables = ("view saga_outbox", "table saga_outbox_row") if kind == "postgres" else ("table saga_outbox",)
        for table in tables:
            await connection.exec_driver_sql(f"drop {table}")

    async def act(sql: SqlSession | None) -> None:
        assert sql is not None
        invocation = Invocation("act", {}, "s/pay", "s", "pay", "do", 1)
        await insert_events(sql, [Event("orders", None, 1)], invocation)

    outcome = await Guard("own", engine).do(EntryKey("s", "pay"), "h", act, **clock())
    assert outcome.infrastructure
    assert outcome.failure is not None
    assert "run `saga setup`" in outcome.failure.message
    assert outcome.failure.message.startswith("the table saga_outbox")
