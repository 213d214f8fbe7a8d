"""An activity that is completed with several values, or with none: no worker can continue the run."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedByIdRequest

from saga_workers.client import Client
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.temporal.machine_query import answers_no_query
from saga_workers.views.saga_list import SagaFilter
from sagas import Step
from sagas.errors import RefusedError, SagaError
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle

LINE = """
    saga: line
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: c, uses: work, effect: none}
"""
WHY = "an activity was completed with no value or with several"


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("how", ["reset", "resume"])
@pytest.mark.parametrize("end", ["COMPLETED", "COMPENSATED"])
async def test_a_saga_ends_after_an_answer_of_two_values(env: Environment, how: str, end: str) -> None:
    async with env.serving(LINE) as client:
        id = await begin(client, "line")
        await answer_twice(env, client, id)
        view = await read_view_with_stuck(client.locator, id)
        assert view.incomplete is not None
        assert view.incomplete.startswith(WHY)
        assert view.stuck is not None
        assert [reason.startswith(WHY) for reason in view.stuck] == [True]
        assert f"temporal workflow reset --workflow-id {id} --type LastWorkflowTask" in view.stuck[0]
        await failed_often(client, id)
        with pytest.raises(SagaError, match="its workflow task fails"):
            await client.cancel(id)
        listed = [row async for row in list_stuck(client.locator, SagaFilter(saga="line"), limit=9)]
        assert [row.stuck[0].startswith(WHY) for row in listed if row.id == id and row.stuck] == [True]
        if how == "reset":
            await reset_run(client.temporal, id, await last_completed_task(client, id))
        else:
            await handle(client, id).terminate()
            with pytest.raises(RefusedError, match="its state is not known"):
                await continue_saga(client.locator, id, "anna")
            location = await client.locator.locate(id)
            assert location.run is not None
            assert await answers_no_query(client.temporal, location.run.run)
            await start_again(client, location)

        async def waits() -> bool:
            return any(row["id"] == "go" and row["state"] == "RUNNING" for row in (await client.show(id))["steps"])

        await until(waits, limit=60)
        assert await env.effects() == ["a", "b"]
        if end == "COMPENSATED":
            await client.cancel(id)
        else:
            await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == end
        assert await env.effects() == (["a", "b"] if end == "COMPLETED" else [])


async def answer_twice(env: Environment, client: Client, id: str) -> None:
    """Complete the step b with two values, as any client of the namespace can, while its own attempt goes on."""
    reached, may_end = asyncio.Event(), asyncio.Event()

    async def hold(step: Step) -> dict[str, int]:
        reached.set()
        await may_end.wait()
        return {"value": 1}

    env.plan["do b"] = [hold]
    await asyncio.wait_for(reached.wait(), 30)
    [pending] = (await handle(client, id).describe()).raw_description.pending_activities
    value = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
    await client.temporal.workflow_service.respond_activity_task_completed_by_id(
        RespondActivityTaskCompletedByIdRequest(
            namespace=client.temporal.namespace,
            workflow_id=id,
            activity_id=pending.activity_id,
            result=Payloads(payloads=[value, value]),
        )
    )
    may_end.set()
    await failed_often(client, id, 2)


async def failed_often(client: Client, id: str, times: int = 4) -> None:
    async def failed() -> bool:
        return (await handle(client, id).describe()).raw_description.pending_workflow_task.attempt >= times

    await until(failed, limit=90)


async def last_completed_task(client: Client, id: str) -> int:
    """The event that `--type LastWorkflowTask` of Temporal's command finds."""
    events = [event async for event in handle(client, id).fetch_history_events()]
    return [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")][-1]
