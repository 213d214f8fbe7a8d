"""`sql` with `two_phase` in a saga: the effect is invisible until the commit point, then committed, or rolled back."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities.guard.schema import create_tables
from saga_spark.reconcile.findings import repair_command
from saga_workers.reconcile.prepared_transactions import find_unowned
from saga_workers.stuck.database_traces import DatabaseTraces
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.prepared import stuck_prepared, with_stuck_prepared
from saga_workers.views.saga_list import SagaFilter
from saga_workers.views.saga_view import read_view
from sagas import Rejected
from sagas.project import Project
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, gate, row, run_saga, wait_for_event

SAGA = """
    saga: transfer
    defaults: {retry: {max_attempts: 3, initial_interval: 20ms, max_interval: 50ms}}
    steps:
      - id: debit
        for_each: "${{ input.skus }}"
        uses: sql
        with:
          connection: bank
          run: "update two_phase_goods set units = units - 1 where sku = :sku and units > 0 returning units"
          params: {sku: "${{ item }}"}
          expect_rows: 1
          rejected: sold out
          emit: [{topic: taken, key: "${{ item }}", value: {sku: "${{ item }}"}}]
          two_phase: true
      - {id: credit, uses: book, compensate: unbook}
    output: "${{ steps.debit.results.map(r, r[0].units) }}"
"""


@pytest_asyncio.fixture
async def bank(env: Environment, postgres_server: DatabaseServer) -> AsyncIterator[AsyncEngine]:
    """A participant database on PostgreSQL with 5 units each of two products of this test's own."""
    url = postgres_server.url()
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    await create_tables(engine)
    async with engine.connect() as connection:
        await connection.execute(
            text("create table if not exists two_phase_goods (sku varchar(60) primary key, units int)")
        )
    env.connections["bank"] = SqlConnection(name="bank", root=env.folder, url_setting=url)
    yield engine
    await engine.dispose()


async def products(bank: AsyncEngine) -> list[str]:
    skus = [str(uuid.uuid4()), str(uuid.uuid4())]
    async with bank.connect() as connection:
        for sku in skus:
            await connection.execute(text("insert into two_phase_goods values (:sku, 5)"), {"sku": sku})
    return skus


async def query(bank: AsyncEngine, statement: str, **values: Any) -> list[Any]:
    async with bank.connect() as connection:
        return list((await connection.execute(text(statement), values)).scalars())


async def units(bank: AsyncEngine, skus: list[str]) -> list[int]:
    return [(await query(bank, "select units from two_phase_goods where sku = :sku", sku=sku))[0] for sku in skus]


async def prepared(bank: AsyncEngine, saga_id: str) -> list[str]:
    return await query(bank, "select gid from pg_prepared_xacts where gid like :saga order by gid", saga=f"{saga_id}/%")


async def test_the_effect_is_visible_from_the_commit_point_on(env: Environment, bank: AsyncEngine) -> None:
    skus = await products(bank)
    move, begun, go = gate()
    env.plan["do credit"] = [move]
    async with env.serving(SAGA) as client:
        id = await begin(client, "transfer", {"skus": skus})
        await wait_for_event(begun)
        assert [gid.rpartition("~")[0] for gid in await prepared(bank, id)] == [f"{id}/debit#0", f"{id}/debit#1"]
        assert await units(bank, skus) == [5, 5]
        await _check_what_operators_see(env, client, id)
        go.set()
        story = await finished(client, id)
    assert (story["state"], story["output"], story["can_undo"]) == ("COMPLETED", [4, 4], False)
    assert (row(story, "debit#0")["state"], row(story, "debit#0")["guarantee"]) == ("CONFIRMED", "two-phase")
    assert await units(bank, skus) == [4, 4]
    assert await prepared(bank, id) == []
    assert await query(bank, "select count(*) from saga_outbox where saga_id = :id and status = 'NEW'", id=id) == [2]


async def _check_what_operators_see(env: Environment, client: Any, id: str) -> None:
    """A prepared transaction is stuck after its time; one of an open saga is owned."""
    assert env.project is not None
    settings = env.project.settings
    assert await stuck_prepared(env.project) == {}
    assert await find_unowned(client.locator, settings, id, {}) == []
    impatient = settings.sql_connection("bank").model_copy(update={"prepared_warn_after": -1.0})
    settings = settings.model_copy(update={"connections": {**settings.connections, "bank": impatient}})
    reasons = (await stuck_prepared(Project(settings, env.project.actions)))[id]
    assert [reason.partition(" for ")[0] for reason in reasons] == [
        "debit#0 has a prepared transaction on bank: prepared",
        "debit#1 has a prepared transaction on bank: prepared",
    ]
    assert "two_phase_goods (RowExclusiveLock)" in reasons[0]
    view = await with_stuck_prepared(settings, await read_view(client.locator, id))
    assert len(view.stuck or ()) == len(reasons)

    async def listed() -> list[Any]:  # Temporal's visibility store lags
        stuck = list_stuck(
            client.locator, SagaFilter(saga="transfer"), limit=1000, databases=DatabaseTraces(prepared={id: reasons})
        )
        return [saga.stuck async for saga in stuck if saga.id == id]

    assert await until(listed) == [tuple(reasons)]


async def test_a_prepared_transaction_of_nobody_is_reported(env: Environment, bank: AsyncEngine) -> None:
    async with env.serving(SAGA) as client, bank.connect() as connection:
        assert env.project is not None
        gid = f"somebody's {uuid.uuid4()}"
        literal = gid.replace("'", "''")
        await connection.exec_driver_sql("BEGIN")
        await connection.exec_driver_sql(f"INSERT INTO two_phase_goods VALUES ('{uuid.uuid4()}', 1)")
        await connection.exec_driver_sql(f"PREPARE TRANSACTION '{literal}'")
        findings = await find_unowned(client.locator, env.project.settings, None, {})
        [mine] = [finding for finding in findings if (finding.row or {})["id"] == gid]
        assert (mine.kind, repair_command(mine, {})) == ("prepared_unowned", f"bank: ROLLBACK PREPARED '{literal}';")
        await connection.exec_driver_sql(mine.details["rollback"])
        assert await find_unowned(client.locator, env.project.settings, None, {}) == []


async def test_a_failure_before_the_commit_point_rolls_back(env: Environment, bank: AsyncEngine) -> None:
    skus = await products(bank)
    env.plan["do credit"] = [Rejected("no such account")]
    async with env.serving(SAGA) as client:
        story = await run_saga(client, "transfer", {"skus": skus})
    assert story["state"] == "COMPENSATED"
    assert row(story, "debit#0")["state"] == "COMPENSATED"
    assert await units(bank, skus) == [5, 5]
    assert await prepared(bank, story["id"]) == []


async def test_a_rejection_rolls_back_what_the_items_before_it_prepared(env: Environment, bank: AsyncEngine) -> None:
    skus = [*await products(bank), "no such product"]
    async with env.serving(SAGA) as client:
        story = await run_saga(client, "transfer", {"skus": skus})
    assert (story["state"], story["reason"]["message"]) == ("COMPENSATED", "sold out")
    assert await units(bank, skus[:2]) == [5, 5]
    assert await prepared(bank, story["id"]) == []


async def test_a_transaction_that_is_lost_parks_the_saga(env: Environment, bank: AsyncEngine) -> None:
    skus = await products(bank)
    move, begun, go = gate()
    env.plan["do credit"] = [move]
    async with env.serving(SAGA) as client:
        id = await begin(client, "transfer", {"skus": skus[:1]})
        await wait_for_event(begun)
        async with bank.connect() as connection:
            [gid] = await prepared(bank, id)
            await connection.exec_driver_sql(f"ROLLBACK PREPARED '{gid}'")
        go.set()
        story = await finished(client, id)
    assert story["state"] == "PARKED"
    assert "rolled back outside the saga" in story["parked"][0]["why"]
