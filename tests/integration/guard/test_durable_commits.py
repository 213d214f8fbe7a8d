"""Transactions of the engine are on disk once committed, though the sessions of the role need not wait for that."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.connections import open_engine
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections
from saga_spark.database_sessions import database_session
from saga_workers.runtime.databases import open_command_engine
from sagas.actions.registry import Actions
from sagas.protocol.messages import GuardSpec
from sagas.protocol.payloads import Invocation, idempotency_key
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import new_attempt, open_guard_database


@pytest.mark.parametrize(("setting", "used"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
async def test_only_a_commit_that_waits_for_no_disk_is_changed(
    setting: str, used: str, postgres_server: DatabaseServer
) -> None:
    url = make_url(new_database(postgres_server)).update_query_dict({"options": f"-c synchronous_commit={setting}"})
    tables = Tables(await open_guard_database("postgres", url.render_as_string(hide_password=False)))
    await tables.sql("create table @used (id int primary key, setting text)")
    done = await tables.do(["insert into @used values (1, current_setting('synchronous_commit'))"])
    assert done.kind == "done", done
    assert await tables.dump() == {"used": [f"(1, '{used}')"]}
    engine = tables.database.connections.engine("shop")
    assert await setting_of(engine) == used  # also after the statements of the step, which may change the session
    await tables.database.connections.close()


async def test_a_step_cannot_let_its_commit_wait_for_no_disk(postgres_server: DatabaseServer) -> None:
    database = await open_guard_database("postgres", new_database(postgres_server))
    await database.rows("create table used (setting text)")
    await database.rows(
        "create function note() returns trigger language plpgsql as $$ begin"
        " update used set setting = current_setting('synchronous_commit'); return null; end $$"
    )
    await database.rows(
        "create constraint trigger noted after insert on used deferrable initially deferred"
        " for each row execute function note()"
    )
    run = "insert into used select set_config('synchronous_commit', 'off', true)"
    key, guard = idempotency_key("s-1", "pay", 1, ""), GuardSpec("shop", "decide", False, None)
    arguments = {"connection": "shop", "run": run}
    invocation = Invocation("sql", arguments, key, "s-1", "pay", "do", 1, guard=guard, saga="order")
    dispatcher = Dispatcher(ActionBodies(Actions()), database.connections, HttpConnections({}))
    outcome = await dispatcher.perform(invocation, new_attempt())
    assert outcome.kind == "done", outcome
    assert await database.rows("select setting from used") == [("on",)]
    await database.connections.close()


async def setting_of(engine: AsyncEngine) -> str:
    async with engine.connect() as connection:
        return (await connection.execute(text("show synchronous_commit"))).scalar_one()


@pytest.mark.parametrize(("setting", "used"), [("off", "on"), ("remote_apply", "remote_apply")])
async def test_every_session_of_the_engine_waits_for_the_disk(
    setting: str, used: str, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    url = new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as administrator:
        [(name,)] = administrator.execute("select current_database()").fetchall()
        change = sql.SQL("alter database {} set synchronous_commit = {}").format(sql.Identifier(name), setting)
        administrator.execute(change)
    pool = open_engine("shop", url, 1)  # of workers, relays and ledgers
    command = open_command_engine(SqlConnection(name="shop", root=tmp_path, url_setting=url))
    assert (await setting_of(pool), await setting_of(command)) == (used, used)
    serializable = pool.execution_options(isolation_level="SERIALIZABLE")
    assert (await setting_of(serializable), await setting_of(pool)) == (used, used)
    await pool.dispose()
    await command.dispose()
    with database_session(url, "shop") as connection:
        connection.rollback()
        assert connection.execute("show synchronous_commit").fetchone() == (used,)
