"""Ids that belong to the engine: nobody else starts a run under them, and nobody's result is taken for a child's."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sagas.errors import UsageError
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    resolve,
    row,
    run_saga,
    wait_for_event,
)
from tests.integration.engine.nested.families import has_state

PARENT = """
    saga: parent
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: child, uses: saga, with: {name: child}}
    output: {child: "${{ steps.child.result }}"}
"""
CHILD = """
    saga: child
    steps:
      - {id: x, uses: book, compensate: unbook}
    output: "${{ steps.x.result.value }}"
"""
LINE = """
    saga: line
    input: {type: object, additionalProperties: true}
    steps:
      - {id: a, uses: book, compensate: unbook}
    notify:
      - {when: completed, uses: work, with: {}}
"""


@workflow.defn(name="child", sandboxed=False)
class Stranger:
    """A workflow of somebody else with the name of our child."""

    @workflow.run
    async def run(self, answer: str) -> str:
        if answer == "wait":
            await workflow.wait_condition(lambda: False)
        return answer


async def refusal(temporal: Temporal, type: str, input: Any, id: str, queue: str) -> str:
    """The message with which the worker refuses a start by a client that knows only Temporal."""
    with pytest.raises(WorkflowFailureError) as failed:
        await temporal.execute_workflow(type, input, id=id, task_queue=queue)
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "SagaRefused", cause
    return cause.message


async def test_a_foreign_start_under_an_id_of_the_engine_is_refused_and_touches_nothing(env: Environment) -> None:
    async with env.serving(LINE) as client:
        plain = await Temporal.connect(env.address)
        queue = client.project.settings.temporal.task_queue
        done = (await run_saga(client, "line"))["id"]
        await until(lambda: _delivered(client, done))
        before, effects = env.log(), await env.effects()
        undo = {"reason": "returned", "who": "somebody"}
        for id, input, reason in (
            (f"{done}/c#0", {}, "must not contain /"),
            (f"nobody-{queue}/b", {}, "must not contain /"),
            (f"{done}~undo", {}, "must not end in ~undo"),
            (f"{done}~undo", undo, "must not end in ~undo"),
            (f"nobody-{queue}~undo", undo, "must not end in ~undo"),
            (f"{done}~notify-1-completed", {}, "must not contain ~"),
            (f"a\nb {queue}", {}, "control characters"),
            (f"{queue}{'x' * 600}", {}, "the maximum is 512"),
        ):
            assert reason in await refusal(plain, "line", input, id, queue)
            history = await plain.get_workflow_handle(id).fetch_history()
            kinds = [event.WhichOneof("attributes") for event in history.events]
            assert not any("activity" in str(kind) for kind in kinds), "not even the definition was loaded"
        order = {"saga": "line", "saga_id": done, "uses": "work", "call": None}
        for id in (f"{done}~notify-0-completed", "notify-me"):
            assert await refusal(plain, "saga.notify", order, id, queue)
        story = await client.show(done)
    assert (story["state"], story["id"]) == ("COMPLETED", done)
    assert (env.log(), await env.effects()) == (before, effects)


async def _delivered(client: Any, id: str) -> bool:
    return all(notification["state"] == "DELIVERED" for notification in (await client.show(id))["notifications"])


async def test_no_client_of_ours_starts_a_saga_under_an_id_of_the_engine(env: Environment) -> None:
    async with env.serving(LINE) as client:
        for id in ("a/b", "a~undo", "a~notify-0-completed", "a\x1b", "a ", "\ud800", "a" * 600, 7):
            with pytest.raises(UsageError, match="the id"):
                await client.start("line", {}, id=id)  # pyright: ignore[reportArgumentType]
        for id in ("\ud800", "a\0", "a" * 2000):  # there can be no such saga
            with pytest.raises(UsageError, match="there is no saga"):
                await client.show(id)
    assert env.log() == []


@pytest.mark.parametrize("ends", ["COMPLETED", "RUNNING"])
async def test_a_run_of_a_stranger_under_the_id_of_a_child_is_never_taken_for_the_child(
    env: Environment, ends: str
) -> None:
    async with env.serving(PARENT, CHILD) as client:
        plain = await Temporal.connect(env.address)
        parent, queue = f"parent-{uuid.uuid4()}", f"stranger-{uuid.uuid4()}"
        workers = Worker(plain, task_queue=queue, workflows=[Stranger], workflow_runner=UnsandboxedWorkflowRunner())
        async with workers:
            answer = "wait" if ends == "RUNNING" else "forged"
            run = await plain.start_workflow("child", answer, id=f"{parent}/child", task_queue=queue)
            if ends == "COMPLETED":
                assert await run.result() == "forged"
            story = await run_saga(client, "parent", id=parent)
            if ends == "RUNNING":
                await run.terminate("the test is over")
    if ends == "COMPLETED":
        assert (story["state"], story["output"]) == ("COMPLETED", {"child": None})
        assert env.log() == ["do a", "do x"]
    else:  # the id is taken: the child cannot have run, so its step has failed without an effect
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "failed")
        assert "already exists" in story["reason"]["message"]
        assert env.log() == ["do a", "undo a"]


async def test_a_strangers_workflow_under_the_id_of_an_undo_does_not_change_what_is_shown(env: Environment) -> None:
    async with env.serving(LINE) as client:
        plain = await Temporal.connect(env.address)
        done, queue = (await run_saga(client, "line"))["id"], f"stranger-{uuid.uuid4()}"
        workers = Worker(plain, task_queue=queue, workflows=[Stranger], workflow_runner=UnsandboxedWorkflowRunner())
        async with workers:
            await plain.execute_workflow("child", "x", id=f"{done}~undo", task_queue=queue)
        assert (await client.show(done))["state"] == "COMPLETED"
        undone = await client.undo(done, reason="returned", who="ada")
        await undone.result()
        assert (await client.show(done))["state"] == "COMPENSATED"
    assert await env.effects() == []


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("type", ["billing", "child"])
async def test_a_stranger_under_the_id_of_the_undo_of_a_nested_saga_is_named(env: Environment, type: str) -> None:
    async with env.serving(PARENT, CHILD) as client:
        done = (await run_saga(client, "parent"))["id"]
        stranger = await client.temporal.start_workflow(type, {}, id=f"{done}/child~undo", task_queue="nobody")
        await client.undo(done, reason="returned", who="ada")
        await has_state(client, done, "PARKED")
        [parked] = (await client.show(done))["parked"]
        assert parked["why"].startswith(f"the nested saga is not undone: a run with the id {done}/child~undo")
        assert f"a run of {type} on the task queue nobody" in parked["why"]
        assert "end that run, or wait for its end; then `retry` undoes the nested saga" in parked["why"]
        await stranger.terminate("a test")
        await resolve(client, f"{done}~undo", "child", "retry")
        await has_state(client, done, "COMPENSATED")
    assert await env.effects() == []


async def test_a_child_whose_id_temporal_would_refuse_fails_its_step(env: Environment) -> None:
    name, parent = "c" * 190, "p" * 500
    middle = f"""
        saga: middle
        steps:
          - {{id: {name}, uses: saga, with: {{name: inner}}}}
    """
    inner = f"""
        saga: inner
        steps:
          - {{id: {name}, uses: saga, with: {{name: child}}}}
    """
    outer = PARENT.replace("id: child", f"id: {name}").replace("steps.child", f"steps.{name}").replace(
        "name: child", "name: middle"
    )  # fmt: skip
    async with env.serving(outer, middle, inner, CHILD) as client:
        story = await run_saga(client, "parent", id=f"{parent}{uuid.uuid4().hex[:11]}")
    assert story["state"] == "COMPENSATED"
    assert "the maximum is 1000" in story["reason"]["message"]
    assert env.log() == ["do a", "undo a"]


async def test_commands_address_children_and_undos_by_their_ids(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do x"] = [move]
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin(client, "parent")
        await wait_for_event(begun)
        assert (await client.show(f"{saga}/child"))["state"] == "RUNNING"
        assert await client.cancel(f"{saga}/child") == "accepted"
        go.set()
        await until(lambda: _closed(client, saga))
        assert row(await client.show(f"{saga}/child"), "x")["state"] == "COMPENSATED"


async def _closed(client: Any, saga: str) -> bool:
    return (await handle(client, saga).describe()).close_time is not None
