"""`session_replication_role = replica` switches foreign keys off: the engine switches them on, or changes nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import make_url

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.locks.lock_table import LockTable
from saga_activities.locks.tables import create_tables as create_locks
from saga_activities.session_settings import require_foreign_keys
from saga_workers.doctor.foreign_key_setting import check_foreign_key_setting
from saga_workers.runtime.databases import open_command_engine
from sagas.actions.registry import Actions
from sagas.errors import UsageError
from sagas.protocol.messages import GuardSpec
from sagas.protocol.payloads import Invocation
from sagas.settings import SqlConnection
from sagas.sql_text.restoring_script import restoring_script
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import GuardDatabase, clock, new_attempt, open_guard_database

OFF = "session_replication_role is replica in the sessions of the role "


class Shop:
    """A database whose role may not change the setting, which a superuser has changed."""

    def __init__(self, address: str, role: str) -> None:
        self.address, self.role = address, role
        self.url = make_url(address).set(username=role).render_as_string(hide_password=False)

    def administer(self, *statements: str) -> None:
        with psycopg.connect(self.address, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def switch_off(self) -> None:
        self.administer(f"alter role {self.role} set session_replication_role = replica")

    def switch_on(self) -> None:
        self.administer(f"alter role {self.role} reset session_replication_role")

    async def open(self) -> Tables:
        """The tables in new sessions."""
        return Tables(await open_guard_database("postgres", self.url))


@pytest_asyncio.fixture
async def shop(postgres_server: DatabaseServer) -> AsyncIterator[Shop]:
    address, role = new_database(postgres_server), f"etl_{uuid4().hex[:8]}"
    shop = Shop(address, role)
    shop.administer(
        f"create role {role} login", f"grant all on database {make_url(address).database} to {role}",
        f"grant all on schema public to {role}",
    )  # fmt: skip
    yield shop
    shop.administer(f"drop owned by {role} cascade", f"drop role {role}")


async def close(database: GuardDatabase) -> None:
    await database.connections.close()


PARENTS = ("create table @p (id int primary key)", "create table @k (id int primary key, p int references @p)")


async def test_a_statement_is_refused_and_nothing_is_written(shop: Shop) -> None:
    shop.switch_off()
    tables = await shop.open()
    await tables.sql(*PARENTS)
    for step, automatic in (("plain", False), ("auto", True)):
        refused = await tables.do(["insert into @k values (1, 77)"], step, images=automatic)
        assert refused.kind == "failed", refused
        assert refused.failure is not None
        assert f"{OFF}{shop.role}" in refused.failure.message
        assert f'`alter role "{shop.role}" reset session_replication_role`' in refused.failure.message
        assert not refused.retryable
    assert await tables.dump() == {"p": [], "k": []}
    shop.switch_on()  # the next attempt has a new session
    assert "foreign key" in str((await tables.do(["insert into @k values (1, 77)"], "again")).failure)
    await close(tables.database)


async def test_an_undo_between_whose_sessions_the_setting_came_leaves_no_orphan(shop: Shop) -> None:
    tables = await shop.open()
    await tables.sql(*PARENTS)
    assert (await tables.do(["insert into @p values (1)"])).kind == "done"
    await tables.sql("insert into @k values (1, 1)")
    await close(tables.database)
    shop.switch_off()
    tables.database = await open_guard_database("postgres", shop.url)
    refused = await tables.undo()
    assert (refused.kind, refused.retryable) == ("failed", False)
    assert f"{OFF}{shop.role}" in str(refused.failure)
    assert await tables.dump() == {"p": ["(1,)"], "k": ["(1, 1)"]}
    shop.switch_on()
    assert "foreign key" in ((await tables.undo()).park_reason or "")
    await tables.sql("delete from @k")
    assert (await tables.undo()).result == {"restored": 1}
    await close(tables.database)


@pytest.mark.parametrize("calls", [1, 3])
async def test_the_calls_of_a_chunk_are_refused(shop: Shop, calls: int) -> None:
    shop.switch_off()
    tables = await shop.open()
    await tables.sql(*PARENTS)
    arguments = {"connection": "shop", "run": tables.named("insert into @k values (1, 77)")}
    entries = [tables.entry("chunk", f"saga{number}") for number in range(calls)]
    invocations = [
        Invocation("sql", arguments, str(entry), entry.saga_id, "chunk", "do", 1, 20, GuardSpec("shop"), saga="order")
        for entry in entries
    ]
    performer = ChunkPerformer(tables.database.guard, ActionBodies(Actions([])))
    for outcome in await performer.perform(invocations, new_attempt()):
        assert outcome is not None
        assert (outcome.kind, outcome.retryable) == ("failed", False)
        assert f"{OFF}{shop.role}" in str(outcome.failure)
    assert await tables.dump() == {"p": [], "k": []}
    await close(tables.database)


async def test_a_seal_and_the_locks_go_on(shop: Shop) -> None:
    shop.switch_off()
    tables = await shop.open()
    guard = tables.database.guard
    sealed = await guard.seal(tables.entry("never"), scheduled_at=time.time(), deadline=time.time() + 30)
    assert sealed.kind != "failed", sealed
    await create_locks(tables.database.engine)
    locks, times = LockTable("shop", tables.database.engine), clock()
    acquired = await locks.acquire(["k"], owner="saga", holder="saga", workflow_id="saga", waits=True, **times)
    assert acquired.kind == "done", acquired
    assert (await locks.release(owner="saga", holder="saga", **times)).kind == "done"
    await close(tables.database)


@pytest.mark.parametrize("right", ["superuser", "grant"])
async def test_a_role_that_may_set_it_checks_foreign_keys(shop: Shop, right: str) -> None:
    shop.switch_off()
    shop.administer(
        f"alter role {shop.role} superuser"
        if right == "superuser"
        else f"grant set on parameter session_replication_role to {shop.role}"
    )
    tables = await shop.open()
    await tables.sql(*PARENTS)
    assert "foreign key" in str((await tables.do(["insert into @k values (1, 77)"])).failure)
    assert await tables.dump() == {"p": [], "k": []}
    with psycopg.connect(shop.url) as connection:
        require_foreign_keys(connection)
        assert connection.execute("show session_replication_role").fetchone() == ("origin",)
    await close(tables.database)


async def test_spark_and_the_sql_for_people_refuse_such_a_session(shop: Shop) -> None:
    shop.switch_off()
    with psycopg.connect(shop.url) as connection, pytest.raises(UsageError, match=OFF):
        require_foreign_keys(connection)
    (script,) = restoring_script("postgresql", [{"sql": "DELETE FROM pg_class WHERE oid = 0", "check": None}])
    with psycopg.connect(shop.url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(script.encode())


async def test_the_doctor_names_the_setting_and_the_role(shop: Shop) -> None:
    for off in (False, True):
        if off:
            shop.switch_off()
        engine = open_command_engine(SqlConnection.model_validate({"name": "shop", "url": shop.url}))
        results = await check_foreign_key_setting("shop", engine)
        await engine.dispose()
        assert [(result.ok, result.message.startswith(f"{OFF}{shop.role}")) for result in results] == (
            [(False, True)] if off else []
        )
