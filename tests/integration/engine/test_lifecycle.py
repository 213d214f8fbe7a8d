"""A saga's life beyond one worker: undo, ids, reset, terminate, other workers, versions."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    ResetWorkflowExecutionRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkerDeploymentVersion
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from saga_workers.worker.plugin import SagaPlugin
from sagas import Rejected
from sagas.errors import RefusedError
from tests.helpers.local_worker import finished, lab
from tests.integration.engine.environment import World, begin, gate, handle, play, soon, states, until
from tests.integration.engine.workers.user_workflow import Greeting, greet

PLAIN = """
    saga: plain
    input: {type: object, properties: {n: {type: integer, default: 1}}}
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: book, compensate: unbook}
    output: 1
"""


async def test_a_completed_saga_is_undone_as_one_story(world: World) -> None:
    async with world.serving(PLAIN) as client:
        saga = (await play(client, "plain"))["id"]
        run = await client.temporal.start_workflow(
            "plain",
            {"reason": "returned", "who": "ada"},
            id=f"{saga}~undo",
            task_queue=client.project.settings.temporal.task_queue,
        )
        await run.result()
        story = await client.show(saga)
    assert (story["state"], story["reason"]["kind"], story["id"]) == ("COMPENSATED", "undone", saga)
    assert world.log() == ["do a", "do b", "undo b", "undo a"]
    assert await world.effects() == []


async def test_past_a_pivot_nothing_is_undone(world: World) -> None:
    definition = "    saga: final\n    steps:\n      - {id: p, uses: book, pivot: true}\n"
    async with world.serving(definition) as client:
        saga = (await play(client, "final"))["id"]
        queue = client.project.settings.temporal.task_queue
        run = await client.temporal.start_workflow("final", {}, id=f"{saga}~undo", task_queue=queue)
        with pytest.raises(WorkflowFailureError) as refused:
            await run.result()
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "SagaRefused"
    assert await world.effects() == ["p"]


async def test_one_run_per_id_and_again_is_the_next_generation(world: World) -> None:
    async with world.serving(PLAIN) as client:
        world.plan["do b"] = [Rejected("no")]
        saga = (await play(client, "plain"))["id"]
        with pytest.raises(RefusedError, match="COMPENSATED"):
            await client.start("plain", {}, id=saga)
        world.plan.clear()
        run = await client.start("plain", {}, id=saga, again=True)
        assert run.started
        story = await finished(client, saga)
        assert (story["state"], story["generation"]) == ("COMPLETED", 2)
        assert world.asked[-1].key == f"{saga}/b@2"
        again = await client.start("plain", {}, id=saga)
        assert (again.started, await again.result()) == (False, 1)
        with pytest.raises(RefusedError, match="another input"):
            await client.start("plain", {"n": 2}, id=saga)
    assert await world.effects() == ["a", "b"]


async def test_a_reset_run_gets_the_stored_results_and_never_doubles(world: World) -> None:
    async with world.serving(PLAIN) as client:
        saga = (await play(client, "plain"))["id"]
        await _reset(client.temporal, saga)
        story = await finished(client, saga)
        assert story["state"] == "COMPLETED"
        assert world.log() == ["do a", "do b"], "the guard answered"
    assert await world.effects() == ["a", "b"]


async def test_a_reset_of_an_undone_run_is_late_and_leads_backward(world: World) -> None:
    world.plan["do b"] = [Rejected("no")]
    async with world.serving(PLAIN) as client:
        saga = (await play(client, "plain"))["id"]
        world.plan.clear()
        await _reset(client.temporal, saga)
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"], states(story)["a"]) == ("COMPENSATED", "late", "COMPENSATED")
    assert await world.effects() == []


async def test_terminate_runs_nothing_and_says_so(world: World) -> None:
    move, begun, go = gate()
    world.plan["do b"] = [move]
    async with world.serving(PLAIN) as client:
        saga = await begin(client, "plain")
        await soon(begun)
        await handle(client, saga).terminate("enough")
        go.set()
        story = await client.show(saga)
        assert story["state"] == "TERMINATED"
        with pytest.raises(RefusedError, match="terminated"):
            await client.start("plain", {}, id=saga)
    assert "undo a" not in world.log()


async def test_sagas_beside_a_users_own_workflow_in_the_sandbox(world: World) -> None:
    async with world.serving(PLAIN):
        pass
    assert world.project is not None
    temporal = await Temporal.connect(world.address, plugins=[SagaPlugin(world.project)])
    queue = world.project.settings.temporal.task_queue
    async with Worker(temporal, task_queue=queue, workflows=[Greeting], activities=[greet]):
        assert (
            await temporal.execute_workflow(Greeting.run, "ada", id=f"greet-{queue}", task_queue=queue) == "hello ada"
        )
        assert await temporal.execute_workflow("plain", {}, id=f"plain-{queue}", task_queue=queue) == 1
    assert await world.effects() == ["a", "b"]


async def test_a_running_saga_stays_on_its_build(world: World) -> None:
    definition = PLAIN.replace("      - {id: b,", "      - {id: w, uses: wait, with: {signal: go}}\n      - {id: b,")
    definition = definition.replace("unbook", "unwork").replace("book", "work")
    async with world.serving(definition):
        pass
    assert world.project is not None
    name = world.project.settings.temporal.task_queue
    one, two = WorkerDeploymentVersion(name, "1.0"), WorkerDeploymentVersion(name, "2.0")
    short = timedelta(seconds=1)
    async with lab(world.project, deployment=one, grace=short) as client:
        await _make_current(client.temporal, one)
        old = await begin(client, "plain")
        await until(lambda: "do a" in world.log())
        async with lab(world.project, deployment=two, grace=short):
            await _make_current(client.temporal, two)
            new = await begin(client, "plain")
            for saga in (old, new):
                await client.signal(saga, "go")
                assert (await finished(client, saga))["state"] == "COMPLETED"
            assert await _builds(client.temporal, old) == {"1.0"}
            assert await _builds(client.temporal, new) == {"2.0"}


async def _builds(temporal: Temporal, saga: str) -> set[str]:
    events = (await temporal.get_workflow_handle(saga).fetch_history()).events
    done = [
        e.workflow_task_completed_event_attributes
        for e in events
        if e.HasField("workflow_task_completed_event_attributes")
    ]
    return {one.deployment_version.build_id for one in done}


async def _make_current(temporal: Temporal, version: WorkerDeploymentVersion) -> None:
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=temporal.namespace, deployment_name=version.deployment_name, build_id=version.build_id
    )
    for _ in range(100):
        try:
            await temporal.workflow_service.set_worker_deployment_current_version(request)
            return
        except RPCError:  # its first poll has not arrived yet
            await asyncio.sleep(0.1)
    raise AssertionError("the deployment did not appear")


async def _reset(temporal: Temporal, saga: str) -> None:
    described = await temporal.get_workflow_handle(saga).describe()
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=saga, run_id=described.run_id),
            reason="a test",
            workflow_task_finish_event_id=4,
            request_id=f"reset-{saga}",
        )
    )
