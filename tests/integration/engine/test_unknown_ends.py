"""Sagas of which Temporal has no run, in a project without a ledger: nobody knows whether they had completed."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.client import Client
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.stuck.verdict import OpenSaga
from saga_workers.temporal.temporal_runs import describe_run
from saga_workers.views.saga_list import SagaFilter
from sagas.errors import RefusedError, UsageError
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at

SHIPPED = """
    saga: shipped
    steps:
      - {id: first, uses: book, with: {value: "${{ input.n }}"}, compensate: unbook}
      - {id: call, uses: work, with: {value: "${{ input.n }}"}, compensate: unwork}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: second, uses: book, compensate: unbook}
"""
LATER = """
    saga: later
    steps:
      - {id: other, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
"""
MAY_HAVE_ENDED = "no ledger tells whether it had ended: look at its effects, and if it had not, "


async def completed_and_deleted(client: Client) -> str:
    id = await begin(client, "shipped", {"n": 1})
    await waits_at(client, id)
    await client.signal(id, "go")
    assert (await finished(client, id))["state"] == "COMPLETED"
    await run_changes.delete_run(client.temporal, id)
    return id


async def lost(client: Client, id: str) -> OpenSaga:
    [saga] = await find_lost(client.locator, client.project.settings, suspects=[id])
    return saga


async def check_that_it_is_not_resumed(client: Client, id: str) -> None:
    newest = await describe_run(client.temporal, id)
    with pytest.raises(RefusedError, match=rf"{id} may have ended.* look at its effects \(first on shop") as refused:
        await start_again(client, await client.locator.locate(id))
    assert refused.value.help == f"if it had not, saga resume {id} --not-ended"
    after = await describe_run(client.temporal, id)
    assert (after and after.run.run_id) == (newest and newest.run.run_id)


async def test_a_completed_saga_whose_run_is_deleted_is_not_started_again(env: Environment) -> None:
    async with env.serving(SHIPPED) as client:
        id = await completed_and_deleted(client)
        assert f"{MAY_HAVE_ENDED}start it again with `saga resume {id}`" in (await lost(client, id)).reason
        with pytest.raises(UsageError) as unknown:
            await client.show(id)
        assert "starts it again where its effects are, if it had not ended; then" in (unknown.value.help or "")
        calls = env.log()
        await check_that_it_is_not_resumed(client, id)
        assert env.log() == calls
        await start_again(client, await client.locator.locate(id), not_ended=True)
        await waits_at(client, id)
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert await env.effects() == []


async def test_a_later_saga_is_not_ended_for_one_that_may_have_completed(env: Environment) -> None:
    async with env.serving(SHIPPED, LATER) as client:
        id = await completed_and_deleted(client)
        await begin(client, "later", {}, id=id)
        await waits_at(client, id)
        reason = (await lost(client, id)).reason
        assert f"{MAY_HAVE_ENDED}wait for the end of that run, and then `saga resume {id}`" in reason
        with pytest.raises(RefusedError, match="is open") as held:
            await start_again(client, await client.locator.locate(id))
        assert held.value.help == f"wait for its end; then saga resume {id}, unless shipped had ended"
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
        assert f"{MAY_HAVE_ENDED}continue it with `saga resume {id}`" in (await lost(client, id)).reason
        await check_that_it_is_not_resumed(client, id)
        assert await env.effects() == ["first", "other", "second"]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("age", ["new", "older than the retention"])
async def test_a_run_that_meets_its_effects_is_not_replaced_by_it(env: Environment, age: str) -> None:
    async with env.serving(SHIPPED) as client:
        id = await completed_and_deleted(client)
        if age != "new":
            async with env.engine.begin() as connection:
                older = "update saga_guard set created_at = created_at - 1e7 where saga_id = :id"
                await connection.execute(text(older), {"id": id})
        await begin(client, "shipped", {"n": 2}, id=id)
        story = await finished(client, id)
        assert (story["state"], story["parked"][0]["step"]) == ("PARKED", "first")
        listed = [view async for view in list_stuck(client.locator, SagaFilter(saga="shipped"), limit=100)]
        [reasons] = [view.stuck for view in listed if view.id == id]
        assert f"{MAY_HAVE_ENDED}continue it with `saga resume {id}`" in str(reasons)
        assert f"otherwise start this one with an id of its own, see `saga show {id}`" in str(reasons)
        await check_that_it_is_not_resumed(client, id)


async def test_a_saga_that_was_ended_by_a_later_start_is_resumed(env: Environment) -> None:
    async with env.serving(SHIPPED, LATER.replace("- {id: go, uses: wait, with: {signal: go}}", "")) as client:
        id = await begin(client, "shipped", {"n": 1})
        await waits_at(client, id)
        queue, conflict = client.project.settings.temporal.task_queue, WorkflowIDConflictPolicy.TERMINATE_EXISTING
        await client.temporal.execute_workflow("later", {}, id=id, task_queue=queue, id_conflict_policy=conflict)
        saga = await lost(client, id)
        assert (saga.may_have_ended, saga.command) == (False, f"saga resume {id}")
        await start_again(client, await client.locator.locate(id))
        await waits_at(client, id)
