"""A run that a reset has made is closed before it has looked up what the saga had done since."""

from __future__ import annotations

import pytest
from temporalio.api.enums.v1 import EventType

from saga_workers.stuck.continuation import continue_saga
from sagas.errors import RefusedError
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
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


async def test_a_step_made_before_a_reset_is_undone(env: Environment) -> None:
    """No guard knows the step, and the run of the reset begins before it: undone from its state, it would stay."""
    async with env.serving(LINE) as client:
        id = await begin(client, "line")

        async def waits() -> bool:
            return any(row["id"] == "go" and row["state"] == "RUNNING" for row in (await client.show(id))["steps"])

        await until(waits)
    tasks = [
        event.event_id async for event in handle(client, id).fetch_history_events() if event.event_type == COMPLETED
    ]
    await reset_run(client.temporal, id, tasks[1])  # which has begun b
    await handle(client, id).terminate("before it has looked back")
    async with env.again() as client:
        with pytest.raises(RefusedError, match="closed before it had looked up what the saga had done"):
            await continue_saga(client.locator, id, "anna")
        assert not {"undo a", "undo b"} & set(env.log())
        await reset_run(client.temporal, id, tasks[0])  # as the refusal says
        await until(waits)
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        assert {"undo a", "undo b"} <= set(env.log())
