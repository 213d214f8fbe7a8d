"""A deleted saga is started again after the guard of one of its databases has deleted the rows of such old sagas."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import WorkflowFailureError

from saga_workers.client import Client
from saga_workers.interventions import cancel
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_view import read_view_with_stuck
from sagas.errors import RefusedError, UsageError
from sagas.protocol.payloads import UNDO_SUFFIX
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run, reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at
from tests.integration.engine.test_deleted_runs import add_goods, goods
from tests.integration.engine.test_deleted_runs import bank as bank

SAGA = """
    saga: purged
    steps:
      - {id: note, uses: book, compensate: unbook}
      - id: take
        needs: NEEDS
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
      - {id: go, needs: [note, take], uses: wait, with: {signal: go}}
"""
TOGETHER, IN_TURN = SAGA.replace("NEEDS", "[]"), SAGA.replace("NEEDS", "[note]")


async def purge(engine: AsyncEngine, id: str) -> None:
    """Delete the rows of the saga from a guard, as the upkeep does when it takes an old one for finished."""
    async with engine.begin() as connection:
        await connection.execute(text("update saga_watermark set watermark = :now"), {"now": time.time()})
        await connection.execute(text("delete from saga_guard where saga_id = :id"), {"id": id})


async def resume(client: Client, id: str, **options: Any) -> None:
    await start_again(client, await client.locator.locate(id), who="anna", reason="lost", **options)


async def end(client: Client, id: str, state: str) -> None:
    await waits_at(client, id)
    await (handle(client, id).signal("go") if state == "COMPLETED" else client.cancel(id))
    assert (await finished(client, id))["state"] == state


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("state", ["COMPLETED", "COMPENSATED"])
async def test_a_step_without_a_row_is_not_made_again(env: Environment, bank: AsyncEngine, state: str) -> None:
    sku = await add_goods(bank)
    async with env.serving(TOGETHER) as client:
        id = await begin(client, "purged", {"sku": sku})
        await waits_at(client, id)
        await delete_run(client.temporal, id)
        await purge(bank, id)
        with pytest.raises(RefusedError, match=r"nobody knows which of its steps there have happened.*take") as refused:
            await resume(client, id, not_ended=True)
        assert refused.value.help == f"then saga resume {id} --undone take --not-ended"
        assert await goods(bank, sku) == [(4, 0), (5, 0)]
        async with bank.begin() as connection:  # what the refusal asks for
            await connection.execute(text("update deleted_runs_goods set units = 5 where sku = :sku"), {"sku": sku})
        await resume(client, id, undone=["take"], not_ended=True)
        await end(client, id, state)
    assert await goods(bank, sku) == [(4 if state == "COMPLETED" else 5, 0), (5, 0)]
    assert await env.effects() == (["note"] if state == "COMPLETED" else [])


async def test_definition_and_input_are_asked_for_if_only_a_reference_is_left(
    env: Environment, bank: AsyncEngine
) -> None:
    sku = await add_goods(bank)
    async with env.serving(IN_TURN) as client:
        id, definition = await begin(client, "purged", {"sku": sku}), client.project.definition("purged")
        await waits_at(client, id)
        await delete_run(client.temporal, id)
        await purge(env.engine, id)
        with pytest.raises(RefusedError, match=r"no database has what .* was started with any more") as refused:
            await resume(client, id)
        assert refused.value.help is not None
        assert "--definition FILE --input @FILE" in refused.value.help.replace("'", "")
        with pytest.raises(UsageError, match="with another input"):
            await resume(client, id, definition=definition, input={"sku": "other"})
        given = {"definition": definition, "input": {"sku": sku}}
        with pytest.raises(RefusedError, match=r"nobody knows which of its steps there have happened.*note"):
            await resume(client, id, **given)
        async with env.engine.begin() as connection:
            await connection.execute(text("delete from effects"))
        await resume(client, id, **given, undone=["note"])
        await end(client, id, "COMPLETED")
    assert await goods(bank, sku) == [(4, 0), (5, 0)]
    assert await env.effects() == ["note"]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_reset_of_a_completed_saga_is_refused(env: Environment, bank: AsyncEngine, resumed: bool) -> None:
    sku = await add_goods(bank)
    async with env.serving(TOGETHER) as client:
        id = await begin(client, "purged", {"sku": sku})
        if resumed:
            await waits_at(client, id)
            await delete_run(client.temporal, id)
            await resume(client, id, not_ended=True)
        await end(client, id, "COMPLETED")
        completed = (await handle(client, id).describe()).run_id
        await purge(bank, id)
        await purge(env.engine, id)
        made = await reset_run(client.temporal, id)
        with pytest.raises(WorkflowFailureError) as failed:
            await client.temporal.get_workflow_handle(id, run_id=made).result()
        assert "the run was reset after the saga had ended COMPLETED, and the guard of" in str(failed.value.cause)
        view = await read_view_with_stuck(client.locator, id)
        location = await client.locator.locate(id)
        assert (view.state, view.stuck or ()) == ("COMPLETED", ())
        assert location.run is not None
        assert location.run.run.run_id == completed
    assert await goods(bank, sku) == [(4, 0), (5, 0)]
    assert await env.effects() == ["note"]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("which", ["saga", "undo"])
async def test_a_reset_of_an_undone_saga_is_refused(env: Environment, bank: AsyncEngine, which: str) -> None:
    sku = await add_goods(bank)
    async with env.serving(TOGETHER) as client:
        id = await begin(client, "purged", {"sku": sku})
        await end(client, id, "COMPLETED")
        await client.undo(id, reason="a test", who="anna")
        await finished(client, id)
        await purge(bank, id)
        await purge(env.engine, id)
        reset = id if which == "saga" else id + UNDO_SUFFIX
        made = await reset_run(client.temporal, reset)
        with pytest.raises(WorkflowFailureError) as failed:
            await client.temporal.get_workflow_handle(reset, run_id=made).result()
        assert "the run was reset after the saga had ended COMPENSATED, and the guard of" in str(failed.value.cause)
        view = await read_view_with_stuck(client.locator, id)
        assert (view.state, view.stuck or ()) == ("COMPENSATED", ())
    assert await goods(bank, sku) == [(5, 0), (5, 0)]
    assert await env.effects() == []


@pytest.mark.slow
async def test_a_reset_of_a_saga_that_has_not_ended_waits(env: Environment, bank: AsyncEngine) -> None:
    sku = await add_goods(bank)
    async with env.serving(TOGETHER) as client:
        id = await begin(client, "purged", {"sku": sku})
        await waits_at(client, id)
        await handle(client, id).terminate()
        await purge(bank, id)
        await purge(env.engine, id)
        await reset_run(client.temporal, id)

        async def stuck() -> str:
            view = await read_view_with_stuck(client.locator, id)
            return " ".join(view.stuck or ())

        assert "nobody knows which of its steps there have happened" in await until(stuck)
        cancelled = await cancel(client.locator, id)
        assert "the run was reset, and does nothing until it knows what the saga had done before" in cancelled.note
        assert await goods(bank, sku) == [(4, 0), (5, 0)]
        await handle(client, id).terminate("as the reason says")
    assert await goods(bank, sku) == [(4, 0), (5, 0)]


async def test_a_terminated_reset_that_did_nothing_leaves_a_saga_completed(env: Environment, bank: AsyncEngine) -> None:
    sku = await add_goods(bank)
    async with env.serving(TOGETHER) as client:
        id = await begin(client, "purged", {"sku": sku})
        await end(client, id, "COMPLETED")
    made = await reset_run(client.temporal, id)
    await client.temporal.get_workflow_handle(id, run_id=made).terminate()
    assert (await client.view(id)).state == "COMPLETED"
