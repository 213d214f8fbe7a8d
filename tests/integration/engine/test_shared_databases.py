"""Two connections of a project lead to the same database."""

from __future__ import annotations

from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark.reconcile.extracts import ReconciliationScope
from saga_workers.client import Client
from saga_workers.location.purged_evidence import purged_evidence
from saga_workers.location.traces import recorded_effects
from saga_workers.reconcile.reconciliation import reconcile
from saga_workers.stuck.open_sagas import find_lost
from sagas.settings import SqlConnection
from tests.helpers.run_changes import delete_run
from tests.integration.engine.environment import Environment, begin
from tests.integration.engine.repeated_runs import waits_at
from tests.integration.engine.test_deleted_runs import add_goods, goods
from tests.integration.engine.test_deleted_runs import bank as bank
from tests.integration.engine.test_purged_evidence import end

STEP = """
      - id: {id}
        uses: sql
        with:
          connection: {connection}
          run: "update deleted_runs_goods set units = units - 1 where sku = :sku"
          params: {{sku: "${{{{ input.sku }}}}"}}
          expect_rows: 1
        compensate:
          uses: sql
          with:
            connection: {connection}
            run: "update deleted_runs_goods set units = units + 1 where sku = :sku"
            params: {{sku: "${{{{ input.sku }}}}"}}
"""
SAGA = f"""
    saga: shared
    steps:
{STEP.format(id="a", connection="bank")}{STEP.format(id="b", connection="other")}
      - {{id: go, uses: wait, with: {{signal: go}}}}
"""


def add_other_connection(env: Environment) -> None:
    """Another name of the server leads to the same database as `bank`."""
    url = make_url(str(env.connections["bank"].url_setting)).set(host="localhost")
    setting = url.render_as_string(hide_password=False)
    env.connections["other"] = SqlConnection(name="other", root=env.folder, url_setting=setting)


async def findings(client: Client, id: str) -> list[tuple[str, str | None, str | None]]:
    report = await reconcile(client.locator, client.project.settings, ReconciliationScope(saga_id=id))
    return sorted((finding["class"], finding["step"], finding["place"]) for finding in report["findings"])


async def test_their_guard_is_read_once(env: Environment, bank: AsyncEngine) -> None:
    add_other_connection(env)
    sku = await add_goods(bank)
    async with env.serving(SAGA) as client:
        id = await begin(client, "shared", {"sku": sku})
        await end(client, id, "COMPLETED")
        assert await goods(bank, sku) == [(3, 0), (5, 0)]
        assert await findings(client, id) == []
        async with bank.connect() as connection:
            await connection.execute(text("delete from saga_guard where saga_id = :id and step = 'a'"), {"id": id})
        assert await findings(client, id) == [("saga_without_effect", "a", None)]


async def test_each_open_effect_is_named_once(env: Environment, bank: AsyncEngine) -> None:
    add_other_connection(env)
    sku = await add_goods(bank)
    async with env.serving(SAGA) as client:
        id = await begin(client, "shared", {"sku": sku})
        await waits_at(client, id)
        await delete_run(client.temporal, id)
        [lost] = await find_lost(client.locator, client.project.settings, suspects=[id])
        assert lost.holds == ("open effects: a on bank, b on bank",)


async def test_rows_behind_another_connection_are_not_purged(env: Environment, bank: AsyncEngine) -> None:
    """The guard has deleted rows of sagas as old as this one, whose own rows are there."""
    add_other_connection(env)
    sku = await add_goods(bank)
    async with env.serving(SAGA) as client:
        id = await begin(client, "shared", {"sku": sku})
        await waits_at(client, id)
        await delete_run(client.temporal, id)
        effects = await recorded_effects(client.project.settings, id)
        assert [(effect.entry, effect.connection, effect.shared_with) for effect in effects] == [
            ("a", "bank", ("other",)),
            ("b", "bank", ("other",)),
        ]
        assert await purged_evidence(client.project.settings, {"other": ["b"]}, -1.0, effects) is None


async def test_open_effects_without_a_run_are_in_one_place(env: Environment, bank: AsyncEngine) -> None:
    add_other_connection(env)
    sku = await add_goods(bank)
    async with env.serving(SAGA) as client:
        id = await begin(client, "shared", {"sku": sku})
        await waits_at(client, id)
        await delete_run(client.temporal, id)
        rows = await findings(client, id)
        assert [row for row in rows if row[0] == "effect_without_saga"] == [
            ("effect_without_saga", step, "bank") for step in ("a", "b")
        ], rows
