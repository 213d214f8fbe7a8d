"""A run that a reset has made is closed before it has looked up what the saga had done since."""

from __future__ import annotations

import pytest
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedByIdRequest

from saga_workers.client import Client
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas.errors import RefusedError
from sagas.protocol.payloads import RESET_ACTIVITY
from tests.helpers import eager_start
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run, reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle

COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
LINE = """
    saga: line
    steps:
      - {id: a, uses: plain, compensate: plain}
      - {id: b, uses: plain, compensate: plain}
      - {id: go, uses: wait, with: {signal: go}}
"""


async def _two_steps(env: Environment) -> tuple[Client, str, list[int]]:
    """Run a saga until it waits behind two steps that no guard knows, and end its worker; a client, the id of the saga,
    and the ends of its workflow tasks.
    """
    async with env.serving(LINE) as client:
        id = await begin(client, "line")
        await until(lambda: _waits(client, id))
        events = handle(client, id).fetch_history_events()
        return client, id, [event.event_id async for event in events if event.event_type == COMPLETED]


async def _waits(client: Client, id: str) -> bool:
    return any(row["id"] == "go" and row["state"] == "RUNNING" for row in (await client.show(id))["steps"])


async def _asks(client: Client, id: str) -> str | None:
    """The id of the activity that looks up what the saga had done."""
    described = await handle(client, id).describe()
    asked = described.raw_description.pending_activities
    return next((each.activity_id for each in asked if each.activity_type.name == RESET_ACTIVITY), None)


async def test_a_step_made_before_a_reset_is_undone(env: Environment) -> None:
    """No guard knows the step, and the run of the reset begins before it: undone from its state, it would stay."""
    client, id, tasks = await _two_steps(env)
    await reset_run(client.temporal, id, tasks[1])  # which has begun b
    await handle(client, id).terminate("before it has looked back")
    async with env.again() as client:
        await _check_refusal(env, client, id, tasks[0])


async def test_an_answer_of_a_stranger_to_a_reset_does_not_count(env: Environment) -> None:
    """Any client can complete an activity by its id, and end the run before it asks again."""
    _, id, tasks = await _two_steps(env)
    async with env.again(no_remote_activities=True) as client:
        await reset_run(client.temporal, id, tasks[1])

        forged = RespondActivityTaskCompletedByIdRequest(
            namespace=client.temporal.namespace,
            workflow_id=id,
            activity_id=await until(lambda: _asks(client, id)),
            result=Payloads(payloads=[eager_start.json_payload({})]),
        )
        await client.temporal.workflow_service.respond_activity_task_completed_by_id(forged)
        await handle(client, id).terminate("before it asks again")
    async with env.again() as client:
        await _check_refusal(env, client, id, tasks[0])


async def _check_refusal(env: Environment, client: Client, id: str, first_task: int) -> None:
    with pytest.raises(RefusedError, match="closed before it had looked up what the saga had done"):
        await continue_saga(client.locator, id, "anna")
    assert not {"undo a", "undo b"} & set(env.log())
    await reset_run(client.temporal, id, first_task)  # as the refusal says
    await until(lambda: _waits(client, id))
    await client.cancel(id)
    assert (await finished(client, id))["state"] == "COMPENSATED"
    assert {"undo a", "undo b"} <= set(env.log())


async def test_a_run_that_has_not_looked_back_is_shown_as_stuck(env: Environment) -> None:
    """The state of the reset run has no step that has begun, and a refused `saga resume` does not end the saga."""
    _, id, tasks = await _two_steps(env)
    async with env.again(no_remote_activities=True) as client:
        await reset_run(client.temporal, id, tasks[0])
        await until(lambda: _asks(client, id))
        await handle(client, id).terminate("before it has looked back")
    async with env.again() as client:
        for _ in range(2):
            told = " ".join((await read_view_with_stuck(client.locator, id)).stuck or ())
            assert "temporal workflow reset" in told
            listed = [view async for view in list_stuck(client.locator, SagaFilter(saga="line"), limit=100)]
            assert id in [view.id for view in listed]
            with pytest.raises(RefusedError, match="closed before it had looked up") as refused:
                await continue_saga(client.locator, id, "anna")
            assert "temporal workflow reset" in (refused.value.help or "")
        await _check_refusal(env, client, id, tasks[0])


GUARDED = """
    saga: guarded
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
"""


async def test_a_resumed_run_that_has_not_looked_back_is_shown_as_stuck(env: Environment) -> None:
    """The state of such a run has no step either: terminated at once, it would hide the effects of the deleted run."""
    async with env.serving(GUARDED) as client:
        id = await begin(client, "guarded")
        await until(lambda: _waits(client, id))
        await delete_run(client.temporal, id)
    async with env.again(no_remote_activities=True) as client:
        await start_again(client, await client.locator.locate(id), not_ended=True)
        await until(lambda: _asks(client, id))
        await handle(client, id).terminate("before it has looked back")
    async with env.again() as client:
        assert "temporal workflow reset" in " ".join((await read_view_with_stuck(client.locator, id)).stuck or ())
        with pytest.raises(RefusedError, match="closed before it had looked up"):
            await continue_saga(client.locator, id, "anna")
        tasks = [
            event.event_id async for event in handle(client, id).fetch_history_events() if event.event_type == COMPLETED
        ]
        await reset_run(client.temporal, id, tasks[-1])
        await until(lambda: _waits(client, id))
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_the_end_of_a_saga_stands_whatever_becomes_of_its_resets(env: Environment) -> None:
    """The runs of the resets have done nothing, and after a purge a further reset finds nothing in the guard."""
    async with env.serving(GUARDED) as client:
        id = await begin(client, "guarded")
        await until(lambda: _waits(client, id))
        await client.cancel(id)
        await finished(client, id)
    async with env.again(no_remote_activities=True) as client:
        for _ in range(2):  # the second reset is one of the first one's run
            await reset_run(client.temporal, id)
            await until(lambda: _asks(client, id))
            await handle(client, id).terminate("before it has looked back")
            view = await read_view_with_stuck(client.locator, id)
            assert (view.state, view.stuck) == ("COMPENSATED", None)
    async with env.again() as client:
        assert id not in [view.id async for view in list_stuck(client.locator, SagaFilter(saga="guarded"), limit=100)]
        assert (await begin(client, "guarded", id=id, again=True)) == id
        await until(lambda: _waits(client, id))
        await handle(client, id).terminate("the second start")
        view = await read_view_with_stuck(client.locator, id)
        assert (view.state, view.generation) == ("TERMINATED", 2)
        assert await continue_saga(client.locator, id, "anna") == "undone; it is COMPENSATED"
    assert await env.effects() == []
