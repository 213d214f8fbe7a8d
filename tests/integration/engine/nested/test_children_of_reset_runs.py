"""A reset makes a run that has started a nested saga, whose end Temporal may have told to another run."""

from __future__ import annotations

import pytest
from temporalio.api.enums.v1 import EventType

from saga_workers.client import Client
from sagas import Rejected
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.nested.families import (
    GO,
    begin_waiting_child,
    book,
    define,
    define_child,
    define_parent,
    has_state,
    nested,
)
from tests.integration.engine.repeated_runs import waits_at

COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
PARENT = define_parent()
CHILD = define_child(book("x"), GO, "{id: y, uses: work, with: {value: 3}, compensate: unwork}")


async def _tasks(client: Client, id: str) -> list[int]:
    return [each.event_id async for each in handle(client, id).fetch_history_events() if each.event_type == COMPLETED]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("ends", ["COMPLETED", "COMPENSATED"])
async def test_the_end_that_another_run_was_told_is_taken(env: Environment, ends: str) -> None:
    env.plan["do y"] = [Rejected("no")] if ends == "COMPENSATED" else []
    async with env.serving(PARENT, CHILD) as client:
        id = await begin_waiting_child(client)
        first, tasks = (await handle(client, id).describe()).run_id, await _tasks(client, id)
        await reset_run(client.temporal, id, tasks[0])
        await handle(client, f"{id}/child").signal("go")
        await has_state(client, f"{id}/child", ends)
        await has_state(client, id, ends)
        await reset_run(client.temporal, id, tasks[-1], run_id=first)
        assert (await finished(client, id))["state"] == ends
    assert env.log().count("do y") == 1
    assert await env.effects() == (["a", "x"] if ends == "COMPLETED" else [])


async def test_a_nested_saga_that_goes_on_is_cancelled(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        id = await begin_waiting_child(client)
        await reset_run(client.temporal, id, (await _tasks(client, id))[-1])
        await waits_at(client, id, "child")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        await has_state(client, f"{id}/child", "COMPENSATED")
    assert await env.effects() == []


async def test_the_end_of_an_undo_is_taken(env: Environment) -> None:
    parent = define("parent", nested("child", "child"), "{id: z, uses: work, compensate: unwork}")
    env.plan["do z"] = [Rejected("no")]
    async with env.serving(parent, define("child", book("x"))) as client:
        id = await begin(client, "parent")
        assert (await finished(client, id))["state"] == "COMPENSATED"
        tasks = await _tasks(client, id)
        first = (await handle(client, id).describe()).run_id
        await reset_run(client.temporal, id, tasks[0])

        async def is_again() -> bool:
            run = await handle(client, id).describe()
            return run.run_id != first and run.close_time is not None

        await until(is_again)
        await reset_run(client.temporal, id, tasks[-2], run_id=first)
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_an_undo_of_a_nested_saga_goes_on_after_its_reset(env: Environment) -> None:
    """A guard tells when the nested saga had begun; the undo does not begin it again."""
    parent = define("parent", nested("child", "child"), "{id: z, uses: work, compensate: unwork}")
    env.plan["do z"] = [Rejected("no")]
    async with env.serving(parent, define("child", book("x"))) as client:
        id = await begin(client, "parent")
        await finished(client, id)
        undo = f"{id}/child~undo"
        await reset_run(client.temporal, undo, (await _tasks(client, undo))[0])
        await until(lambda: _is_closed(client, undo))
        await has_state(client, f"{id}/child", "COMPENSATED")
    assert await env.effects() == []


async def _is_closed(client: Client, id: str) -> bool:
    return (await handle(client, id).describe()).close_time is not None
