"""Large values, unknown actions and bugs: nothing wedges a run (guarantees, rules 9 and 10)."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.service import RPCError

from saga_activities.bodies.python_action import ActionNotRegistered
from saga_cli.render.saga_view import view_lines
from sagas import Rejected, action
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions
from sagas.definition.snapshot import to_snapshot
from sagas.input_limits import MAX_RESULT_VALUES
from sagas.presentation.styled_text import to_plain
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from tests.helpers.local_worker import finished
from tests.helpers.waiting import LIMIT, until
from tests.integration.engine.environment import Environment, begin, handle, resolve, row, run_saga, states

QUICK = "retry: {max_attempts: 2, initial_interval: 20ms, max_interval: 50ms}"
BIG = "x" * 1_050_000


async def test_an_argument_that_is_too_large_fails_the_step_before_the_effect(env: Environment) -> None:
    definition = """
        saga: argument
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: b, uses: work, with: {value: ["${{ steps.a.result }}", "${{ steps.a.result }}"]}, effect: none}
    """
    env.plan["do a"] = [BIG]
    async with env.serving(definition) as client:
        story = await run_saga(client, "argument")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "definition")
    assert "2,100," in story["reason"]["message"]
    assert "do b" not in env.log()


async def test_a_guarded_result_that_is_too_large_is_not_committed(env: Environment) -> None:
    definition = """
        saga: result
        steps:
          - {id: a, uses: book, compensate: unbook}
    """
    env.plan["do a"] = [BIG * 2]
    async with env.serving(definition) as client:
        story = await run_saga(client, "result")
    assert (story["state"], row(story, "a")["outcome"]) == ("COMPENSATED", "failed")
    assert env.log() == ["do a"]
    assert await env.effects() == []


async def test_an_oversized_unguarded_result_is_done_and_no_expression_can_read_it(env: Environment) -> None:
    definition = """
        saga: free
        steps:
          - {id: a, uses: work, effect: none}
        output: "${{ default(steps.a.result.total, 0) }}"
    """
    env.plan["do a"] = [BIG * 2]
    async with env.serving(definition) as client:
        story = await run_saga(client, "free")
    done = row(story, "a")
    assert (done["state"], done["result"]["omitted"], done["result_kept"]) == ("DONE", "size", False)
    assert done["result"]["bytes"] > 2_000_000
    (parked,) = story["parked"]
    assert (story["state"], parked["step"]) == ("PARKED", "output")
    size = f"{done['result']['bytes']:,}"
    assert f"output: the result of a was not kept: it has {size} bytes as JSON, and a result may have" in parked["why"]
    assert "values" not in parked["why"]
    assert "compressed" not in parked["why"]


async def test_a_result_of_too_many_values_names_this_limit(env: Environment) -> None:
    definition = """
        saga: many
        steps:
          - {id: a, uses: work, effect: none}
        output: "${{ steps.a.result }}"
    """
    env.plan["do a"] = [[1] * (MAX_RESULT_VALUES + 1)]
    async with env.serving(definition) as client:
        story = await run_saga(client, "many")
    assert row(story, "a")["result"]["omitted"] == "values"
    (parked,) = story["parked"]
    assert (
        "output: the result of a was not kept: it has more than 100,000 values, and a result may have 100,000;"
        in parked["why"]
    )
    assert "bytes" not in parked["why"]
    lines = view_lines(SagaView.from_json(story), now=datetime.now(UTC))
    assert "the result of a (more than 100,000 values)" in "\n".join(map(to_plain, lines))


async def test_an_output_of_too_many_values_names_this_limit(env: Environment) -> None:
    definition = """
        saga: twice
        steps:
          - {id: a, uses: work, effect: none}
        output: {twice: ["${{ steps.a.result }}", "${{ steps.a.result }}"]}
    """
    env.plan["do a"] = [[1] * (MAX_RESULT_VALUES - 10)]
    async with env.serving(definition) as client:
        saga = await begin(client, "twice")
        assert (await handle(client, saga).result())["omitted"] == "values"


async def test_details_of_a_rejection_that_are_too_large_are_left_out(env: Environment) -> None:
    definition = """
        saga: wordy
        steps:
          - {id: a, uses: work, effect: none}
    """
    env.plan["do a"] = [Rejected("no" * 20_000, why=BIG * 3)]
    async with env.serving(definition) as client:
        story = await run_saga(client, "wordy")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert story["reason"]["details"]["omitted"] == "size"


async def test_an_oversized_output_does_not_block_completion(env: Environment) -> None:
    definition = """
        saga: output
        steps:
          - {id: a, uses: work, effect: none}
        output: {twice: ["${{ steps.a.result }}", "${{ steps.a.result }}"]}
    """
    env.plan["do a"] = [BIG]
    async with env.serving(definition) as client:
        saga = await begin(client, "output")
        assert (await handle(client, saga).result())["omitted"] == "size"
        story = await finished(client, saga)
    assert story["state"] == "COMPLETED"
    assert len(str(story)) < 600_000


async def test_an_input_that_is_too_large_is_refused_where_it_is_started(env: Environment) -> None:
    async with env.serving("    saga: input\n    steps:\n      - {id: a, uses: work, effect: none}\n") as client:
        with pytest.raises((RPCError, Exception), match=r"(?i)size|large|limit"):
            await begin(client, "input", {"text": BIG * 3})


@pytest.mark.slow
async def test_many_large_arguments_are_spread_over_workflow_tasks(env: Environment) -> None:
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
    env.plan["do a"] = ["x" * 600_000]
    env.plan |= {f"do b#{n}": [None] for n in range(12)}
    async with env.serving(definition) as client:
        story = await run_saga(client, "heavy")
        history = await handle(client, story["id"]).fetch_history()
    assert story["state"] == "COMPLETED"
    assert not any(e.HasField("workflow_task_failed_event_attributes") for e in history.events)


@pytest.mark.slow
async def test_a_wide_for_each_with_long_expressions_never_takes_two_seconds_in_one_task(env: Environment) -> None:
    """Temporal ends a workflow task after two seconds without a pause, and repeats it forever."""
    definition = """
        saga: wide
        steps:
          - id: a
            uses: require
            for_each: ${{ input.n }}
            with: {that: "${{ !input.n.exists(x, input.n.map(y, y)[0] < 0 || x < 0) }}"}
          - {id: b, uses: work, effect: none}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "wide", {"n": list(range(120))})
        history = await handle(client, story["id"]).fetch_history()
    assert story["state"] == "COMPLETED"
    assert not any(e.HasField("workflow_task_failed_event_attributes") for e in history.events)
    assert sum(e.HasField("timer_fired_event_attributes") for e in history.events) > 1


async def test_an_unknown_action_waits_for_a_worker_that_registers_it(env: Environment) -> None:
    definition = f"""
        saga: missing
        steps:
          - {{id: a, uses: book, compensate: unbook}}
          - {{id: b, uses: later, {QUICK}, compensate: unwork}}
    """

    @action("later")
    async def later() -> str:
        return "here now"

    async with env.serving("    saga: other\n    steps:\n      - {id: a, uses: work, effect: none}\n") as client:
        project = env.project
        assert project is not None
        everything = {
            registered.name: registered
            for registered in [*(project.actions[n] for n in project.actions), getattr(later, ACTION_ATTRIBUTE)]
        }
        path = project.settings.root / "missing.saga.yaml"
        path.write_text("\n".join(line[8:] for line in definition.splitlines()))
        whole = Project(project.settings, Actions(list(everything.values())))
        client.project = whole
        saga = await begin(client, "missing")
        await until(lambda: _error(client, saga, "b", "NotFoundError"))
        story = await client.show(saga)
        assert (story["state"], row(story, "b")["attempts"]) == ("RUNNING", 0), "not started is not counted"
    env.project = whole
    async with env.again() as client:
        story = await finished(client, saga)
    assert (story["state"], row(story, "b")["result"]) == ("COMPLETED", "here now")


async def test_a_worker_without_the_action_uses_up_no_attempt_after_an_unknown_one(env: Environment) -> None:
    definition = f"""
        saga: earlier-code
        steps:
          - {{id: a, uses: work, {QUICK}, compensate: {{uses: unwork, {QUICK}}}}}
          - {{id: b, uses: require, with: {{that: "${{{{ false }}}}", message: "no"}}}}
    """
    for op in ("do", "undo"):
        missing = ActionNotRegistered("no action of this name is registered")
        env.plan[f"{op} a"] = [RuntimeError("nobody knows"), missing, missing, 1]
    async with env.serving(definition) as client:
        story = await run_saga(client, "earlier-code")
    assert (story["state"], story["reason"]["step"]) == ("COMPENSATED", "b")
    assert (row(story, "a")["attempts"], row(story, "a")["compensation"]["attempts"]) == (2, 2)
    assert env.log() == ["do a"] * 4 + ["undo a"] * 4


async def test_a_definition_bug_before_the_commit_point_fails_and_is_undone(env: Environment) -> None:
    definition = """
        saga: buggy
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: b, uses: book, with: {value: "${{ steps.a.result.nothing.here }}"}, compensate: unbook}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "buggy")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "definition")
    assert env.log() == ["do a", "undo a"]


async def test_a_definition_bug_after_the_commit_point_parks_until_corrected(env: Environment) -> None:
    definition = """
        saga: wrong
        steps:
          - {id: p, uses: book, pivot: true}
          - {id: q, uses: book, with: {value: "${{ steps.p.result.nothing.here }}"}}
          - {id: r, uses: book, with: {value: "${{ steps.p.result.neither }}"}}
        output: {r: "${{ steps.r.result.value }}"}
    """
    async with env.serving(definition) as client:
        story = await run_saga(client, "wrong")
        assert (story["state"], story["phase"]) == ("PARKED", "committed")
        story = await resolve(client, story["id"], "q", "retry", **{"with": {"value": "by hand"}})
        assert (story["state"], story["parked"][0]["step"]) == ("PARKED", "r")
        assert env.project is not None
        path = env.project.settings.root / "wrong.saga.yaml"
        path.write_text(path.read_text().replace("steps.p.result.neither", "steps.q.result.value"))
        repaired = Project(env.project.settings, env.project.actions).definition("wrong")
        story = await resolve(client, story["id"], "r", "retry", definition=to_snapshot(repaired))
    assert (story["state"], story["output"]) == ("COMPLETED", {"r": "by hand"})


async def test_a_bug_in_a_compensation_or_in_the_output_parks(env: Environment) -> None:
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
    async with env.serving(definition) as client:
        story = await run_saga(client, "undoing", {"go": False})
        assert (story["state"], story["parked"][0]["op"]) == ("PARKED", "undo")
        story = await resolve(client, story["id"], "a", "retry", **{"with": {"value": 1}})
        assert story["state"] == "COMPENSATED"
        story = await run_saga(client, "undoing", {"go": True})
        assert (story["state"], story["parked"][0]["step"]) == ("PARKED", "output")
        story = await resolve(client, story["id"], "output", "done", result={"by": "hand"})
    assert (story["state"], story["output"]) == ("COMPLETED", {"by": "hand"})


async def test_an_exception_in_an_action_is_retried_and_then_leads_backward(env: Environment) -> None:
    definition = f"""
        saga: raising
        steps:
          - {{id: a, uses: work, {QUICK}, compensate: unwork}}
          - {{id: b, uses: book, {QUICK}, compensate: unbook}}
    """
    env.plan |= {"do b": [KeyError("oops")]}
    async with env.serving(definition) as client:
        story = await run_saga(client, "raising")
    assert (story["state"], story["reason"]["type"]) == ("COMPENSATED", "KeyError")
    assert env.log() == ["do a", "do b", "do b", "undo a"]
    assert states(story)["b"] == "FAILED", "both attempts were rolled back, so no seal is needed"


async def test_a_manual_done_is_recorded_unless_the_guard_has_a_row(env: Environment) -> None:
    definition = """
        saga: vouched
        steps:
          - {id: a, uses: book, compensate: unbook, on_failure: park}
          - {id: b, uses: work, with: {value: "${{ steps.a.result }}"}, effect: none}
        output: "${{ steps.a.result }}"
    """
    env.plan["do a"] = [Rejected("no")]
    async with env.serving(definition) as client:
        story = await run_saga(client, "vouched")
        story = await resolve(client, story["id"], "a", "done", result={"by": "hand"})
    assert (story["state"], story["output"]) == ("COMPLETED", {"by": "hand"})
    async with env.engine.connect() as connection:
        rows = await connection.exec_driver_sql("select op from saga_guard where saga_id = ?", (story["id"],))
        assert list(rows.scalars()) == ["do"]


async def test_an_invalid_plain_start_is_refused_and_runs_nothing(env: Environment) -> None:
    definition = """
        saga: strict
        labels: {tenant: "${{ input.tenant }}"}
        input: {type: object, required: [n], properties: {n: {type: integer}, tenant: {type: string}}}
        steps:
          - {id: a, uses: work, effect: none}
    """
    async with env.serving(definition):
        assert env.project is not None
        plain = await Temporal.connect(env.address)
        queue = env.project.settings.temporal.task_queue
        for saga, value in (("strict", {"n": "x"}), ("nosuch", {}), ("strict", {"n": 1})):
            run = await plain.start_workflow(saga, value, id=f"{saga}-{uuid.uuid4()}", task_queue=queue)
            await until(lambda run=run: _status(plain, run.id))
            description = await plain.get_workflow_handle(run.id).describe()
            assert description.status is WorkflowExecutionStatus.FAILED
    assert env.asked == []


async def _status(temporal: Temporal, saga: str) -> bool:
    status = (await temporal.get_workflow_handle(saga).describe()).status
    return status is not WorkflowExecutionStatus.RUNNING


async def _error(client, saga: str, step: str, type: str) -> bool:
    story = await client.show(saga)
    return any(
        each_step["id"] == step and (each_step["error"] or {}).get("type") == type for each_step in story["steps"]
    )


UNREADABLE = [
    (b"json/plain", b"1" * 5_000),
    (b"json/plain", b"[" * 50_000 + b"]" * 50_000),
    (b"json/plain", b"{"),
    (b"json/plain", b'"\xff"'),
    (b"binary/unknown", b"x"),
]


def unreadable(encoding: bytes, data: bytes) -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


async def test_a_signal_that_cannot_be_read_is_ignored(env: Environment) -> None:
    definition = "    saga: waits\n    steps:\n      - {id: a, uses: wait, with: {signal: go}}\n"
    async with env.serving(definition) as client:
        saga = await begin(client, "waits")
        for encoding, data in UNREADABLE:
            await handle(client, saga).signal("go", unreadable(encoding, data))
        await client.signal(saga, "go", "now")
        story = await finished(client, saga)
    assert (story["state"], row(story, "a")["result"]["data"]) == ("COMPLETED", "now")


@pytest.mark.parametrize(("encoding", "data"), UNREADABLE)
async def test_a_start_with_an_input_that_cannot_be_read_is_refused(
    env: Environment, encoding: bytes, data: bytes
) -> None:
    temporal = await Temporal.connect(env.address)
    async with env.serving("    saga: raw\n    steps:\n      - {id: a, uses: work, effect: none}\n") as client:
        started = await temporal.start_workflow(
            "raw",
            unreadable(encoding, data),
            id=f"raw-{uuid.uuid4()}",
            task_queue=client.project.settings.temporal.task_queue,
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(started.result(), LIMIT)
    assert "the input cannot be read" in str(failed.value.cause)
