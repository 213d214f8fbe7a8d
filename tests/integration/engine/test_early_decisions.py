"""A decision that comes before the run which `saga resume` has started has begun, on a real server."""

from __future__ import annotations

import asyncio

import pytest

from saga_workers.client import Client
from saga_workers.undo_start import ClosedRun, start_undo
from sagas import Rejected
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, begin, handle, row

STUCK = """
    saga: stuck
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: work, effect: none}
"""


@pytest.mark.slow
async def test_a_decision_before_the_begin_of_a_run_is_carried_out(env: Environment) -> None:
    env.plan |= {"do b": [Rejected("no")], "undo a": [Rejected("closed"), None]}
    async with env.serving(STUCK) as client:
        id = await begin(client, "stuck")
        assert (await finished(client, id))["state"] == "PARKED"
        await handle(client, id).terminate()
    assert env.project is not None
    async with await Client.connect(env.project) as client:
        queue = env.project.settings.temporal.task_queue
        described = await handle(client, id).describe()
        undoes = ClosedRun(described.run_id or "", "terminated")
        undo = await start_undo(client.locator, id, "stuck", queue, reason="lost", who="ada", undoes=undoes)
        decision = {"step": "a", "decision": "retry", "reason": "open again", "who": "ada"}
        deciding = asyncio.create_task(client.temporal.get_workflow_handle(undo).execute_update("resolve", decision))
        async with env.again() as client:
            answer = await deciding
            assert row(answer, "a")["state"] != "PARKED"
            assert (await finished(client, id))["state"] == "COMPENSATED"
    assert env.log().count("undo a") == 2
