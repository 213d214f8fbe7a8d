"""A decision of an operator about a step stands in the run that a reset makes: the step is not called again."""

from __future__ import annotations

import pytest

from saga_workers.client import Client
from sagas import Rejected
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, row, send_signed
from tests.integration.engine.repeated_runs import waits_at

STEPS = """
    saga: decided
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: work, with: {value: 7}, on_failure: park, retry: {max_attempts: 1}, compensate: unwork}
      - {id: c, uses: book, with: {value: 1}, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
"""
PAST = """
    saga: decided
    steps:
      - {id: a, uses: book, pivot: true}
      - {id: b, uses: work, on_failure: park, retry: {max_attempts: 1}}
      - {id: go, uses: wait, with: {signal: go}}
"""
ITEMS = """
    saga: decided
    steps:
      - {id: f, for_each: [1, 2, 3], uses: ACTION, with: {value: "${{ item }}"}, on_failure: park, compensate: UNDO}
      - {id: go, uses: wait, with: {signal: go}}
"""
CONFIRMED = """
    saga: decided
    steps:
      - {id: a, uses: work, compensate: unwork, confirm: settle}
      - {id: p, uses: book, pivot: true}
      - {id: go, uses: wait, needs: [p], with: {signal: go}}
"""


async def decide(client: Client, id: str, step: str, decision: str, **more: object) -> None:
    await finished(client, id)  # it waits for the decision
    await send_signed(client, id, {"step": step, "decision": decision, "reason": "so", "who": "ada", **more})


async def _is_parked(client: Client, id: str, step: str) -> bool:
    return any(parked["step"] == step for parked in (await client.show(id))["parked"])


async def reset(client: Client, id: str) -> None:
    await waits_at(client, id, "go")
    await reset_run(client.temporal, id, keeps_signals=False)
    await waits_at(client, id, "go")


@pytest.mark.parametrize("direction", ["forward", "backward"])
async def test_a_step_that_an_operator_has_done_is_not_called_again(env: Environment, direction: str) -> None:
    env.plan["do b"] = [Rejected("not here"), None]
    async with env.serving(STEPS) as client:
        id = await begin(client, "decided")
        await decide(client, id, "b", "done", result={"by": "hand"}, evidence="a call")
        await reset(client, id)
        assert env.log().count("do b") == 1
        assert row(await client.show(id), "b")["result"] == {"by": "hand"}
        if direction == "forward":
            await handle(client, id).signal("go")
            assert (await finished(client, id))["state"] == "COMPLETED"
            return
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
        assert env.log().count("undo b") == 1


@pytest.mark.parametrize("where", ["before", "past"])
async def test_a_skipped_step_whose_effect_is_unclear_is_not_called_again(env: Environment, where: str) -> None:
    env.plan["do b"] = [TimeoutError("lost"), None]
    async with env.serving(STEPS if where == "before" else PAST) as client:
        id = await begin(client, "decided")
        await decide(client, id, "b", "skip")
        await waits_at(client, id, "go")
        calls, residue = env.log().count("do b"), (await client.show(id))["residue"]
        await reset(client, id)
        story = await client.show(id)
        assert (env.log().count("do b"), row(story, "b")["state"], story["residue"]) == (calls, "SKIPPED", residue)
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "RESIDUE"


@pytest.mark.sampled
@pytest.mark.parametrize("action", ["book", "work"])
@pytest.mark.parametrize("decision", ["skip", "done"])
async def test_a_decision_about_an_item_stands(env: Environment, action: str, decision: str) -> None:
    env.plan["do f#1"] = [Rejected("no"), None]
    async with env.serving(ITEMS.replace("ACTION", action).replace("UNDO", f"un{action}")) as client:
        id = await begin(client, "decided")
        await decide(client, id, "f#1", decision, **({"result": {"by": "hand"}} if decision == "done" else {}))
        await reset(client, id)
        assert env.log().count("do f#1") == 1
        await handle(client, id).signal("go")
        story = await finished(client, id)
        assert (story["state"], row(story, "f#1")["state"]) == (
            "COMPLETED",
            decision.upper()[:4].replace("SKIP", "SKIPPED"),
        )


@pytest.mark.parametrize("decision", ["skip", "done"])
async def test_a_decision_about_a_confirm_stands(env: Environment, decision: str) -> None:
    env.plan["confirm a"] = [Rejected("no"), None]
    async with env.serving(CONFIRMED) as client:
        id = await begin(client, "decided")
        await until(lambda: _is_parked(client, id, "a"))
        await send_signed(client, id, {"step": "a", "decision": decision, "reason": "so", "who": "ada"})
        calls, residue = env.log().count("confirm a"), (await client.show(id))["residue"]
        await reset(client, id)
        await handle(client, id).signal("go")
        story = await finished(client, id)
        assert (env.log().count("confirm a"), story["residue"]) == (calls, residue)
        assert story["state"] == ("COMPLETED" if decision == "done" else "RESIDUE")


async def test_a_decision_after_the_task_of_the_reset_stands(env: Environment) -> None:
    env.plan["do b"] = [Rejected("not here"), None]
    async with env.serving(STEPS) as client:
        id = await begin(client, "decided")
        await finished(client, id)
        last = [
            event.event_id
            async for event in handle(client, id).fetch_history_events()
            if event.HasField("workflow_task_completed_event_attributes")
        ][-1]
        await decide(client, id, "b", "done", result={"by": "hand"})
        await waits_at(client, id, "go")
        await reset_run(client.temporal, id, last, keeps_signals=False)
        await waits_at(client, id, "go")
        assert (env.log().count("do b"), row(await client.show(id), "b")["result"]) == (1, {"by": "hand"})
