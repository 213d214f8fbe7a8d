"""A nested saga past its commit point, or at its pivot, when its parent turns round (rule 14), on a real server."""

from __future__ import annotations

import asyncio

from saga_workers.client import Client
from sagas import Rejected, Step
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, gate, resolve, wait_for_event

PARALLEL = """
    saga: parent
    input: {type: object, properties: {name: {enum: [child], default: child}}}
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: child, needs: [a], uses: saga, with: {name: "${{ lower(input.name) }}"}}
      - {id: beside, needs: [a], uses: work, effect: none}
"""
CONFIRMING = """
    saga: child
    steps:
      - {id: x, uses: book, confirm: fix, compensate: {uses: unwork, confirmed: unbook}}
"""
WITH_PIVOT = """
    saga: child
    steps:
      - {id: x, uses: book, compensate: unbook}
      - {id: p, uses: book, pivot: true}
      - {id: y, uses: book}
"""


def reject_sibling(env: Environment, child_does: str) -> asyncio.Event:
    """The sibling is rejected while the child runs ``child_does``; set the event to let the child continue."""
    move, begun, go = gate()

    async def refuse(_: object) -> None:
        await wait_for_event(begun)
        raise Rejected("no")

    env.plan |= {child_does: [move], "do beside": [refuse]}
    return go


async def is_backward(client: Client, saga: str) -> None:
    await until(lambda: _phase(client, saga, "backward"))


async def test_a_child_past_its_commit_point_is_awaited_and_then_undone(env: Environment) -> None:
    go = reject_sibling(env, "confirm x")
    async with env.serving(PARALLEL, CONFIRMING) as client:
        saga = await begin(client, "parent")
        await is_backward(client, saga)
        child = await client.show(f"{saga}/child")
        assert (child["state"], child["cancel_requested"]) == ("COMMITTED", False), "the cancel comes too late for it"
        assert not [what for what in env.log() if what.startswith("undo")]
        go.set()
        story = await finished(client, saga)
        child = await client.show(f"{saga}/child")
    assert story["state"] == "COMPENSATED", story["parked"]
    assert (child["state"], child["reason"]["kind"]) == ("COMPENSATED", "undone")
    assert [what for what in env.log() if what.endswith((" a", " x"))] == [
        *("do a", "do x", "confirm x", "undo x", "undo a")
    ]
    assert await env.effects() == [], "`compensate.confirmed` undid the confirm as well"


async def test_a_child_pivot_that_completes_during_parent_rollback_parks_the_parent(env: Environment) -> None:
    go = reject_sibling(env, "do p")
    async with env.serving(PARALLEL, WITH_PIVOT) as client:
        saga = await begin(client, "parent")
        await is_backward(client, saga)
        assert (await client.show(f"{saga}/child"))["state"] == "RUNNING", "only its pivot decides"
        go.set()
        story = await finished(client, saga)
        assert (story["state"], story["phase"]) == ("PARKED", "backward")
        [parked] = story["parked"]
        assert (parked["step"], parked["op"]) == ("child", "undo")
        assert "the nested saga refuses to be undone" in parked["why"]
        assert "its pivot p is done" in parked["why"]
        assert (await client.show(f"{saga}/child"))["state"] == "COMPLETED"
        assert await env.effects() == ["a", "p", "x", "y"], "and nothing above it is undone"
        story = await resolve(client, saga, "child", "skip")
    assert (story["state"], [left_effect["step"] for left_effect in story["residue"]]) == ("RESIDUE", ["child"])
    assert await env.effects() == ["p", "x", "y"]


async def test_a_child_pivot_that_fails_during_parent_rollback_compensates(env: Environment) -> None:
    go = reject_sibling(env, "do p")
    [stand] = env.plan["do p"]

    async def stand_and_fail(step: Step) -> None:
        await stand(step)
        raise ValueError("broken")

    env.plan["do p"] = [stand_and_fail]
    async with env.serving(PARALLEL, WITH_PIVOT) as client:
        saga = await begin(client, "parent")
        await is_backward(client, saga)
        go.set()
        story = await finished(client, saga)
        child = await client.show(f"{saga}/child")
    assert story["state"] == "COMPENSATED", story["parked"]
    assert (child["state"], child["reason"]["kind"]) == ("COMPENSATED", "parent")
    assert env.log().count("do p") == 1, "a guarded pivot starts no new attempt once the way back is asked for"
    assert await env.effects() == []


async def test_the_parents_compensation_undoes_a_child_past_its_pivot(env: Environment) -> None:
    go = reject_sibling(env, "do y")
    parent = PARALLEL.replace(
        '"${{ lower(input.name) }}"}}', '"${{ input.name }}"}, compensate: {uses: unwork, with: {}}}'
    )
    async with env.serving(parent, WITH_PIVOT) as client:
        saga = await begin(client, "parent")
        await is_backward(client, saga)
        assert (await client.show(f"{saga}/child"))["state"] == "COMMITTED"
        go.set()
        story = await finished(client, saga)
    assert story["state"] == "COMPENSATED", story["parked"]
    assert env.log()[-2:] == ["undo child", "undo a"]
    assert await env.effects() == ["p", "x", "y"], "the author says what that means"


async def _phase(client: Client, saga: str, wanted: str) -> bool:
    return (await client.show(saga))["phase"] == wanted
