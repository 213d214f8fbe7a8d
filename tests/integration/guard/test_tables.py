"""The engine's tables: created twice, created concurrently, and upgraded from an older version, on every database."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.exc import SAWarning
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard import EntryKey, Guard, SqlSession
from saga_activities.guard.outbox_postgresql import needed_tables
from saga_activities.guard.schema import SCHEMA_VERSION, NewerTables, create_tables, ddl
from saga_activities.guard.tables import outbox_table
from saga_activities.messaging.outbox import insert_events
from sagas.actions.step import Event
from sagas.protocol.payloads import Invocation
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.outbox_version_6 import VERSION_6
from tests.integration.guard.conftest import clock, database_url

# As `saga setup` of version 2 made it.
_OUTBOX_2 = """
create table saga_outbox (
    id {id}, event_id varchar(36) not null unique, topic varchar(255) not null, event_key text, value text,
    headers text not null, saga_id varchar(512) not null, step varchar(200) not null, generation integer not null,
    status varchar(12) not null, created_at double precision not null{index}
){options}
"""
_ID = {
    "postgres": "bigserial primary key",
    "mariadb": "bigint primary key auto_increment",
    "sqlite": "integer primary key",
}
_ROW = """
insert into saga_outbox (event_id, topic, headers, saga_id, step, generation, status, created_at)
values ('e-1', 'orders', '{}', 's-1', 'pay', 1, 'NEW', 1.0)
"""


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


async def _version_2(kind: str, engine: AsyncEngine) -> None:
    index = ", index saga_outbox_status (status, id)" if kind == "mariadb" else ""
    options = " charset=utf8mb4 collate utf8mb4_bin engine=InnoDB" if kind == "mariadb" else ""
    async with engine.connect() as connection:
        for statement in (
            _OUTBOX_2.format(id=_ID[kind], index=index, options=options),
            "create index saga_outbox_status on saga_outbox (status, id)" if kind != "mariadb" else "select 1",
            "create table saga_version (part varchar(32) primary key, version integer not null)",
            "insert into saga_version values ('guard', 2)",
            _ROW,
        ):
            await connection.exec_driver_sql(statement)


async def _version_3(engine: AsyncEngine) -> None:
    """Today's tables without what later versions have changed, and a command that waits for its reply."""
    await create_tables(engine)
    on_table = " on saga_outbox" if engine.dialect.name in ("mysql", "mariadb") else ""
    async with engine.connect() as connection:
        for statement in (
            *(VERSION_6 if engine.dialect.name == "postgresql" else ()),
            f"drop index saga_outbox_waiting{on_table}",
            "create index saga_outbox_scan on saga_outbox (status, shard, id)",
            "alter table saga_request drop column reply_topic",
            "alter table saga_request drop column reply_token",
            "update saga_version set version = 3",
            "insert into saga_request (step_key, saga_id, step, generation, op, created_at)"
            " values ('s-1/ask', 's-1', 'ask', 1, 'do', 1.0)",
        ):
            await connection.exec_driver_sql(statement)


_REPLACED = {"postgres": ("saga_outbox_waiting",)}


def _columns(kind: str) -> set[str]:
    return {column.name for column in outbox_table.columns} | ({"xid"} if kind == "postgres" else set())


def _indexes(kind: str) -> set[str]:
    own = ("saga_outbox_written", "saga_outbox_set_aside") if kind == "postgres" else ("saga_outbox_waiting",)
    return {"saga_outbox_held", *own}


async def _request(engine: AsyncEngine) -> tuple[object, ...]:
    return await _one(engine, "select step_key, outcome, reply_topic, reply_token from saga_request")


async def _look(engine: AsyncEngine) -> tuple[set[str], set[str], set[str | None]]:
    def read(sync: sa.Connection) -> tuple[set[str], set[str], set[str | None]]:
        found = sa.inspect(sync)
        with warnings.catch_warnings(action="ignore", category=SAWarning):  # of types it does not know: xid8
            columns = {column["name"] for column in found.get_columns(outbox_table.name)}
        return set(found.get_table_names()), columns, {index["name"] for index in found.get_indexes(outbox_table.name)}

    async with engine.connect() as connection:
        return await connection.run_sync(read)


async def _one(engine: AsyncEngine, statement: str) -> tuple[object, ...]:
    async with engine.connect() as connection:
        return tuple((await connection.execute(sa.text(statement))).one())


async def test_version_2_tables_are_upgraded(empty: tuple[str, AsyncEngine]) -> None:
    kind, engine = empty
    await _version_2(kind, engine)
    await create_tables(engine)
    tables, columns, indexes = await _look(engine)
    assert needed_tables(engine.dialect.name) <= tables
    assert columns == _columns(kind)
    assert _indexes(kind) <= indexes
    assert not {"saga_outbox_status", "saga_outbox_scan", *_REPLACED.get(kind, ())} & indexes
    assert await _one(engine, "select version from saga_version where part = 'guard'") == (SCHEMA_VERSION,)
    assert await _one(engine, "select event_id, status, shard, checks from saga_outbox") == ("e-1", "NEW", 0, 0)
    await create_tables(engine)


async def test_a_request_of_version_3_keeps_waiting(empty: tuple[str, AsyncEngine]) -> None:
    _, engine = empty
    await _version_3(engine)
    await create_tables(engine)
    assert await _request(engine) == ("s-1/ask", None, None, None)


async def test_three_workers_upgrade_the_tables_concurrently(empty: tuple[str, AsyncEngine]) -> None:
    kind, engine = empty
    await _version_2(kind, engine)
    await asyncio.gather(*(create_tables(engine) for _ in range(3)))
    _, columns, _ = await _look(engine)
    assert columns == _columns(kind)
    assert await _one(engine, "select count(*) from saga_outbox_home") == (1,)


@pytest.mark.parametrize("empty", ["mariadb"], indirect=True)
async def test_a_deadlock_with_another_setup_is_repeated(empty: tuple[str, AsyncEngine]) -> None:
    """Only MySQL and MariaDB lock the gap that a missing row leaves."""
    _, engine = empty
    await create_tables(engine)
    async with engine.connect() as connection:
        for statement in ("delete from saga_watermark", "update saga_version set version = 2"):
            await connection.execute(sa.text(statement))
        await connection.execute(sa.text("create table heavier (n int)"))
    async with engine.execution_options(isolation_level="REPEATABLE READ").connect() as other:
        # Of two that are deadlocked the server gives up the one that has written less.
        await other.execute(sa.text(f"insert into heavier values {', '.join(['(1)'] * 100)}"))
        await other.execute(sa.text("select * from saga_watermark where id = 1 for update"))
        setup = asyncio.create_task(create_tables(engine))
        waiting = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
        async with asyncio.timeout(60):
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
        await connection.execute(sa.text("update saga_version set version = 2"))
    await create_tables(engine)
    assert await _one(engine, "select home, shards from saga_outbox_home") == home


async def test_the_number_of_shards_is_decided_when_the_tables_are_made(empty: tuple[str, AsyncEngine]) -> None:
    _, engine = empty
    await create_tables(engine, shards=7)
    async with engine.connect() as connection:
        await connection.execute(sa.text("update saga_version set version = 2"))
    await create_tables(engine, shards=3)
    assert await _one(engine, "select shards from saga_outbox_home") == (7,)


async def test_tables_of_a_newer_engine_are_not_changed(empty: tuple[str, AsyncEngine]) -> None:
    _, engine = empty
    await create_tables(engine)
    async with engine.connect() as connection:
        await connection.execute(sa.text(f"update saga_version set version = {SCHEMA_VERSION + 1}"))
    with pytest.raises(NewerTables, match="update the engine"):
        await create_tables(engine)


@pytest.mark.parametrize("before", ["nothing", "version 2", "version 3"])
async def test_the_printed_sql_makes_the_same_tables(empty: tuple[str, AsyncEngine], before: str) -> None:
    kind, engine = empty
    if before == "version 2":
        await _version_2(kind, engine)
    if before == "version 3":
        await _version_3(engine)
    sql = ddl({"postgres": "postgresql"}.get(kind, kind))
    if before != "nothing" and kind == "sqlite":  # as its comments explain to the administrator
        _, *sections = re.split("^-- Only where the tables have ", sql, flags=re.MULTILINE)
        for section in sections:
            wanted, _, statements = section.partition(", before all that follows:\n")
            if before.removeprefix("version ") in wanted.removeprefix("version ").split(" or "):
                sql = sql.replace(statements, re.sub("^-- ", "", statements, flags=re.MULTILINE))
    async with engine.connect() as connection:
        for _ in range(1 if kind == "sqlite" and before != "nothing" else 2):
            for statement in sql.split(";\n"):
                code = "\n".join(line for line in statement.splitlines() if not line.startswith("--")).strip()
                if code:
                    await connection.execute(sa.text(code))
    tables, columns, indexes = await _look(engine)
    assert needed_tables(engine.dialect.name) <= tables
    assert columns == _columns(kind)
    assert _indexes(kind) <= indexes
    assert not {"saga_outbox_status", "saga_outbox_scan", *_REPLACED.get(kind, ())} & indexes
    assert await _one(engine, "select version from saga_version where part = 'guard'") == (SCHEMA_VERSION,)
    assert await _one(engine, "select count(*) from saga_outbox_home") == (1,)
    if before == "version 3":
        assert await _request(engine) == ("s-1/ask", None, None, None)


async def test_an_action_on_version_2_tables_is_an_infrastructure_error(empty: tuple[str, AsyncEngine]) -> None:
    """The worker was updated before `saga setup` ran: its attempts are retried, and say what to do."""
    kind, engine = empty
    await create_tables(engine)
    async with engine.connect() as connection:
        view = ("drop view saga_outbox_events",) if kind == "postgres" else ()
        for statement in (*view, "drop table saga_outbox", "drop table saga_outbox_home"):
            await connection.exec_driver_sql(statement)
        outbox_2 = _OUTBOX_2.format(id=_ID[kind], index="", options="")
        await connection.exec_driver_sql(outbox_2)

    async def act(sql: SqlSession | None) -> None:
        assert sql is not None
        invocation = Invocation("act", {}, "s/pay", "s", "pay", "do", 1)
        await insert_events(sql, [Event("orders", None, 1)], invocation)

    outcome = await Guard("own", engine).do(EntryKey("s", "pay"), "h", act, **clock())
    assert outcome.infrastructure
    assert outcome.failure is not None
    assert "run `saga setup`" in outcome.failure.message
