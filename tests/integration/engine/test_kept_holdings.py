"""The holdings of a terminated saga, while another one that has its id ends in each way."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark.reconcile.findings import Finding
from saga_workers.reconcile.repair import repair_findings
from saga_workers.views.locks import OpenRequest, list_orphans
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at
from tests.integration.engine.test_deleted_runs import (
    SAGA,
    add_goods,
    bank,  # noqa: F401
    goods,
    holdings,
    resume,
)

HOLDER = """
    saga: holder
    steps:
      - id: grab
        uses: sql
        with:
          connection: bank
          run: "update deleted_runs_goods set units = units - 1 where sku = :sku"
          params: {sku: "${{ input.sku }}"}
          expect_rows: 1
        compensate: auto
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("ends", ["completed", "cancelled"])
@pytest.mark.parametrize("other", ["deletable", "the same row", "another row"])
async def test_another_saga_leaves_what_this_one_holds(
    env: Environment,
    bank: AsyncEngine,  # noqa: F811
    other: str,
    ends: str,
) -> None:
    """The first one has locks, row locks, held events and a prepared transaction; the other one requests some of it."""
    sku, another = await add_goods(bank), await add_goods(bank)
    async with env.serving(SAGA, HOLDER) as client:
        id, settings = await begin(client, "deletable", {"sku": sku, "units": 2}), client.project.settings
        await waits_at(client, id)
        held = await holdings(bank, env, id)
        assert held == {"row locks": 1, "held events": 1, "prepared": 1, "locks": 1}
        name, input = ("deletable", {"sku": sku, "units": 3}) if other == "deletable" else ("holder", {"sku": sku})
        input = {"sku": another} if other == "another row" else input
        await run_changes.take_id(client.temporal, id, name, input, task_queue=settings.temporal.task_queue)
        story = await finished(client, id)
        assert story["state"] == ("COMPLETED" if other == "another row" else "COMPENSATED")
        assert await holdings(bank, env, id) == held

        async def orphans() -> list[OpenRequest]:  # its run closes a moment after its end
            return [orphan for orphan in await list_orphans(client.locator, settings) if orphan.owner == id]

        [orphan] = await until(orphans)
        left = Finding("lock_left", id, details={"holder": orphan.holder}).to_json()
        [repaired] = await repair_findings(client.locator, settings, [left], who="ada")
        assert f"saga resume {id}" in repaired["done"]
        assert await holdings(bank, env, id) == held

        await resume(client, id)
        await waits_at(client, id)
        if ends == "cancelled":
            await client.cancel(id)
            assert (await finished(client, id))["state"] == "COMPENSATED"
            assert await goods(bank, sku) == [(5, 0), (5, 0)]
        else:
            await handle(client, id).signal("go")
            assert (await finished(client, id))["state"] == "COMPLETED"
            assert await goods(bank, sku) == [(3, 0), (5, 1)]
        assert await goods(bank, another) == [(4 if other == "another row" else 5, 0), (5, 0)]

        async def is_free() -> bool:  # its locks are released a moment after its end
            return not any((await holdings(bank, env, id)).values())

        await until(is_free)
