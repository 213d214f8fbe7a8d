"""A reset repeats the cancel that the run before has received: the run first learns what that had done."""

from __future__ import annotations

from sagas import Rejected
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at

CALLS = """
    saga: calls
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: b, uses: book, compensate: unbook}
      - {id: h, uses: work, compensate: unwork}
      - {id: go2, uses: wait, with: {signal: go2}}
"""


async def test_a_cancel_that_the_reset_repeats_undoes_the_steps_ahead(env: Environment) -> None:
    env.plan["undo h"] = [Rejected("not yet"), None]
    async with env.serving(CALLS) as client:
        id = await begin(client, "calls")
        await waits_at(client, id, "go")
        tasks = [
            event.event_id
            async for event in handle(client, id).fetch_history_events()
            if event.HasField("workflow_task_completed_event_attributes")
        ]
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "PARKED"
        await reset_run(client.temporal, id, tasks[-1])
        story = await finished(client, id)
        assert (story["state"], await env.effects()) == ("COMPENSATED", [])
        assert env.log().count("undo h") == 2
