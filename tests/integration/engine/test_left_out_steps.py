"""A run that repeats an earlier one decides otherwise, or has not come as far: what that one had done is not lost."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.stuck.resumption import start_again
from saga_workers.worker import before_reset
from sagas import Rejected
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    resolve,
    row,
    send_signed,
    wait_for_event,
)
from tests.integration.engine.repeated_runs import repeat, waits_at

BRANCHES = """
    saga: branches
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: look, uses: work, effect: none}
      - {id: b, if: "${{ steps.look.result.on }}", uses: book, compensate: unbook}
      - {id: h, if: "${{ steps.look.result.on }}", uses: work, compensate: unwork}
      - {id: f, for_each: "${{ steps.look.result.list }}", uses: book, with: {value: "${{ item }}"}, compensate: unbook}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
EXCLUSIVE = """
    saga: branches
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: look, uses: work, effect: none}
      - {id: b, if: "${{ steps.look.result.on }}", uses: book, compensate: unbook}
      - {id: c, if: "${{ !steps.look.result.on }}", uses: book, compensate: unbook}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
FINISH = """
    saga: branches
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: look, uses: work, effect: none}
      - {id: end, uses: finish, with: {when: "${{ !steps.look.result.on }}", output: {early: true}}}
      - {id: b, uses: book, compensate: unbook}
      - {id: h, uses: work, compensate: unwork}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
SKIPPED = """
    saga: skipped
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: b, uses: book, on_failure: park, compensate: unbook}
      - {id: c, uses: book, compensate: unbook}
      - {id: h, uses: work, compensate: unwork}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
ITEMS = """
    saga: items
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: g, for_each: [1, 2, 3], uses: work, with: {value: "${{ item }}"}, heartbeat: 1s, compensate: unwork}
      - {id: f, for_each: [1, 2, 3], uses: book, with: {value: "${{ item }}"}, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
"""
CALLS = """
    saga: calls
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: b, uses: book, compensate: unbook}
      - {id: h, uses: work, compensate: unwork}
      - {id: go2, uses: wait, with: {signal: go2}}
"""
PARALLEL = CALLS.replace("{id: h,", "{id: h, needs: [go],").replace("{id: go2,", "{id: go2, needs: [b, h],")
ON = {"on": True, "list": [1, 2, 3]}
OFF = {"on": False, "list": [1]}


def undone(env: Environment) -> list[str]:
    return [call for call in env.log() if call.startswith("undo")]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("direction", ["backward", "forward"])
async def test_another_branch_does_not_leave_out_what_the_run_before_a_reset_had_done(
    env: Environment, direction: str
) -> None:
    env.plan["do look"] = [ON, OFF]
    async with env.serving(BRANCHES) as client:
        id = await begin(client, "branches")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await repeat(client, id, "reset", after="go2")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        if direction == "backward":
            await client.cancel(id)
            assert (await finished(client, id))["state"] == "COMPENSATED"
            assert await env.effects() == []
            assert sorted(undone(env)) == ["undo a", "undo b", "undo f#0", "undo f#1", "undo f#2", "undo h"]
            return
        await handle(client, id).signal("go2")
        story = await finished(client, id)
        assert (story["state"], row(story, "b")["state"], row(story, "h")["state"]) == ("COMPLETED", "DONE", "DONE")
        assert await env.effects() == ["a", "b", "f#0", "f#1", "f#2"]


async def test_another_branch_of_a_resumed_saga_leaves_nothing_behind(env: Environment) -> None:
    env.plan["do look"] = [ON, {**ON, "on": False}]
    async with env.serving(BRANCHES) as client:
        id = await begin(client, "branches")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await repeat(client, id, "resumed", after="go2")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        story = await finished(client, id)
        assert (story["state"], [parked["step"] for parked in story["parked"]]) == ("PARKED", ["h"])  # it has no guard
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
        assert {"undo b", "undo h"} <= set(undone(env))


async def test_a_list_of_a_resumed_saga_that_is_shorter_now_parks(env: Environment) -> None:
    """Nobody has the list of the deleted run any more, so the saga fails, and an operator has to undo the items."""
    env.plan["do look"] = [ON, {**ON, "list": [1]}]
    async with env.serving(BRANCHES) as client:
        id = await begin(client, "branches")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await repeat(client, id, "resumed", after="go2")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        story = await finished(client, id)
        assert "an earlier run has begun 3 items, and the list has 1 item now" in story["reason"]["message"]
        assert (story["state"], [parked["step"] for parked in story["parked"]]) == ("PARKED", ["f#2"])
        assert await env.effects() == ["a", "b", "f#0", "f#1", "f#2"]


@pytest.mark.parametrize("told_by", ["the run before", "its guard"])
async def test_what_the_run_before_has_left_out_stays_left_out(env: Environment, told_by: str) -> None:
    env.plan["do look"] = [ON, OFF]
    definition = EXCLUSIVE + "      - {id: z, uses: book, needs: [c], compensate: unbook}\n"
    async with env.serving(EXCLUSIVE if told_by == "the run before" else definition) as client:
        id = await begin(client, "branches")
        await handle(client, id).signal("go")
        await repeat(client, id, "reset" if told_by == "the run before" else "resumed", after="go2")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        await handle(client, id).signal("go2")
        story = await finished(client, id)
        assert (story["state"], row(story, "b")["state"], row(story, "c")["state"]) == ("COMPLETED", "DONE", "SKIPPED")
        assert "an earlier run of the saga has left this step out" in row(story, "c")["error"]["message"]
        assert "c" not in await env.effects()


async def test_the_ledger_tells_what_a_deleted_run_has_left_out(env: Environment, orders: AsyncEngine) -> None:
    env.plan["do look"], env.plan["do z"] = [ON, OFF], [Rejected("no"), None]
    definition = EXCLUSIVE + "      - {id: z, uses: work, on_failure: park, compensate: unwork}\n"
    async with env.serving(definition) as client:
        id = await begin(client, "branches")
        for signal in ("go", "go2"):
            await handle(client, id).signal(signal)

        async def recorded() -> bool:
            return await client.locator.ledger.find(id) is not None

        await until(recorded)
        await run_changes.delete_run(client.temporal, id)
        await start_again(client, await client.locator.locate(id))
        for signal in ("go", "go2"):
            await handle(client, id).signal(signal)
        assert (await finished(client, id))["state"] == "PARKED", "z had no guard, and an operator was asked"
        story = await resolve(client, id, "z", "retry")
        assert (story["state"], row(story, "c")["state"], await env.effects()) == ("COMPLETED", "SKIPPED", ["a", "b"])


@pytest.mark.parametrize("decision", ["skip", "retry", None])
async def test_where_nobody_knows_what_a_deleted_run_has_left_out_an_operator_decides(
    env: Environment, decision: str | None
) -> None:
    env.plan["do look"] = [ON, OFF]
    async with env.serving(EXCLUSIVE) as client:
        id = await begin(client, "branches")
        await handle(client, id).signal("go")
        await repeat(client, id, "resumed", after="go2")
        await handle(client, id).signal("go")
        story = await finished(client, id)
        [parked] = story["parked"]
        assert (story["state"], parked["step"]) == ("PARKED", "c")
        assert "an earlier run of the saga has done b" in parked["why"]
        if decision is None:
            await client.cancel(id)
            assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
            assert undone(env) == ["undo b", "undo a"]
            return
        await send_signed(client, id, {"step": "c", "decision": decision, "reason": "so", "who": "ada"})
        await handle(client, id).signal("go2")
        effects = ["a", "b"] if decision == "skip" else ["a", "b", "c"]
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPLETED", effects)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("how", ["reset", "resumed"])
async def test_a_finish_does_not_cut_off_what_an_earlier_run_has_done(env: Environment, how: str) -> None:
    env.plan["do look"] = [ON, OFF]
    async with env.serving(FINISH) as client:
        id = await begin(client, "branches")
        await repeat(client, id, how, after="go2")
        await waits_at(client, id, "go2")
        story = await client.show(id)
        assert (row(story, "b")["state"], row(story, "h")["state"]) == ("DONE", "DONE")
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])


async def test_a_skip_by_an_operator_does_not_end_the_search_ahead(env: Environment) -> None:
    env.plan["do b"] = [Rejected("no")]
    async with env.serving(SKIPPED) as client:
        id = await begin(client, "skipped")
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "PARKED"
        await send_signed(client, id, {"step": "b", "decision": "skip", "reason": "no matter", "who": "ada"})
        await repeat(client, id, "resumed", after="go2")
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
        assert undone(env) == ["undo h", "undo c", "undo a"]


async def test_the_items_behind_the_first_one_are_undone(env: Environment) -> None:
    move, begun, _ = gate()
    env.plan["do g#0"] = [1, move]
    async with env.serving(ITEMS) as client:
        id = await begin(client, "items")
        await repeat(client, id, "reset")
        await wait_for_event(begun)
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
        assert sorted(undone(env)) == ["undo a", *(f"undo {step}#{item}" for step in "fg" for item in range(3))]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("most", [10, 1])
async def test_a_second_reset_of_the_first_run_does_not_forget_the_second_one(
    env: Environment, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(before_reset, "_MAX_RUNS", most)
    async with env.serving(CALLS) as client:
        id = await begin(client, "calls")
        await waits_at(client, id, "go")
        first = (await handle(client, id).describe()).run_id
        await run_changes.reset_run(client.temporal, id)
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        await run_changes.reset_run(client.temporal, id, run_id=first, keeps_signals=False)
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
        assert undone(env) == ["undo h", "undo b", "undo a"]


async def test_a_residue_and_its_decision_outlast_a_reset(env: Environment) -> None:
    env.plan["undo b"], env.plan["undo h"] = [Rejected("not b")], [Rejected("not h"), None]
    async with env.serving(PARALLEL) as client:
        id = await begin(client, "calls")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        await client.cancel(id, who="ada", reason="enough")
        assert (await finished(client, id))["state"] == "PARKED"
        await resolve(client, id, "b", "skip", evidence="it stays")
        before = await client.show(id)
        assert [residue["step"] for residue in before["residue"]] == ["b"]
        await run_changes.reset_run(client.temporal, id, keeps_signals=False)
        story = await finished(client, id)
    assert (story["state"], story["residue"], await env.effects()) == ("RESIDUE", before["residue"], ["b"])
    assert story["reason"] == before["reason"]
    assert [row["decision"] for row in story["operator"]][:2] == [row["decision"] for row in before["operator"]][:2]


async def test_what_the_saga_before_with_this_id_has_left_is_not_undone(env: Environment) -> None:
    env.plan["undo b"] = [Rejected("not b"), None]
    async with env.serving(CALLS) as client:
        id = await begin(client, "calls")
        await waits_at(client, id, "go")
        await handle(client, id).signal("go")
        await waits_at(client, id, "go2")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "PARKED"
        assert (await resolve(client, id, "b", "skip"))["state"] == "RESIDUE"
        await begin(client, "calls", id=id, again=True)
        await waits_at(client, id, "go")
        await run_changes.reset_run(client.temporal, id)
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", ["b"])
        assert undone(env) == ["undo h", "undo b", "undo a", "undo a"]
