"""A schema file whose statement waits for a lock: reported, ended, and the holder of the lock is named."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard import schema
from saga_workers.runtime import lock_waits
from saga_workers.runtime.databases import set_up_database
from sagas.errors import SagaError
from sagas.settings import load_settings
from sagas.settings.connections import async_url
from tests.helpers.database_servers import DatabaseServer

pytestmark = pytest.mark.slow

TABLES = "create table if not exists item (id int primary key, n int);\n"
INSERT = "insert into item values (1, 5) on conflict do nothing;\n"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_waits, "_TIMEOUT", 2)
    monkeypatch.setattr(lock_waits, "_REPORT_EVERY", 0.5)


async def set_up(tmp_path: Path, url: str, statements: str) -> list[str]:
    (tmp_path / "schema.sql").write_text(statements, encoding="utf-8")
    settings = tmp_path / "saga.toml"
    settings.write_text(f'[connections.shop]\nurl = "{url}"\nschema = "schema.sql"\n', encoding="utf-8")
    connection = load_settings(tmp_path, env={}).sql_connections()[0]
    reports: list[str] = []
    try:
        await set_up_database(connection, report=reports.append)
    except SagaError as error:
        reports.append(f"{error.message} | {error.help}")
    return reports


def refused(reports: list[str]) -> bool:
    """Return whether the set-up has failed; a busy machine may only have been slow."""
    return any(" | " in line for line in reports)


async def test_postgresql_names_a_prepared_transaction_and_a_session(
    postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute("create database setupwaits")
    url = postgres_server.url("setupwaits")
    assert not refused(await set_up(tmp_path, url, TABLES))
    with psycopg.connect(url, autocommit=True) as holder:
        holder.execute("begin; insert into item values (1, 4); prepare transaction 'forgotten'")
        *reports, error = await set_up(tmp_path, url, TABLES + INSERT)
        place = f"shop: {tmp_path / 'schema.sql'}:2"
        held = "held by the prepared transaction 'forgotten' of user saga, "
        assert reports[0].startswith(f"{place} waits for a lock, {held}")
        assert error.startswith(
            f"{place} has waited 2 s for a lock; it is held by the prepared transaction 'forgotten'"
        )
        assert "saga reconcile" in error
        holder.execute("rollback prepared 'forgotten'")
        assert not refused(await set_up(tmp_path, url, TABLES + INSERT))

        holder.execute("set application_name = 'report'; begin; lock table item")
        *reports, error = await set_up(tmp_path, url, TABLES + "alter table item add column m int;")
        assert f"process {holder.info.backend_pid} (user saga, report), whose transaction is" in reports[0]
        assert f"process {holder.info.backend_pid} (user saga, report)" in error
        holder.execute("rollback")
        # The engine's own tables wait as well.
        holder.execute("begin; lock table saga_version")
        assert "the tables of the engine has waited" in (await set_up(tmp_path, url, TABLES))[-1]


async def test_a_role_that_may_only_connect_is_named(postgres_server: DatabaseServer, tmp_path: Path) -> None:
    """PostgreSQL does not show when a session of another role took its lock."""
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        for statement in (
            "create role setup_owner login",
            "create role setup_blocker login",
            "create database setupblocked owner setup_owner",
        ):
            admin.execute(statement)  # pyright: ignore[reportArgumentType,reportCallIssue]
    address = postgres_server.url("setupblocked").partition("@")[2]
    with psycopg.connect(f"postgresql://setup_blocker@{address}", autocommit=True) as blocker:
        blocker.execute(sql.SQL("select pg_advisory_lock({})").format(sql.Literal(schema._ADVISORY_LOCK)))
        *_, error = await set_up(tmp_path, f"postgresql://setup_owner@{address}", TABLES)
        assert (
            f"it is held by process {blocker.info.backend_pid} (user setup_blocker, no application name) by an "
            "advisory lock, which every role that may connect can take |" in error
        )


async def test_mariadb_ends_waits_for_rows_and_for_tables(mariadb_server: DatabaseServer, tmp_path: Path) -> None:
    admin = create_async_engine(async_url(mariadb_server.url(), tmp_path, setting="url"))
    async with admin.begin() as server:
        await server.execute(text("create database setupwaits"))
    await admin.dispose()
    url = mariadb_server.url("setupwaits")
    assert not refused(await set_up(tmp_path, url, TABLES))
    engine = create_async_engine(async_url(url, tmp_path, setting="url"))
    async with engine.connect() as holder:
        await holder.execute(text("insert into item values (1, 4)"))
        for change in ("insert ignore into item values (1, 5);", "alter table item add column m int;"):
            *reports, error = await set_up(tmp_path, url, TABLES + change)
            assert reports[0] == f"shop: running {tmp_path / 'schema.sql'}:2 for more than 0.5 s"
            assert error.startswith(f"shop: {tmp_path / 'schema.sql'}:2 has waited 2 s for a lock | find the session")
    await engine.dispose()


async def test_sqlite_ends_a_wait_for_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    assert not refused(await set_up(tmp_path, url, TABLES))
    holder = sqlite3.connect(tmp_path / "shop.db")
    holder.execute("begin immediate")
    *reports, error = await set_up(tmp_path, url, TABLES + INSERT)
    assert reports[0].endswith("schema.sql:2 for more than 0.5 s")
    assert error.startswith(f"shop: {tmp_path / 'schema.sql'}:2 has waited 2 s for a lock | end the program")
    holder.close()
