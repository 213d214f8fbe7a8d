"""The lifecycle of a saga beyond one worker: undo, ids, reset, terminate, other workers, versions."""

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
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    run_saga,
    states,
    wait_for_event,
)
from tests.integration.engine.workers.user_workflow import Greeting, greet

PLAIN = """
    saga: plain
    input: {type: object, properties: {n: {type: integer, default: 1}}}
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: book, compensate: unbook}
    output: 1
"""


async def test_a_completed_saga_and_its_undo_share_one_view(env: Environment) -> None:
    async with env.serving(PLAIN) as client:
        saga = (await run_saga(client, "plain"))["id"]
        await (await client.undo(saga, reason="returned", who="ada")).result()
        story = await client.show(saga)
    assert (story["state"], story["reason"]["kind"], story["id"]) == ("COMPENSATED", "undone", saga)
    assert env.log() == ["do a", "do b", "undo b", "undo a"]
    assert await env.effects() == []


async def test_a_saga_past_its_pivot_cannot_be_undone(env: Environment) -> None:
    definition = "    saga: final\n    steps:\n      - {id: p, uses: book, pivot: true}\n"
    async with env.serving(definition) as client:
        saga = (await run_saga(client, "final"))["id"]
        queue = client.project.settings.temporal.task_queue
        run = await client.temporal.start_workflow("final", {}, id=f"{saga}~undo", task_queue=queue)
        with pytest.raises(WorkflowFailureError) as refused:
            await run.result()
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "SagaRefused"
    assert await env.effects() == ["p"]


async def test_again_starts_the_next_generation_of_an_id(env: Environment) -> None:
    async with env.serving(PLAIN) as client:
        env.plan["do b"] = [Rejected("no")]
        saga = (await run_saga(client, "plain"))["id"]
        with pytest.raises(RefusedError, match="COMPENSATED"):
            await client.start("plain", {}, id=saga)
        env.plan.clear()
        run = await client.start("plain", {}, id=saga, again=True)
        assert run.started
        story = await finished(client, saga)
        assert (story["state"], story["generation"]) == ("COMPLETED", 2)
        assert env.asked[-1].key == f"{saga}/b@2"
        again = await client.start("plain", {}, id=saga)
        assert (again.started, await again.result()) == (False, 1)
        with pytest.raises(RefusedError, match="another input"):
            await client.start("plain", {"n": 2}, id=saga)
    assert await env.effects() == ["a", "b"]


async def test_a_reset_run_reuses_stored_results_without_duplicates(env: Environment) -> None:
    async with env.serving(PLAIN) as client:
        saga = (await run_saga(client, "plain"))["id"]
        await _reset(client.temporal, saga)
        story = await finished(client, saga)
        assert story["state"] == "COMPLETED"
        assert env.log() == ["do a", "do b"], "the guard answered"
    assert await env.effects() == ["a", "b"]


async def test_a_reset_of_an_undone_run_is_late_and_compensates(env: Environment) -> None:
    env.plan["do b"] = [Rejected("no")]
    async with env.serving(PLAIN) as client:
        saga = (await run_saga(client, "plain"))["id"]
        env.plan.clear()
        await _reset(client.temporal, saga)
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"], states(story)["a"]) == ("COMPENSATED", "late", "COMPENSATED")
    assert await env.effects() == []


async def test_terminate_compensates_nothing_and_says_so(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do b"] = [move]
    async with env.serving(PLAIN) as client:
        saga = await begin(client, "plain")
        await wait_for_event(begun)
        await handle(client, saga).terminate("enough")
        go.set()
        story = await client.show(saga)
        assert story["state"] == "TERMINATED"
        with pytest.raises(RefusedError, match="terminated"):
            await client.start("plain", {}, id=saga)
    assert "undo a" not in env.log()


async def test_sagas_run_next_to_a_user_workflow_in_the_sandbox(env: Environment) -> None:
    async with env.serving(PLAIN):
        pass
    assert env.project is not None
    temporal = await Temporal.connect(env.address, plugins=[SagaPlugin(env.project)])
    queue = env.project.settings.temporal.task_queue
    async with Worker(temporal, task_queue=queue, workflows=[Greeting], activities=[greet]):
        assert (
            await temporal.execute_workflow(Greeting.run, "ada", id=f"greet-{queue}", task_queue=queue) == "hello ada"
        )
        assert await temporal.execute_workflow("plain", {}, id=f"plain-{queue}", task_queue=queue) == 1
    assert await env.effects() == ["a", "b"]


async def test_a_running_saga_stays_on_its_build(env: Environment) -> None:
    definition = PLAIN.replace("      - {id: b,", "      - {id: w, uses: wait, with: {signal: go}}\n      - {id: b,")
    definition = definition.replace("unbook", "unwork").replace("book", "work")
    async with env.serving(definition):
        pass
    assert env.project is not None
    name = env.project.settings.temporal.task_queue
    first, second = WorkerDeploymentVersion(name, "1.0"), WorkerDeploymentVersion(name, "2.0")
    short = timedelta(seconds=1)
    async with running_worker(env.project, deployment=first, grace=short) as client:
        await _make_current(client.temporal, first)
        old = await begin(client, "plain")
        await until(lambda: "do a" in env.log())
        async with running_worker(env.project, deployment=second, grace=short):
            await _make_current(client.temporal, second)
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
    return {outcome.deployment_version.build_id for outcome in done}


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
