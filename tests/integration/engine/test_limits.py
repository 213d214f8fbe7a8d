"""Large values, unknown actions and bugs: nothing wedges a run (guarantees, rules 9 and 10)."""

from __future__ import annotations

import uuid

import pytest
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from sagas import Rejected, action
from sagas.actions import ACTION_ATTRIBUTE, Actions
from sagas.definition.snapshot import to_snapshot
from sagas.settings.project import Project
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import World, begin, handle, play, resolve, row, states, until

QUICK = "retry: {max_attempts: 2, initial_interval: 20ms, max_interval: 50ms}"
BIG = "x" * 1_050_000


async def test_an_argument_that_is_too_large_fails_the_step_before_the_effect(world: World) -> None:
    definition = """
        saga: argument
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: b, uses: work, with: {value: ["${{ steps.a.result }}", "${{ steps.a.result }}"]}, effect: none}
    """
    world.plan["do a"] = [BIG]
    async with world.serving(definition) as client:
        story = await play(client, "argument")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "definition")
    assert "2,100," in story["reason"]["message"]
    assert "do b" not in world.log()


async def test_a_guarded_result_that_is_too_large_is_not_committed(world: World) -> None:
    definition = """
        saga: result
        steps:
          - {id: a, uses: book, compensate: unbook}
    """
    world.plan["do a"] = [BIG * 2]
    async with world.serving(definition) as client:
        story = await play(client, "result")
    assert (story["state"], row(story, "a")["outcome"]) == ("COMPENSATED", "failed")
    assert world.log() == ["do a"]
    assert await world.effects() == []


async def test_an_unguarded_result_that_is_too_large_is_done_and_says_its_size(world: World) -> None:
    definition = """
        saga: free
        steps:
          - {id: a, uses: work, effect: none}
        output: "${{ steps.a.result }}"
    """
    world.plan["do a"] = [BIG * 2]
    async with world.serving(definition) as client:
        story = await play(client, "free")
    assert story["output"]["omitted"] == "size"
    assert story["output"]["bytes"] > 2_000_000


async def test_details_of_a_rejection_that_are_too_large_are_left_out(world: World) -> None:
    definition = """
        saga: wordy
        steps:
          - {id: a, uses: work, effect: none}
    """
    world.plan["do a"] = [Rejected("no" * 20_000, why=BIG * 3)]
    async with world.serving(definition) as client:
        story = await play(client, "wordy")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert story["reason"]["details"]["omitted"] == "size"


async def test_an_output_that_is_too_large_does_not_wedge_the_end(world: World) -> None:
    definition = """
        saga: output
        steps:
          - {id: a, uses: work, effect: none}
        output: {twice: ["${{ steps.a.result }}", "${{ steps.a.result }}"]}
    """
    world.plan["do a"] = [BIG]
    async with world.serving(definition) as client:
        saga = await begin(client, "output")
        assert (await handle(client, saga).result())["omitted"] == "size"
        story = await finished(client, saga)
    assert story["state"] == "COMPLETED"
    assert len(str(story)) < 600_000


async def test_an_input_that_is_too_large_is_refused_where_it_is_started(world: World) -> None:
    async with world.serving("    saga: input\n    steps:\n      - {id: a, uses: work, effect: none}\n") as client:
        with pytest.raises((RPCError, Exception), match=r"(?i)size|large|limit"):
            await begin(client, "input", {"text": BIG * 3})


@pytest.mark.slow
async def test_many_large_arguments_are_spread_over_workflow_tasks(world: World) -> None:
    definition = """
        saga: heavy
        steps:
          - {id: a, uses: work, effect: none}
          - id: b
            for_each: "${{ [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] }}"
            max_parallel: 200
            uses: work
            with: {value: "${{ steps.a.result }}"}
            effect: none
        output: 1
    """
    world.plan["do a"] = ["x" * 600_000]
    world.plan |= {f"do b#{n}": [None] for n in range(12)}
    async with world.serving(definition) as client:
        story = await play(client, "heavy")
        history = await handle(client, story["id"]).fetch_history()
    assert story["state"] == "COMPLETED"
    assert not any(e.HasField("workflow_task_failed_event_attributes") for e in history.events)


async def test_an_action_nobody_knows_is_not_started_and_goes_on_when_a_worker_does(world: World) -> None:
    definition = f"""
        saga: missing
        steps:
          - {{id: a, uses: book, compensate: unbook}}
          - {{id: b, uses: later, {QUICK}, compensate: unwork}}
    """

    @action("later")
    async def later() -> str:
        return "here now"

    async with world.serving("    saga: other\n    steps:\n      - {id: a, uses: work, effect: none}\n") as client:
        project = world.project
        assert project is not None
        everything = {
            one.name: one for one in [*(project.actions[n] for n in project.actions), getattr(later, ACTION_ATTRIBUTE)]
        }
        path = project.settings.root / "missing.saga.yaml"
        path.write_text("\n".join(line[8:] for line in definition.splitlines()))
        whole = Project(project.settings, Actions(list(everything.values())))
        client.project = whole
        saga = await begin(client, "missing")
        await until(lambda: _error(client, saga, "b", "NotFoundError"))
        story = await client.show(saga)
        assert (story["state"], row(story, "b")["attempts"]) == ("RUNNING", 0), "not started is not counted"
    world.project = whole
    async with world.again() as client:
        story = await finished(client, saga)
    assert (story["state"], row(story, "b")["result"]) == ("COMPLETED", "here now")


async def test_a_definition_bug_before_the_commit_point_fails_and_is_undone(world: World) -> None:
    definition = """
        saga: buggy
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: b, uses: book, with: {value: "${{ steps.a.result.nothing.here }}"}, compensate: unbook}
    """
    async with world.serving(definition) as client:
        story = await play(client, "buggy")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "definition")
    assert world.log() == ["do a", "undo a"]


async def test_a_definition_bug_after_the_commit_point_parks_and_a_person_mends_it(world: World) -> None:
    definition = """
        saga: wrong
        steps:
          - {id: p, uses: book, pivot: true}
          - {id: q, uses: book, with: {value: "${{ steps.p.result.nothing.here }}"}}
          - {id: r, uses: book, with: {value: "${{ steps.p.result.neither }}"}}
        output: {r: "${{ steps.r.result.value }}"}
    """
    async with world.serving(definition) as client:
        story = await play(client, "wrong")
        assert (story["state"], story["phase"]) == ("PARKED", "committed")
        story = await resolve(client, story["id"], "q", "retry", **{"with": {"value": "by hand"}})
        assert (story["state"], story["parked"][0]["step"]) == ("PARKED", "r")
        assert world.project is not None
        path = world.project.settings.root / "wrong.saga.yaml"
        path.write_text(path.read_text().replace("steps.p.result.neither", "steps.q.result.value"))
        mended = Project(world.project.settings, world.project.actions).definition("wrong")
        story = await resolve(client, story["id"], "r", "retry", definition=to_snapshot(mended))
    assert (story["state"], story["output"]) == ("COMPLETED", {"r": "by hand"})


async def test_a_bug_in_a_compensation_or_in_the_output_parks(world: World) -> None:
    definition = """
        saga: undoing
        steps:
          - id: a
            uses: book
            compensate: {uses: unbook, with: {value: "${{ steps.a.result.nothing.here }}"}}
          - {id: b, uses: require, with: {that: "${{ input.go }}"}}
        input: {type: object, properties: {go: {type: boolean}}}
        output: "${{ steps.a.result.nothing.here }}"
    """
    async with world.serving(definition) as client:
        story = await play(client, "undoing", {"go": False})
        assert (story["state"], story["parked"][0]["op"]) == ("PARKED", "undo")
        story = await resolve(client, story["id"], "a", "retry", **{"with": {"value": 1}})
        assert story["state"] == "COMPENSATED"
        story = await play(client, "undoing", {"go": True})
        assert (story["state"], story["parked"][0]["step"]) == ("PARKED", "output")
        story = await resolve(client, story["id"], "output", "done", result={"by": "hand"})
    assert (story["state"], story["output"]) == ("COMPLETED", {"by": "hand"})


async def test_an_exception_in_an_action_is_retried_and_then_leads_backward(world: World) -> None:
    definition = f"""
        saga: raising
        steps:
          - {{id: a, uses: work, {QUICK}, compensate: unwork}}
          - {{id: b, uses: book, {QUICK}, compensate: unbook}}
    """
    world.plan |= {"do b": [KeyError("oops")]}
    async with world.serving(definition) as client:
        story = await play(client, "raising")
    assert (story["state"], story["reason"]["type"]) == ("COMPENSATED", "KeyError")
    assert world.log() == ["do a", "do b", "do b", "undo a"]
    assert states(story)["b"] == "NOTHING_TO_UNDO", "failed, but not alone: it was sealed"


async def test_a_persons_done_is_written_to_the_guard_and_a_row_that_is_there_wins(world: World) -> None:
    definition = """
        saga: vouched
        steps:
          - {id: a, uses: book, compensate: unbook, on_failure: park}
          - {id: b, uses: work, with: {value: "${{ steps.a.result }}"}, effect: none}
        output: "${{ steps.a.result }}"
    """
    world.plan["do a"] = [Rejected("no")]
    async with world.serving(definition) as client:
        story = await play(client, "vouched")
        story = await resolve(client, story["id"], "a", "done", result={"by": "hand"})
    assert (story["state"], story["output"]) == ("COMPLETED", {"by": "hand"})
    async with world.engine.connect() as connection:
        rows = await connection.exec_driver_sql("select op from saga_guard where saga_id = ?", (story["id"],))
        assert list(rows.scalars()) == ["do"]


async def test_a_plain_start_of_nonsense_is_refused_and_nothing_runs(world: World) -> None:
    definition = """
        saga: strict
        labels: {tenant: "${{ input.tenant }}"}
        input: {type: object, required: [n], properties: {n: {type: integer}, tenant: {type: string}}}
        steps:
          - {id: a, uses: work, effect: none}
    """
    async with world.serving(definition):
        assert world.project is not None
        plain = await Temporal.connect(world.address)
        queue = world.project.settings.temporal.task_queue
        for saga, value in (("strict", {"n": "x"}), ("nosuch", {}), ("strict", {"n": 1})):
            run = await plain.start_workflow(saga, value, id=f"{saga}-{uuid.uuid4()}", task_queue=queue)
            await until(lambda run=run: _status(plain, run.id))
            description = await plain.get_workflow_handle(run.id).describe()
            assert description.status is WorkflowExecutionStatus.FAILED
    assert world.asked == []


async def _status(temporal: Temporal, saga: str) -> bool:
    status = (await temporal.get_workflow_handle(saga).describe()).status
    return status is not WorkflowExecutionStatus.RUNNING


async def _error(client, saga: str, step: str, type: str) -> bool:
    story = await client.show(saga)
    return any(one["id"] == step and (one["error"] or {}).get("type") == type for one in story["steps"])
