"""The run of a nested saga is deleted, and all its effects are those of the sagas that are nested in it."""

from __future__ import annotations

import uuid

import pytest
from temporalio.client import Client as Temporal

from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.integration.engine.environment import Environment, begin, resolve
from tests.integration.engine.nested.families import (
    GO,
    book,
    define,
    delete_and_resume,
    has_state,
    nested,
)
from tests.integration.engine.repeated_runs import waits_at

TOP = define("top", book("a"), nested("sub", "mid"), GO)
MID = define("mid", nested("inner", "child"))
WAITING_MID = define("mid", nested("inner", "child"), GO)
WORK = "{id: x, uses: work, compensate: unwork}"


@pytest.mark.sampled
@pytest.mark.parametrize("step", [book("x"), WORK], ids=["guarded", "unguarded"])
@pytest.mark.parametrize("ends", ["the nested saga runs", "the nested saga has completed"])
async def test_it_is_started_again_to_undo_them(env: Environment, ends: str, step: str) -> None:
    mid, child = (
        (MID, define("child", step, GO)) if ends == "the nested saga runs" else (WAITING_MID, define("child", step))
    )
    async with env.serving(TOP, mid, child) as client:
        id = await begin(client, "top")
        await waits_at(client, f"{id}/sub/inner" if ends == "the nested saga runs" else f"{id}/sub")
        await delete_run(client.temporal, f"{id}/sub")
        await has_state(client, id, "PARKED")
        story = await resolve(client, id, "sub", "compensate")
        assert (story["state"], (await client.show(f"{id}/sub/inner"))["state"]) == ("COMPENSATED", "COMPENSATED")
    assert (await env.effects(), env.log()[-2:]) == ([], ["undo x", "undo a"])


async def test_a_resumed_saga_that_has_not_come_to_them_parks_at_its_undo(env: Environment) -> None:
    top = define("top", book("a"), "{id: first, uses: wait, with: {signal: first}}", nested("sub", "mid"))
    async with env.serving(top, WAITING_MID, define("child", book("x"))) as client:
        id = await begin(client, "top")
        await waits_at(client, id, "first")
        await client.temporal.get_workflow_handle(id).signal("first")
        await waits_at(client, f"{id}/sub")
        await delete_run(client.temporal, f"{id}/sub")
        await delete_run(client.temporal, f"{id}/sub/inner")
        await delete_and_resume(client, id)
        await waits_at(client, id, "first")
        assert await client.cancel(id) == "accepted"
        story = await finished(client, id)
        assert (story["state"], story["parked"][0]["step"]) == ("PARKED", "sub")
        assert "whose run was deleted, and no guard knows which saga it is" in story["parked"][0]["why"]
    assert await env.effects() == ["a", "x"]


async def test_the_undo_parks_while_somebody_else_has_the_id(env: Environment) -> None:
    async with env.serving(TOP, MID, define("child", book("x"), GO)) as client:
        id = await begin(client, "top")
        await waits_at(client, f"{id}/sub/inner")
        await delete_run(client.temporal, f"{id}/sub")
        await has_state(client, id, "PARKED")
        plain, queue = await Temporal.connect(env.address), f"stranger-{uuid.uuid4()}"
        run = await plain.start_workflow("billing", id=f"{id}/sub", task_queue=queue)
        story = await resolve(client, id, "sub", "compensate")
        [parked] = story["parked"]
        assert (story["state"], parked["op"], await env.effects()) == ("PARKED", "undo", ["a", "x"])
        assert f"a run of billing on the task queue {queue}" in parked["why"]
        assert f"x on shop of {id}/sub/inner" in parked["why"]
        await run.terminate("its end")
        story = await resolve(client, id, "sub", "retry")
        assert (story["state"], (await client.show(f"{id}/sub/inner"))["state"]) == ("COMPENSATED", "COMPENSATED")
    assert await env.effects() == []
