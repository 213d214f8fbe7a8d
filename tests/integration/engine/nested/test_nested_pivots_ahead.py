"""A nested saga is the pivot of its parent, and open when the parent is reset to before it and cancelled there: the end
of the nested saga decides; on a real server.
"""

from __future__ import annotations

from typing import Any

import pytest

from saga_workers.client import Client
from sagas import Rejected, Step
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
from tests.integration.engine.environment import Environment, begin, gate, handle, row, wait_for_event
from tests.integration.engine.nested.families import book, define, nested
from tests.integration.engine.repeated_runs import waits_at

PARENT = define(
    "parent", book("a"), "{id: first, uses: wait, with: {signal: first}}", nested("child", "child", "pivot: true")
)
CHILD = define(
    "child",
    book("x"),
    "{id: go, uses: wait, with: {signal: go}}",
    book("p", "pivot: true"),
    "{id: late, uses: wait, with: {signal: late}}",
    book("y", ""),
)


@pytest.fixture
def env(postgres_env: Environment) -> Environment:
    return postgres_env


async def _begun(client: Client) -> str:
    id = await begin(client, "parent")
    await waits_at(client, id, "first")
    await handle(client, id).signal("first")
    await waits_at(client, f"{id}/child")
    return id


async def _reset_and_cancelled(client: Client, id: str) -> None:
    await reset_run(client.temporal, id, keeps_signals=False)
    await waits_at(client, id, "first")
    assert await client.cancel(id) == "recorded"


async def test_one_before_its_pivot_is_rolled_back(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        id = await _begun(client)
        await _reset_and_cancelled(client, id)
        story, child = await finished(client, id), await client.show(f"{id}/child")
    assert (story["state"], child["state"], child["reason"]["kind"]) == ("COMPENSATED", "COMPENSATED", "parent")
    assert (await env.effects(), env.log()[-2:]) == ([], ["undo x", "undo a"])


@pytest.mark.parametrize("succeeds", [True, False])
async def test_one_at_its_pivot_decides_by_its_end(env: Environment, succeeds: bool) -> None:
    move, begun, go = gate()

    async def pivot(step: Step) -> Any:
        result = await move(step)
        if not succeeds:
            raise Rejected("no")
        return result

    env.plan["do p"] = [pivot]
    async with env.serving(PARENT, CHILD) as client:
        id = await _begun(client)
        await handle(client, f"{id}/child").signal("go")
        await wait_for_event(begun)
        await _reset_and_cancelled(client, id)
        assert (await client.show(id))["phase"] == "forward", "it waits for the end of its nested saga"
        go.set()
        if succeeds:
            await handle(client, f"{id}/child").signal("late")
            await handle(client, id).signal("first")
        story, child = await finished(client, id), await client.show(f"{id}/child")
    end = "COMPLETED" if succeeds else "COMPENSATED"
    assert (story["state"], child["state"]) == (end, end)
    assert row(story, "child")["state"] == ("DONE" if succeeds else "NOTHING_TO_UNDO")
    assert await env.effects() == (["a", "p", "x", "y"] if succeeds else [])


async def test_one_past_its_pivot_takes_its_parent_past_it(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        id = await _begun(client)
        await handle(client, f"{id}/child").signal("go")
        await waits_at(client, f"{id}/child", "late")
        await _reset_and_cancelled(client, id)
        await handle(client, f"{id}/child").signal("late")
        await handle(client, id).signal("first")
        story, child = await finished(client, id), await client.show(f"{id}/child")
    assert (story["state"], child["state"], row(story, "child")["state"]) == ("COMPLETED", "COMPLETED", "DONE")
    assert (await env.effects(), env.log().count("do x")) == (["a", "p", "x", "y"], 1)
