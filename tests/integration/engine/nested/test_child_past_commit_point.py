"""A nested saga past its commit point, or at its pivot, when its parent turns round (rule 14), on a real server."""

from __future__ import annotations

import asyncio

from saga_workers.client import Client
from sagas import Rejected, Step
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import World, begin, gate, resolve, soon, until

BESIDE = """
    saga: parent
    input: {type: object, properties: {name: {type: string, default: child}}}
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: child, needs: [a], uses: saga, with: {name: "${{ input.name }}"}}
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


def refuse_beside(world: World, child_does: str) -> asyncio.Event:
    """The sibling is refused while the child stands at ``child_does``; set the event to let the child go on."""
    move, begun, go = gate()

    async def refuse(_: object) -> None:
        await soon(begun)
        raise Rejected("no")

    world.plan |= {child_does: [move], "do beside": [refuse]}
    return go


async def is_backward(client: Client, saga: str) -> None:
    await until(lambda: _phase(client, saga, "backward"))


async def test_a_child_past_its_commit_point_is_awaited_and_then_undone(world: World) -> None:
    go = refuse_beside(world, "confirm x")
    async with world.serving(BESIDE, CONFIRMING) as client:
        saga = await begin(client, "parent")
        await is_backward(client, saga)
        child = await client.show(f"{saga}/child")
        assert (child["state"], child["cancel_requested"]) == ("COMMITTED", False), "the cancel comes too late for it"
        assert not [what for what in world.log() if what.startswith("undo")]
        go.set()
        story = await finished(client, saga)
        child = await client.show(f"{saga}/child")
    assert story["state"] == "COMPENSATED", story["parked"]
    assert (child["state"], child["reason"]["kind"]) == ("COMPENSATED", "undone")
    assert [what for what in world.log() if what.endswith((" a", " x"))] == [
        *("do a", "do x", "confirm x", "undo x", "undo a")
    ]
    assert await world.effects() == [], "`compensate.confirmed` undid the confirm as well"


async def test_a_child_whose_pivot_is_done_while_its_parent_turns_parks_it(world: World) -> None:
    go = refuse_beside(world, "do p")
    async with world.serving(BESIDE, WITH_PIVOT) as client:
        saga = await begin(client, "parent")
        await is_backward(client, saga)
        assert (await client.show(f"{saga}/child"))["state"] == "RUNNING", "only its pivot decides"
        go.set()
        story = await finished(client, saga)
        assert (story["state"], story["phase"]) == ("PARKED", "backward")
        assert [(one["step"], one["op"], one["why"]) for one in story["parked"]] == [
            ("child", "undo", "the nested saga refuses to be undone")
        ]
        assert (await client.show(f"{saga}/child"))["state"] == "COMPLETED"
        assert await world.effects() == ["a", "p", "x", "y"], "and nothing above it is undone"
        story = await resolve(client, saga, "child", "skip")
    assert (story["state"], [one["step"] for one in story["residue"]]) == ("RESIDUE", ["child"])
    assert await world.effects() == ["p", "x", "y"]


async def test_a_child_whose_pivot_fails_while_its_parent_turns_goes_backward_with_it(world: World) -> None:
    go = refuse_beside(world, "do p")
    [stand] = world.plan["do p"]

    async def stand_and_fail(step: Step) -> None:
        await stand(step)
        raise ValueError("broken")

    world.plan["do p"] = [stand_and_fail]
    async with world.serving(BESIDE, WITH_PIVOT) as client:
        saga = await begin(client, "parent")
        await is_backward(client, saga)
        go.set()
        story = await finished(client, saga)
        child = await client.show(f"{saga}/child")
    assert story["state"] == "COMPENSATED", story["parked"]
    assert (child["state"], child["reason"]["kind"]) == ("COMPENSATED", "parent")
    assert world.log().count("do p") == 1, "a guarded pivot starts no new attempt once the way back is asked for"
    assert await world.effects() == []


async def test_the_parents_compensation_undoes_a_child_past_its_pivot(world: World) -> None:
    go = refuse_beside(world, "do y")
    parent = BESIDE.replace('"${{ input.name }}"}}', '"${{ input.name }}"}, compensate: {uses: unwork, with: {}}}')
    async with world.serving(parent, WITH_PIVOT) as client:
        saga = await begin(client, "parent")
        await is_backward(client, saga)
        assert (await client.show(f"{saga}/child"))["state"] == "COMMITTED"
        go.set()
        story = await finished(client, saga)
    assert story["state"] == "COMPENSATED", story["parked"]
    assert world.log()[-2:] == ["undo child", "undo a"]
    assert await world.effects() == ["p", "x", "y"], "the author says what that means"


async def _phase(client: Client, saga: str, wanted: str) -> bool:
    return (await client.show(saga))["phase"] == wanted
