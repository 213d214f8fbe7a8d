"""Prepared transactions and other accounts of a database: none counts as an effect, no commit goes unseen."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest_asyncio
from psycopg import sql
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard.two_phase.mysql import recover
from saga_activities.guard.two_phase.prepared import list_prepared
from saga_spark.reconcile.findings import repair_command
from saga_workers.doctor.two_phase_checks import check_two_phase
from saga_workers.reconcile.prepared_transactions import find_committed_outside
from sagas import action
from sagas.errors import Rejected
from sagas.settings.connections import async_url
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import gate, wait_for_event
from tests.integration.guard.conftest import clock, open_guard_database
from tests.integration.guard.two_phase.conftest import TwoPhaseDatabase, open_two_phase

TRANSFER = """
saga: transfer
steps:
  - id: debit
    uses: sql
    with:
      connection: bank
      run: "update prepared_stock set left_over = left_over - 1 where sku = :sku"
      params: {sku: "${{ input.sku }}"}
      two_phase: true
  - {id: credit, uses: credit, effect: none}
"""


@contextlib.contextmanager
def intruder(server: DatabaseServer):
    """A connection of a role without any right but to log in; what it has prepared is rolled back."""
    role = f"intruder_{uuid.uuid4().hex[:12]}"
    address = {"host": "127.0.0.1", "port": server.port, "dbname": server.default_database, "autocommit": True}
    with psycopg.connect(user=server.user, **address) as admin:
        admin.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        with psycopg.connect(user=role, **address) as connection:
            yield connection
        for (gid,) in admin.execute("select gid from pg_prepared_xacts where owner = %s", (role,)).fetchall():
            admin.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def prepare(connection: psycopg.Connection, gid: str) -> None:
    connection.execute("begin")
    connection.execute("select pg_current_xact_id()")
    connection.execute(sql.SQL("prepare transaction {}").format(sql.Literal(gid)))


@pytest_asyncio.fixture
async def shop(postgres_server: DatabaseServer) -> AsyncIterator[TwoPhaseDatabase]:
    opened = await open_guard_database("postgres", postgres_server.url())
    shop = await open_two_phase(opened)
    yield shop
    await shop.end_prepared(commit=False)
    await opened.connections.close()


async def test_a_transaction_under_the_key_of_a_step_is_no_effect(
    shop: TwoPhaseDatabase, postgres_server: DatabaseServer
) -> None:
    with intruder(postgres_server) as connection:
        prepare(connection, str(shop.at))
        assert (await shop.do(shop.refuse)).kind == "rejected", "an attempt that has begun"
        assert (await shop.do()).kind == "done"
        assert (await shop.guard.confirm(shop.at, **clock())).kind == "done"
        assert await shop.stock() == 9


async def test_a_transaction_of_another_role_under_the_same_id_is_no_effect(
    shop: TwoPhaseDatabase, postgres_server: DatabaseServer
) -> None:
    with intruder(postgres_server) as connection:
        with contextlib.suppress(Rejected):
            await shop.do(shop.refuse)
        id = await shop.transaction_id()
        assert id is not None
        prepare(connection, id.postgres)
        assert not await shop.is_prepared()
        [listed] = [
            transaction for transaction in await list_prepared(shop.database.engine) if transaction.id == id.postgres
        ]
        assert (listed.entry_key, listed.is_foreign) == (None, True)
        refused = await shop.do(seconds=3)
        assert refused.failure is not None
        assert "another role has prepared a transaction" in refused.failure.message
        assert (await shop.guard.seal(shop.at, **clock())).marker == "sealed"
        assert not await shop.end_prepared(commit=True)
    assert await shop.stock() == 10


async def test_a_commit_of_another_account_is_found(
    tmp_path: Path, temporal: TemporalServer, mariadb_server: DatabaseServer
) -> None:
    """MariaDB lets every account commit every XA transaction."""
    opened = await open_guard_database("mariadb", mariadb_server.url())
    stock = await open_two_phase(opened)
    account = f"other_{uuid.uuid4().hex[:8]}"
    await opened.rows(f"create user '{account}'@'%'")
    move, begun, go = gate()

    @action("credit")
    async def credit() -> None:
        await move(None)  # pyright: ignore[reportArgumentType]
        raise Rejected("no such account")

    project = make_project(
        tmp_path / "project",
        {"transfer": TRANSFER},
        [credit],
        address=temporal.address,
        connections={"bank": mariadb_server.url()},
    )
    other = create_async_engine(
        async_url(mariadb_server.url().replace(f"{mariadb_server.user}@", f"{account}@").rpartition("/")[0], tmp_path),
        isolation_level="AUTOCOMMIT",
    )
    try:
        async with running_worker(project) as client:
            run = await client.start("transfer", {"sku": stock.sku}, id=f"transfer-{uuid.uuid4()}")
            await wait_for_event(begun)
            async with other.connect() as connection:
                [id] = [id for id in await recover(connection) if id.gtrid.startswith(run.id.encode())]
                await connection.exec_driver_sql(f"XA COMMIT {id.sql}")
            await until(lambda: _is_taken(stock))
            [finding] = await find_committed_outside(client.locator, project.settings, run.id)
            assert (finding.kind, finding.step, finding.state) == ("committed_outside", "debit", "RUNNING")
            go.set()
            view = await finished(client, run.id)
            assert view["state"] == "PARKED", "it must not say that nothing is left"
            [parked] = view["parked"]
            assert (parked["step"], parked["op"]) == ("debit", "undo")
            [finding] = await find_committed_outside(client.locator, project.settings, run.id)
            assert repair_command(finding, {}) == f"saga show {run.id}"
        named = [
            check for check in await check_two_phase("bank", opened.engine, 300.0) if check.check == "accounts of bank"
        ]
        assert [name.ok for name in named] == [None]
        assert "may commit or roll back the prepared transactions" in named[0].message
    finally:
        await other.dispose()
        await opened.rows(f"drop user '{account}'@'%'")
        await opened.connections.close()


async def _is_taken(stock: TwoPhaseDatabase) -> bool:
    return await stock.stock() == 9
