"""Nested sagas that were started before: their end is taken, or they are repeated as carefully as their parent."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client as Temporal
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.workflow import ParentClosePolicy

from saga_workers.client import Client
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.temporal.temporal_runs import describe_run
from saga_workers.views.saga_list import SagaFilter
from sagas import Rejected
from sagas.errors import SagaError
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, resolve, row
from tests.integration.engine.nested.families import (
    COMMITTED,
    GO,
    REPLACED,
    begin_waiting_child,
    book,
    define,
    define_child,
    define_parent,
    has_state,
    nested,
)
from tests.integration.engine.repeated_runs import waits_at

PARENT = define_parent(GO)
CHILD = define_child(
    book("x"),
    "{id: y, uses: work, with: {value: 3}, retry: {max_attempts: 2, initial_interval: 100ms}, compensate: unwork}",
)
PARKING = define(
    "child",
    book("x", 'with: {value: "${{ string(saga.started_at) }}"}, compensate: unbook, on_failure: park'),
    output="steps.x.result",
)
WAITING = define_child(
    book("x", "pivot: true"), GO, "{id: y, uses: work, with: {value: 3}, effect: none, on_failure: park}"
)


@pytest.mark.sampled(turns="replace")
@REPLACED
@pytest.mark.parametrize("ends", ["COMPLETED", "COMPENSATED"])
async def test_the_end_of_a_child_that_has_completed_is_taken(
    env: Environment, replace: Callable[[Client, str], Awaitable[None]], ends: str
) -> None:
    env.plan["do y"] = [{"value": 3}, Rejected("no more")]
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin(client, "parent")
        await waits_at(client, saga)
        child = (await handle(client, f"{saga}/child").describe()).run_id
        await replace(client, saga)
        await waits_at(client, saga)
        assert (await handle(client, f"{saga}/child").describe()).run_id == child
        if ends == "COMPLETED":
            await handle(client, saga).signal("go")
        else:
            assert await client.cancel(saga) == "accepted"
        story = await finished(client, saga)
        assert (await client.show(f"{saga}/child"))["state"] == ends
    assert (story["state"], env.log().count("do y")) == (ends, 1)
    if ends == "COMPLETED":
        assert story["output"] == {"child": 3}
    else:
        assert (await env.effects(), env.log()[-3:]) == ([], ["undo y", "undo x", "undo a"])


@pytest.mark.sampled(turns="replace")
@REPLACED
async def test_a_rejection_in_a_deleted_child_that_is_started_again_is_doubted(
    env: Environment, replace: Callable[[Client, str], Awaitable[None]]
) -> None:
    env.plan["do y"] = [{"value": 3}, Rejected("no more")]
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin(client, "parent")
        await waits_at(client, saga)
        await delete_run(client.temporal, f"{saga}/child")
        await replace(client, saga)
        story = await finished(client, saga)
        child = await client.show(f"{saga}/child")
    assert (story["state"], child["state"]) == ("COMPENSATED", "COMPENSATED")
    assert (row(child, "y")["state"], row(child, "y")["outcome"]) == ("COMPENSATED", "unknown")
    assert (await env.effects(), env.log()[-3:]) == ([], ["undo y", "undo x", "undo a"])


@pytest.mark.sampled(turns="replace")
@REPLACED
async def test_a_deleted_child_that_is_started_again_goes_on_with_the_generations_of_its_guards(
    env: Environment, replace: Callable[[Client, str], Awaitable[None]]
) -> None:
    env.plan["do x"] = [Rejected("not yet"), {"value": 3}]
    async with env.serving(PARENT, PARKING) as client:
        saga = await begin(client, "parent")
        await has_state(client, f"{saga}/child", "PARKED")
        await resolve(client, f"{saga}/child", "x", "retry")
        await waits_at(client, saga)
        await delete_run(client.temporal, f"{saga}/child")
        await replace(client, saga)
        await waits_at(client, saga)
        child = await client.show(f"{saga}/child")
        assert (row(child, "x")["state"], row(child, "x")["generation"]) == ("DONE", 2)
        assert await client.cancel(saga) == "accepted"
        assert (await finished(client, saga))["state"] == "COMPENSATED"
    assert await env.effects() == []


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("meanwhile", [True, False])
async def test_a_retry_takes_the_end_of_a_terminated_child_that_was_continued(
    env: Environment, meanwhile: bool
) -> None:
    """The decision comes while the child goes on, or after its end."""
    env.plan["do y"] = [Rejected("ask somebody"), {"value": 3}]
    async with env.serving(COMMITTED, WAITING) as client:
        saga = await begin(client, "parent")
        child = f"{saga}/child"
        await waits_at(client, child)
        first = (await handle(client, child).describe()).run_id
        await handle(client, child).terminate("by mistake")
        assert (await finished(client, saga))["state"] == "PARKED"
        story = await resolve(client, saga, "child", "retry")
        assert (story["state"], f"saga resume {child}" in story["parked"][0]["why"]) == ("PARKED", True)
        continuing = asyncio.create_task(continue_saga(client.locator, child, "ada"))
        await until(lambda: _runs(client, f"{child}~undo"))
        decision = {"step": "child", "decision": "retry", "reason": "because", "who": "ada"}
        if meanwhile:
            await client.resolve(saga, decision)
        await handle(client, f"{child}~undo").signal("go")
        await has_state(client, child, "PARKED")
        if meanwhile:
            [parked] = await until(lambda: _parked_rows(client, saga))
            assert parked["commands"][0].startswith(f"saga resolve {child} y retry")
        wanted = SagaFilter(task_queue=client.project.settings.temporal.task_queue)
        stuck = [view async for view in list_stuck(client.locator, wanted, limit=9)]
        assert child in [view.id for view in stuck]
        await client.resolve(child, {**decision, "step": "y"})
        await continuing
        if not meanwhile:
            await client.resolve(saga, decision)

        await has_state(client, saga, "COMPLETED")
        assert (await client.show(saga))["output"] == {"child": 3}
        assert (await client.show(child))["state"] == "COMPLETED"
        assert (await handle(client, child).describe()).run_id == first
    assert env.log() == ["do a", "do x", "do y", "do y"]


async def _runs(client: Client, id: str) -> bool:
    described = await describe_run(client.temporal, id)
    return described is not None and described.run.running


async def _parked_rows(client: Client, saga: str) -> Any:
    return (await client.show(saga))["parked"]


@workflow.defn(name="child", sandboxed=False)
class ForgedChild:
    """A workflow of somebody else with the name and the id of our child."""

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.ends)
        return "forged"

    def __init__(self) -> None:
        self.ends = False

    @workflow.signal
    def end(self) -> None:
        self.ends = True


@workflow.defn(name="parent", sandboxed=False)
class ForgedParent:
    """A workflow of somebody else with the id of our parent, which closes while its child runs on."""

    @workflow.run
    async def run(self) -> None:
        id = f"{workflow.info().workflow_id}/child"
        await workflow.start_child_workflow("child", id=id, parent_close_policy=ParentClosePolicy.ABANDON)


async def test_the_end_of_a_child_that_the_project_has_not_signed_is_not_taken(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        plain = await Temporal.connect(env.address)
        parent, queue = f"parent-{uuid.uuid4()}", f"stranger-{uuid.uuid4()}"
        runner = UnsandboxedWorkflowRunner()
        async with Worker(plain, task_queue=queue, workflows=[ForgedParent, ForgedChild], workflow_runner=runner):
            await plain.execute_workflow("parent", id=parent, task_queue=queue)
            await delete_run(client.temporal, parent)
            saga = await begin(client, "parent", id=parent)
            await waits_at(client, saga, "child")
            await plain.get_workflow_handle(f"{parent}/child").signal("end")
            story = await finished(client, saga)
            assert (story["state"], row(story, "child")["result"]) == ("PARKED", None)
            assert f"{parent}/child says of its end is not signed" in story["parked"][0]["why"]
            decision = {"step": "child", "decision": "retry", "reason": "because", "who": "ada"}
            await client.resolve(saga, decision)
            await waits_at(client, saga)
            await handle(client, saga).signal("go")
            story = await finished(client, saga)
    assert (story["state"], story["output"]) == ("COMPLETED", {"child": 3})
    assert env.log() == ["do a", "do x", "do y"]


@pytest.mark.parametrize("why", ["its id is taken", "its definition is missing"])
async def test_the_effects_of_a_child_that_cannot_be_started_again_stay_known(env: Environment, why: str) -> None:
    waiting = WAITING.replace(", pivot: true", ", compensate: unbook")
    async with env.serving(PARENT, waiting) as client:
        saga = await begin_waiting_child(client)
        child, definitions = f"{saga}/child", client.project.definitions
        await delete_run(client.temporal, child)
        story = await finished(client, saga)
        assert story["state"] == "PARKED"
        definition = definitions.pop("child")
        plain, queue = await Temporal.connect(env.address), f"stranger-{uuid.uuid4()}"
        if why == "its id is taken":
            await plain.start_workflow("billing", id=child, task_queue=queue)
        for _ in range(2):
            story = await resolve(client, saga, "child", "retry")
            assert (story["state"], await env.effects()) == ("PARKED", ["a", "x"])
        [parked] = story["parked"]
        if why == "its id is taken":
            assert f"a run of billing on the task queue {queue}; the effects of the nested saga stay" in parked["why"]
            await plain.get_workflow_handle(child).terminate("its end")
        else:
            assert "is not started again, and what it has done before is not undone" in parked["why"]
        definitions["child"] = definition
        await client.resolve(saga, {"step": "child", "decision": "retry", "reason": "because", "who": "ada"})
        await waits_at(client, child)
        assert await client.cancel(saga) == "accepted"
        assert (await finished(client, saga))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_the_command_for_a_deleted_child_is_that_of_its_parent(env: Environment) -> None:
    waiting = WAITING.replace(", pivot: true", ", compensate: unbook")
    async with env.serving(PARENT, waiting) as client:
        saga = await begin(client, "parent")
        child = f"{saga}/child"
        await waits_at(client, child)
        await delete_run(client.temporal, child)
        assert (await finished(client, saga))["state"] == "PARKED"
        for refuse in (client.show(child), _start_again(client, child)):
            with pytest.raises(SagaError) as refused:
                await refuse
            assert (refused.value.help or "").startswith(f"saga resolve {saga} child retry")
        await client.resolve(saga, {"step": "child", "decision": "retry", "reason": "because", "who": "ada"})
        await waits_at(client, child)
        assert await client.cancel(saga) == "accepted"
        assert (await finished(client, saga))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_a_child_of_a_parent_that_is_undone_is_started_again_to_be_undone(env: Environment) -> None:
    """A person has said that it was undone by hand, and it was not."""
    async with env.serving(define_parent(), define("child", book("x"), GO)) as client:
        saga = await begin_waiting_child(client)
        child, definitions = f"{saga}/child", client.project.definitions
        await delete_run(client.temporal, child)
        assert (await finished(client, saga))["state"] == "PARKED"
        definition = definitions.pop("child")
        assert (await resolve(client, saga, "child", "compensate"))["state"] == "PARKED"
        definitions["child"] = definition
        story = await resolve(client, saga, "child", "done", evidence="undone by hand")
        assert (story["state"], await env.effects()) == ("COMPENSATED", ["x"])
        [lost] = await find_lost(client.locator, client.project.settings, suspects=[child])
        assert (lost.saga_id, lost.command) == (child, f"saga resume {child}")
        assert lost.reason.endswith(f"`saga resume {child}` undoes it, as {saga} is undone")
        await _start_again(client, child)
        story = await finished(client, child)
        assert (story["state"], await env.effects()) == ("COMPENSATED", [])
        assert await find_lost(client.locator, client.project.settings, suspects=[child]) == []


async def test_the_end_of_another_saga_with_the_id_of_the_parent_does_not_undo_it(env: Environment) -> None:
    refused = define("other", "{id: wanted, uses: require, with: {that: '${{ 1 == 2 }}'}}")
    parent = define("parent", nested("child", "child"), GO)
    async with env.serving(parent, refused, define("child", book("x"))) as client:
        saga = await begin(client, "parent")
        child = f"{saga}/child"
        await waits_at(client, saga)
        await delete_run(client.temporal, saga)
        await delete_run(client.temporal, child)
        await begin(client, "other", id=saga)
        assert (await finished(client, saga))["state"] == "COMPENSATED"
        [lost] = await find_lost(client.locator, client.project.settings, suspects=[child])
        assert (lost.saga_id, lost.command) == (saga, f"saga resume {saga} --definition FILE --input @FILE")
        with pytest.raises(SagaError, match="starts it again") as refused_resume:
            await _start_again(client, child)
        assert (refused_resume.value.help or "").startswith(f"saga resume {saga}")
        assert await env.effects() == ["x"]
        await delete_run(client.temporal, saga)
        await begin(client, "parent", id=saga)
        await waits_at(client, saga)
        assert await client.cancel(saga) == "accepted"
        assert (await finished(client, saga))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def _start_again(client: Client, saga: str) -> None:
    await start_again(client, await client.locator.locate(saga), not_ended=True)
