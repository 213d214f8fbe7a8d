"""A run is reset that had ended before its saga was started again: it leaves the effects of the later start alone."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowFailureError

from saga_workers.client import Client
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.stuck_view import read_view_with_stuck
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at

SAGA = """
    saga: restarted
    steps:
      - {id: a, uses: ACTION, compensate: UNDO}
      - {id: go, uses: wait, with: {signal: go}}
"""


@pytest.mark.sampled
@pytest.mark.parametrize("action", ["book", "work"])
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
async def test_a_later_start_keeps_what_it_has_done(env: Environment, action: str, state: str) -> None:
    async with env.serving(SAGA.replace("ACTION", action).replace("UNDO", f"un{action}")) as client:
        id = await begin(client, "restarted")
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        first = (await handle(client, id).describe()).run_id
        await begin(client, "restarted", id=id, again=True)
        await waits_at(client, id, "go")
        if state == "COMPLETED":
            await handle(client, id).signal("go")
            await finished(client, id)
        made = await reset_run(client.temporal, id, run_id=first, keeps_signals=False)
        with pytest.raises(WorkflowFailureError) as failed:
            await client.temporal.get_workflow_handle(id, run_id=made).result()
        assert "before the saga was started again" in str(failed.value.cause)
        view = await read_view_with_stuck(client.locator, id)
        assert env.log().count("undo a") == 1
        if state == "COMPLETED":  # the later start has ended, and stays as it is
            assert (view.state, view.generation, view.stuck) == ("COMPLETED", 2, None)
            return
        assert view.state == "TERMINATED"  # by the reset
        assert f"saga resume {id}" in " ".join(view.stuck or ())
        await continue_saga(client.locator, id, "anna")
        assert (await client.view(id)).state == "COMPENSATED"
    assert env.log().count("undo a") == 2
    assert await env.effects() == []


async def test_a_reset_that_was_terminated_hides_no_later_start(env: Environment) -> None:
    """The first start has completed, and was undone: the run of the reset has done nothing, but that of the second."""
    async with env.serving(SAGA.replace("ACTION", "book").replace("UNDO", "unbook")) as client:
        id = await begin(client, "restarted")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await finished(client, id)
        first = (await handle(client, id).describe()).run_id
        await client.undo(id, reason="a test", who="ada")
        await until(lambda: _is_undone(client, id))
        await begin(client, "restarted", id=id, again=True)
        await waits_at(client, id, "go")
    async with env.again(no_remote_activities=True) as client:
        made = await reset_run(client.temporal, id, run_id=first, keeps_signals=False)
        await until(lambda: _has_begun(client, id, made))
        await handle(client, id).terminate("before it has looked back")
    async with env.again() as client:
        view = await read_view_with_stuck(client.locator, id)
        assert (view.state, "temporal workflow reset" in " ".join(view.stuck or ())) == ("TERMINATED", True)


async def _is_undone(client: Client, id: str) -> bool:
    return (await client.view(id)).state == "COMPENSATED"


async def _has_begun(client: Client, id: str, run_id: str) -> bool:
    described = await client.temporal.get_workflow_handle(id, run_id=run_id).describe()
    return bool(described.raw_description.pending_activities)
