"""Activities are performed for the calls that a saga of the project has signed: the key is not in the history."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import (
    Interceptor,
    Replayer,
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

from saga_workers.client import Client
from saga_workers.stuck.run_reasons import temporal_reasons
from saga_workers.temporal.temporal_runs import describe_run
from saga_workers.views.answering import Workers
from saga_workers.worker import worker_trust
from saga_workers.worker.plugin import SagaPlugin
from sagas.protocol.payloads import CALL_HEADER, LOAD_ACTIVITY, RESET_ACTIVITY, UNSIGNED_TYPE
from sagas.workflow.saga_workflow import SagaWorkflow
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import LIMIT, until
from tests.integration.trust.conftest import Shop

KEYS = ("a" * 32, "b" * 32)
PENDING = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED


@workflow.defn(sandboxed=False)
class Scheduler:
    """A workflow of somebody else, which schedules an activity on the queue of the project."""

    @workflow.run
    async def run(self, type: str, queue: str, argument: str) -> None:
        payload = Payload(metadata={"encoding": b"json/plain"}, data=argument.encode())
        await workflow.execute_activity(
            type,
            RawValue(payload),
            task_queue=queue,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )


class WithHeader(Interceptor):
    """Sends a header with every call of the workflows of a worker."""

    def __init__(self, header: Payload) -> None:
        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> Any:
                input.headers = {**input.headers, CALL_HEADER: header}
                return super().start_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        self._inbound = Inbound

    def workflow_interceptor_class(self, input: Any) -> Any:
        return self._inbound


async def scheduled(handle: WorkflowHandle[Any, Any]) -> list[Any]:
    """The calls in the history of a run."""
    return [
        event.activity_task_scheduled_event_attributes
        async for event in handle.fetch_history_events()
        if event.event_type == PENDING
    ]


async def refused(shop: Shop, client: Client, type: str, argument: bytes, *headers: Payload, id: str = "") -> str:
    """Schedule the call in a stranger's workflow; gives why it is not performed."""
    queue, theirs = shop.project.settings.temporal.task_queue, f"stranger-{uuid.uuid4()}"
    interceptors = [WithHeader(header) for header in headers]
    async with Worker(client.temporal, task_queue=theirs, workflows=[Scheduler], interceptors=interceptors):
        args, id = [type, queue, argument.decode()], id or str(uuid.uuid4())
        with pytest.raises(WorkflowFailureError) as failed:
            await client.temporal.execute_workflow(Scheduler.run, args=args, id=id, task_queue=theirs)
    activity = failed.value.cause
    assert isinstance(activity, ActivityError)
    assert isinstance(activity.cause, ApplicationError)
    return activity.cause.message


async def test_a_call_of_a_stranger_is_not_performed(shop: Shop) -> None:
    """Neither without a signature, nor with that of another call, of another run, or of a changed argument."""
    async with running_worker(shop.project) as client:
        run = await client.start("own", {"text": "x"})
        await run.result()
        [call] = await scheduled(client.temporal.get_workflow_handle(run.id))
        [argument] = call.input.payloads
        genuine = call.header.fields[CALL_HEADER]
        key, _, signed_for, seed = genuine.data.split(b" ")
        malformed = Payload(metadata=genuine.metadata, data=b"\xff " * 5000)
        guessed = Payload(metadata=genuine.metadata, data=b" ".join([key, b"0" * 64, signed_for, seed]))
        for type, data, headers in (
            ("say", argument.data, ()),
            ("say", argument.data, (genuine,)),
            ("say", argument.data.replace(b'"x"', b'"y"'), (genuine,)),
            ("say", argument.data, (malformed,)),
            ("say", argument.data, (guessed,)),
            (LOAD_ACTIVITY, b'{"saga": "own", "input": {"text": "x"}}', ()),
            ("saga.chunk", b'{"calls": []}', ()),
            ("saga.lock", b"{}", ()),
        ):
            assert "is not signed with a key of this worker" in await refused(shop, client, type, data, *headers)
        # Not even under the id of the saga: Temporal gives each run an id of its own.
        again = await refused(shop, client, "say", argument.data, genuine, id=run.id)
        assert "is not signed" in again
    assert shop.said == ["x"]


async def test_calls_stay_valid_while_keys_are_rotated(shop: Shop) -> None:
    """A call of the old key is performed by workers that still have it; others send it back."""
    async with running_worker(shop.with_keys(KEYS[0]), no_remote_activities=True) as client:
        run = await client.start("own", {"text": "x"})
        handle = client.temporal.get_workflow_handle(run.id)
        await until(lambda: _has_scheduled(handle, 1))
        other = await client.start("own", {"text": "y"})
        await until(lambda: _has_scheduled(client.temporal.get_workflow_handle(other.id), 1))
    async with running_worker(shop.with_keys(KEYS[1], KEYS[0])) as client:
        assert (await finished(client, run.id))["state"] == "COMPLETED"
        assert (await finished(client, other.id))["state"] == "COMPLETED"
        assert sorted(shop.said) == ["x", "y"]
        assert len(await scheduled(handle)) == 1
    async with running_worker(shop.with_keys(KEYS[0]), no_remote_activities=True) as client:
        run = await client.start("own", {"text": "z"})
        handle = client.temporal.get_workflow_handle(run.id)
        await until(lambda: _has_scheduled(handle, 1))
    async with running_worker(shop.with_keys(KEYS[1])) as client:
        # It does not count as an attempt, and the saga makes it again in a minute.
        await until(lambda: _was_sent_back(client, run.id))
        await handle.terminate()
    assert sorted(shop.said) == ["x", "y"]
    # The history replays with any key, and without one.
    for plugins in ([], [SagaPlugin(shop.with_keys("c" * 32))]):
        workflows = [] if plugins else [SagaWorkflow]
        replayer = Replayer(workflows=workflows, workflow_runner=UnsandboxedWorkflowRunner(), plugins=plugins)
        result = await replayer.replay_workflow(await handle.fetch_history(), raise_on_replay_failure=False)
        assert result.replay_failure is None


@pytest.mark.slow
async def test_a_call_that_a_reset_took_over_is_performed(shop: Shop) -> None:
    """Temporal gives the run another id, and keeps the calls that no worker had begun."""
    async with running_worker(shop.project, no_remote_activities=True) as client:
        run = await client.start("own", {"text": "x"})
        handle = client.temporal.get_workflow_handle(run.id)
        await until(lambda: _has_scheduled(handle, 1))
        await handle.signal("nothing")
        await until(lambda: _tasks_are(handle, 2))
        [_, task] = await _completed_tasks(handle)
        first = (await handle.describe()).run_id
        await client.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=client.temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=first),
                workflow_task_finish_event_id=task,
                request_id=str(uuid.uuid4()),
                reason="a test",
            )
        )
        assert (await handle.describe()).run_id != first
    async with running_worker(shop.project) as client:
        assert (await asyncio.wait_for(finished(client, run.id), LIMIT))["state"] == "COMPLETED"
        calls = await scheduled(client.temporal.get_workflow_handle(run.id))
        assert [call.activity_type.name for call in calls] == ["say", RESET_ACTIVITY]
    assert shop.said == ["x"]


async def _has_scheduled(handle: WorkflowHandle[Any, Any], count: int) -> bool:
    return len(await scheduled(handle)) == count


async def _was_sent_back(client: Client, id: str) -> bool:
    [step] = (await client.show(id))["steps"]
    sent_back = (step["error"] or {}).get("type") == UNSIGNED_TYPE
    return sent_back and (step["state"], step["attempts"]) == ("RUNNING", 0)


async def _tasks_are(handle: WorkflowHandle[Any, Any], count: int) -> bool:
    return len(await _completed_tasks(handle)) == count


async def _completed_tasks(handle: WorkflowHandle[Any, Any]) -> list[int]:
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return [event.event_id async for event in handle.fetch_history_events() if event.event_type == completed]


async def answered_with_new_key(shop: Shop) -> str:
    """The id of a saga of a client that has the old key. A worker that has both stops when its first step answers."""
    shop.may_answer.clear()

    async def answer() -> None:
        await asyncio.sleep(1.0)  # until the worker takes no workflow tasks any more
        shop.may_answer.set()

    async with running_worker(shop.with_keys(KEYS[1], KEYS[0])) as client:
        run = await Client(client.temporal, shop.with_keys(KEYS[0])).start("pair", {})
        await until(lambda: bool(shop.said))
        answering = asyncio.create_task(answer())
    await answering
    return run.id


async def test_an_answer_with_a_key_that_another_worker_has_is_left_to_it(shop: Shop) -> None:
    """While keys are rotated: a worker with the new key has answered, and one without it takes the run up."""
    run_id = await answered_with_new_key(shop)
    async with running_worker(shop.with_keys(KEYS[0])) as client:

        async def is_named() -> bool:
            described = await describe_run(client.temporal, run_id)
            assert described is not None
            reasons = await temporal_reasons(client.temporal, described, Workers(client.temporal, client.locator.keys))
            return any("is signed with the key" in reason for reason in reasons)

        await until(is_named)
    async with running_worker(shop.with_keys(KEYS[1], KEYS[0])) as client:
        view = await finished(client, run_id)
    assert view["state"] == "COMPLETED"
    assert shop.said == ["debit", "credit"]


@pytest.mark.slow
async def test_an_answer_with_a_key_that_no_worker_has_is_unknown_in_the_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_trust, "KEY_WAIT", 2.0)
    run_id = await answered_with_new_key(shop)
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        view = await finished(client, run_id)
    assert (view["state"], view["reason"]["type"]) == ("COMPENSATED", "UnsignedAnswer")
    assert shop.said == ["debit", "refund"]
