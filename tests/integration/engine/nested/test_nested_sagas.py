"""Sagas within sagas (guarantees, rule 14), on a real server."""

from __future__ import annotations

from typing import Any

from sagas import Rejected
from sagas.errors import UsageError
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    resolve,
    row,
    run_saga,
    states,
    wait_for_event,
)

PARENT = """
    saga: parent
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: child, uses: saga, with: {name: child, input: {n: 3}}}
      - {id: last, uses: work, with: {value: "${{ steps.child.result }}"}, effect: none}
    output: {child: "${{ steps.child.result }}"}
"""
CHILD = """
    saga: child
    labels: {n: "${{ input.n }}"}
    input: {type: object, properties: {n: {type: integer}}}
    steps:
      - {id: x, uses: book, with: {value: "${{ input.n }}"}, compensate: unbook}
      - {id: y, uses: book, compensate: unbook}
    output: "${{ steps.x.result.value }}"
"""
COMMITTED_THEN_MORE = """
    saga: child
    steps:
      - {id: x, uses: book, pivot: true}
      - {id: y, uses: work, on_failure: park}
"""


async def test_a_completed_child_gives_its_output(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        story = await run_saga(client, "parent")
        assert (story["state"], story["output"]) == ("COMPLETED", {"child": 3})
        child_id = f"{story['id']}/child"
        assert story["children"] == [{"id": child_id, "step": "child", "saga": "child", "state": "COMPLETED"}]
        child = await client.show(child_id)
        assert (child["parent"], child["labels"]) == (story["id"], {"n": "3"})
        attributes = (await handle(client, child_id).describe()).typed_search_attributes
        assert ["n=3"] in [pair.value for pair in attributes], "a child has labels too"
    assert {request.key for request in env.asked} >= {f"{child_id}/x", f"{child_id}/y"}


async def test_a_rejected_and_undone_child_is_a_rejection(env: Environment) -> None:
    env.plan["do y"] = [Rejected("no room")]
    async with env.serving(PARENT, CHILD) as client:
        story = await run_saga(client, "parent")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert (story["reason"]["step"], story["reason"]["message"]) == ("child", "no room")
    assert env.log() == ["do a", "do x", "do y", "undo x", "undo a"]
    assert await env.effects() == []


async def test_rollback_undoes_a_completed_child_through_its_own_undo(env: Environment) -> None:
    env.plan["do last"] = [Rejected("no")]
    async with env.serving(PARENT, CHILD) as client:
        story = await run_saga(client, "parent")
        assert story["state"] == "COMPENSATED", story["parked"]
        assert env.log()[-3:] == ["undo y", "undo x", "undo a"]
        assert await env.effects() == []
        described = await handle(client, f"{story['id']}/child~undo").describe()
        assert (described.workflow_type, described.status.name if described.status else "") == ("child", "COMPLETED")
        child = await client.show(f"{story['id']}/child")
        assert (child["state"], child["reason"]["kind"]) == ("COMPENSATED", "undone")


async def test_a_compensation_of_the_parent_replaces_the_childs_own_undo(env: Environment) -> None:
    parent = PARENT.replace("input: {n: 3}}}", "input: {n: 3}}, compensate: {uses: unwork, with: {value: all}}}")
    env.plan["do last"] = [Rejected("no")]
    async with env.serving(parent, CHILD) as client:
        story = await run_saga(client, "parent")
    assert story["state"] == "COMPENSATED"
    assert env.log()[-2:] == ["undo child", "undo a"]
    assert await env.effects() == ["x", "y"], "the author says how the child is undone"


async def test_a_parent_that_is_cancelled_takes_its_running_child_with_it(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do y"] = [move]
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin(client, "parent")
        await wait_for_event(begun)
        await handle(client, saga).cancel()
        await until(lambda: _cancel_requested(client, f"{saga}/child"))
        go.set()
        story = await finished(client, saga)
        child = await client.show(f"{saga}/child")
        described = await handle(client, f"{saga}/child").describe()
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert (child["state"], child["reason"]["kind"]) == ("COMPENSATED", "parent")
    assert described.status is not None
    assert described.status.name == "FAILED", "the child was asked by signal, not cancelled natively"
    assert env.log()[-3:] == ["undo y", "undo x", "undo a"]
    assert await env.effects() == []


async def test_a_running_child_is_cancelled_and_awaited_when_a_sibling_fails(env: Environment) -> None:
    parent = PARENT.replace("id: child, uses: saga", "id: child, needs: [a], uses: saga").replace(
        "{id: last, uses: work,", "{id: last, needs: [a], uses: work,"
    )
    parent = parent.replace('with: {value: "${{ steps.child.result }}"}, ', "")
    child = CHILD.replace("    output:", "      - {id: z, uses: work, effect: none}\n    output:")
    move, begun, go = gate()

    async def refuse(_: object) -> None:
        await wait_for_event(begun)
        raise Rejected("no")

    env.plan |= {"do last": [refuse], "do z": [move]}
    async with env.serving(parent, child) as client:
        saga = await begin(client, "parent")
        await until(lambda: _cancel_requested(client, f"{saga}/child"))
        go.set()
        story = await finished(client, saga)
    assert story["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_a_terminated_child_parks_the_parent(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do y"] = [move]
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin(client, "parent")
        await wait_for_event(begun)
        await handle(client, f"{saga}/child").terminate("by mistake")
        go.set()
        story = await finished(client, saga)
        assert story["state"] == "PARKED"
        assert "terminated" in story["parked"][0]["why"]
        await handle(client, saga).terminate()


async def test_a_parked_child_leaves_the_parent_running(env: Environment) -> None:
    child = CHILD.replace("id: y, uses: book,", "id: y, uses: book, on_failure: park,")
    env.plan["do y"] = [Rejected("ask somebody"), "allowed"]
    async with env.serving(PARENT, child) as client:
        saga = await begin(client, "parent")
        await until(lambda: _state(client, f"{saga}/child", "PARKED"))
        parent = await client.show(saga)
        assert (parent["state"], states(parent)["child"]) == ("RUNNING", "RUNNING")
        await resolve(client, f"{saga}/child", "y", "retry")
        story = await finished(client, saga)
    assert story["state"] == "COMPLETED"


async def test_residue_of_a_child_is_reported_by_its_parent(env: Environment) -> None:
    env.plan["do y"] = [Rejected("never")]
    parent = PARENT.replace("input: {n: 3}", "input: {}").replace(
        "with: {name: child, input: {}}}", "with: {name: child, input: {}}, pivot: true}"
    )
    parent = parent.replace(", effect: none}", "}").replace('"${{ steps.child.result }}"', "1")
    async with env.serving(parent, COMMITTED_THEN_MORE) as client:
        saga = await begin(client, "parent")
        await until(lambda: _state(client, f"{saga}/child", "PARKED"))
        child = await resolve(client, f"{saga}/child", "y", "skip")
        assert (child["state"], child["phase"]) == ("RESIDUE", "committed")
        story = await finished(client, saga)
        described = await handle(client, f"{saga}/child").describe()
    assert described.status is not None
    assert described.status.name == "COMPLETED"
    assert story["state"] == "RESIDUE"
    assert [(left_effect["step"], left_effect["kind"]) for left_effect in story["residue"]] == [("y", "effect_missing")]
    assert row(story, "child")["state"] == "DONE"


async def test_an_unknown_child_or_one_with_a_bad_input_fails_the_step(env: Environment) -> None:
    async with env.serving(
        PARENT.replace("name: child, input: {n: 3}", 'name: child, input: {n: "${{ saga.name }}"}'), CHILD
    ) as service:
        story = await run_saga(service, "parent")
    assert story["state"] == "COMPENSATED"
    assert "input of child" in story["reason"]["message"]
    assert await env.effects() == []


async def test_an_input_of_a_child_that_is_too_large_fails_the_step(env: Environment) -> None:
    # Each text is one that an expression may make; all of them are more than Temporal takes.
    env.plan["do a"] = [{"text": "x" * 700_000}]
    text = '"${{ steps.a.result.text }}"'
    parent = PARENT.replace("input: {n: 3}", f"input: {{t: {text}, u: {text}, v: {text}}}")
    async with env.serving(parent, CHILD.replace("properties: {n: {type: integer}}", "")) as client:
        saga = await begin(client, "parent")
        story = await finished(client, saga)
        assert story["state"] == "COMPENSATED"
        assert "bytes" in story["reason"]["message"]


async def _cancel_requested(client, saga: str) -> bool:
    story = await _story(client, saga)
    return story.get("cancel_requested", False) or story.get("phase") == "backward"


async def _state(client, saga: str, wanted: str) -> bool:
    return (await _story(client, saga)).get("state") == wanted


async def _story(client, saga: str) -> dict[str, Any]:
    try:
        return await client.show(saga)
    except UsageError:
        return {}  # it has not been started yet
