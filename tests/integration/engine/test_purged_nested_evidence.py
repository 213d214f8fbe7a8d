"""A parent starts again after the guards have deleted the rows of its nested sagas, whose runs are deleted, too."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.client import Client
from saga_workers.stuck.stuck_view import read_view_with_stuck
from sagas.errors import RefusedError, UsageError
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run, reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, resolve, send_signed
from tests.integration.engine.repeated_runs import waits_at
from tests.integration.engine.test_deleted_runs import add_goods, goods
from tests.integration.engine.test_deleted_runs import bank as bank
from tests.integration.engine.test_purged_evidence import end, purge, resume

INNER = """
    saga: purged-inner
    steps:
      - id: take
        uses: sql
        with:
          connection: bank
          run: "update deleted_runs_goods set units = units - 1 where sku = :sku"
          params: {sku: "${{ input.sku }}"}
          expect_rows: 1
        compensate:
          uses: sql
          with:
            connection: bank
            run: "update deleted_runs_goods set units = units + 1 where sku = :sku"
            params: {sku: "${{ input.sku }}"}
"""
MIDDLE = """
    saga: purged-middle
    steps:
      - {id: deep, uses: saga, with: {name: purged-inner, input: {sku: "${{ input.sku }}"}}}
"""
OUTER = """
    saga: purged-outer
    steps:
      - {id: note, uses: NOTE, compensate: unNOTE}
      - {id: kid, uses: saga, with: {name: NAME, input: {sku: "${{ input.sku }}"}}}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: last, uses: NOTE, compensate: unNOTE}
"""
UNKNOWN = "nobody knows which of its steps there have happened"


def outer(*, note: str = "book", name: str = "purged-inner") -> str:
    return OUTER.replace("NOTE", note).replace("NAME", name)


async def begin_and_lose(client: Client, env: Environment, bank: AsyncEngine, sku: str, *nested: str) -> str:
    """Begin the outer saga, and lose its run, and the runs and the rows of the nested ones."""
    id = await begin(client, "purged-outer", {"sku": sku})
    await waits_at(client, id)
    for each in (id, *(f"{id}/{path}" for path in nested)):
        await delete_run(client.temporal, each)
    await purge(bank, f"{id}/{nested[-1]}")
    assert await goods(bank, sku) == [(4, 0), (5, 0)]
    return id


async def undo_by_hand(bank: AsyncEngine, sku: str) -> None:
    async with bank.begin() as connection:
        await connection.execute(text("update deleted_runs_goods set units = 5 where sku = :sku"), {"sku": sku})


async def told_why(client: Client, id: str) -> str:
    """Why the nested saga does not go on, once it has been started."""

    async def why() -> str:
        try:
            view = await read_view_with_stuck(client.locator, id)
        except UsageError:  # it is not started yet
            return ""
        return " ".join(view.stuck or ())

    return await until(why)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("state", ["COMPLETED", "COMPENSATED"])
async def test_resume_asks_about_the_steps_of_nested_sagas(env: Environment, bank: AsyncEngine, state: str) -> None:
    sku = await add_goods(bank)
    async with env.serving(outer(name="purged-middle"), MIDDLE, INNER) as client:
        id = await begin_and_lose(client, env, bank, sku, "kid", "kid/deep")
        with pytest.raises(RefusedError, match=rf"{UNKNOWN}.*kid/deep/take, and undo") as refused:
            await resume(client, id)
        assert refused.value.help == f"then saga resume {id} --undone kid"
        await undo_by_hand(bank, sku)
        await resume(client, id, undone=["kid"])
        await end(client, id, state)
    assert await goods(bank, sku) == [(4 if state == "COMPLETED" else 5, 0), (5, 0)]


async def test_a_nested_saga_that_has_a_run_is_not_asked_about(env: Environment, bank: AsyncEngine) -> None:
    sku = await add_goods(bank)
    async with env.serving(outer(), INNER) as client:
        id = await begin(client, "purged-outer", {"sku": sku})
        await waits_at(client, id)
        await delete_run(client.temporal, id)
        await purge(bank, f"{id}/kid")
        await resume(client, id)
        await end(client, id, "COMPLETED")
    assert await goods(bank, sku) == [(4, 0), (5, 0)]


@pytest.mark.slow
async def test_the_items_that_have_runs_are_not_asked_about(env: Environment, bank: AsyncEngine) -> None:
    skus = [await add_goods(bank) for _ in range(2)]
    each = OUTER.replace("NOTE", "book").replace("NAME", "purged-inner")
    each = each.replace("id: kid,", 'id: kid, for_each: "${{ input.skus }}",').replace("input.sku }", "item }")
    async with env.serving(each, INNER) as client:
        id = await begin(client, "purged-outer", {"skus": skus})
        await waits_at(client, id)
        for lost in (id, f"{id}/kid#1"):
            await delete_run(client.temporal, lost)
        for item in (0, 1):
            await purge(bank, f"{id}/kid#{item}")
        await resume(client, id)
        assert UNKNOWN in await told_why(client, f"{id}/kid#1")
    assert [await goods(bank, sku) for sku in skus] == [[(4, 0), (5, 0)]] * 2


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("decision", ["done", "compensate"])
async def test_a_nested_saga_with_a_computed_name_asks_itself(
    env: Environment, bank: AsyncEngine, decision: str
) -> None:
    sku = await add_goods(bank)
    async with env.serving(outer(name="\"${{ 'purged-' + 'inner' }}\""), INNER) as client:
        id = await begin_and_lose(client, env, bank, sku, "kid")
        await resume(client, id)
        why = await told_why(client, f"{id}/kid")
        assert UNKNOWN in why
        assert f"then terminate this run, and decide about it in {id}" in why
        assert await goods(bank, sku) == [(4, 0), (5, 0)]
        await handle(client, f"{id}/kid").terminate("as the reason says")
        await until(lambda: read_parked(client, id))
        more: dict[str, Any] = {}
        if decision == "done":
            more = {"result": {}}
        else:
            await undo_by_hand(bank, sku)
        await decide(client, id, decision, **more)
    assert await goods(bank, sku) == [(4 if decision == "done" else 5, 0), (5, 0)]


async def read_parked(client: Client, id: str) -> bool:
    return bool((await read_view_with_stuck(client.locator, id)).parked)


async def decide(client: Client, id: str, decision: str, **more: Any) -> None:
    await send_signed(client, id, {"step": "kid", "decision": decision, "reason": "seen", "who": "ada", **more})
    if decision == "done":
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
        return
    await until(lambda: read_parked(client, id))  # the run of the nested saga has not begun, so it undoes nothing
    view = await resolve(client, id, "kid", "done", evidence="looked at the database")
    assert view["state"] == "COMPENSATED"


async def test_a_reset_of_the_parent_makes_no_nested_step_again(env: Environment, bank: AsyncEngine) -> None:
    sku = await add_goods(bank)
    async with env.serving(outer(note="work"), INNER) as client:
        id = await begin(client, "purged-outer", {"sku": sku})
        await end(client, id, "COMPLETED")
        await delete_run(client.temporal, f"{id}/kid")
        await purge(bank, f"{id}/kid")
        await reset_run(client.temporal, id)
        assert UNKNOWN in await told_why(client, f"{id}/kid")
        assert await goods(bank, sku) == [(4, 0), (5, 0)]
        for each in (f"{id}/kid", id):
            await handle(client, each).terminate("as the reason says")
    assert await goods(bank, sku) == [(4, 0), (5, 0)]
