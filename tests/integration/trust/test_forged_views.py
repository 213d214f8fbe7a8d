"""Views of open runs that a stranger's worker answers with: for a run of its own, and for one of the project."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import QueryResultType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, RespondQueryTaskCompletedRequest
from temporalio.common import RawValue
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_cli.exit_codes import STILL_RUNNING, exit_code
from saga_workers.client import Client
from saga_workers.reconcile.ledger_check import write_row
from saga_workers.relay.entry_status import entry_status
from saga_workers.serve.public_outcome import public_outcome
from saga_workers.views.saga_list import SagaFilter, query_sagas
from sagas.errors import RefusedError
from sagas.protocol.doubtful_outcomes import UNVERIFIED_ANSWER
from sagas.protocol.payloads import VIEW_QUERY
from sagas.protocol.saga_view import SagaView
from tests.helpers import eager_start
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_forged_outcomes import forged_view

ANSWERS: dict[str, Any] = {}
"""The answers of the stranger, by the ids of its runs."""


@workflow.defn(dynamic=True, sandboxed=False)
class OpenStranger:
    """Stays open under the name of any saga."""

    @workflow.run
    async def run(self, _: Sequence[RawValue]) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query(name=VIEW_QUERY)
    def view(self, _: str = "") -> Any:
        return ANSWERS[workflow.info().workflow_id]


@contextlib.asynccontextmanager
async def open_stranger(client: Client, id: str, answer: Any, *, saga: str = "own") -> AsyncIterator[None]:
    """An open run of the saga on a task queue of the stranger, whose worker answers for it."""
    ANSWERS[id], queue = answer, f"stranger-{uuid.uuid4()}"
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client.temporal, task_queue=queue, workflows=[OpenStranger], workflow_runner=runner):
        handle = await client.temporal.start_workflow(saga, id=id, task_queue=queue)
        yield
        await handle.terminate("the test ends")


async def assert_not_believed(client: Client, id: str) -> None:
    view = await client.view(id)
    assert (view.state, view.output, view.ended_at, view.incomplete) == ("RUNNING", None, None, UNVERIFIED_ANSWER)
    assert entry_status(view, "say", 1).kind == "unknown", "it decides about no held event"
    assert exit_code(view) == STILL_RUNNING
    outcome = public_outcome(view)
    assert (outcome["state"], outcome["output"]) == ("RUNNING", None)
    with pytest.raises(RefusedError, match=r"RUNNING \(unverified\)"):
        await write_row(client.locator, id)

    async def listed() -> list[SagaView]:
        sagas = query_sagas(client.locator, SagaFilter(workflow_id=id), limit=9, ask_running=True)
        return [saga async for saga in sagas]

    await until(listed)
    assert [(saga.state, saga.incomplete) for saga in await listed()] == [("RUNNING", UNVERIFIED_ANSWER)]


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("how", ["plain", "of another question", "text", "signature of five"])
@pytest.mark.parametrize("state", ["COMPLETED", "COMPENSATED"])
async def test_an_open_run_of_a_stranger_has_no_end(shop: Shop, state: str, how: str) -> None:
    id = f"own-{uuid.uuid4()}"
    forged = forged_view(id, state, phase="committed", output={"forged": True}, ended_at="2026-12-01T00:00:00Z")
    async with running_worker(shop.project) as client:
        answer: Any = forged
        if how == "of another question":  # which any client may ask
            true = await client.temporal.start_workflow(
                "waiting", {}, id=f"w-{uuid.uuid4()}", task_queue=shop.project.settings.temporal.task_queue
            )
            answer = {**await true.query(VIEW_QUERY, "a nonce of the stranger"), "view": json.dumps(forged)}
            assert answer["signature"]["hmac"]
            await true.terminate()
        elif how != "plain":
            answer = {"view": json.dumps(forged), "signature": 5 if how == "signature of five" else None}
        async with open_stranger(client, id, answer):
            await assert_not_believed(client, id)


async def answer_queries(client: Client, queue: str, answer: Any) -> None:
    """Poll the task queue, and answer each query."""
    request = PollWorkflowTaskQueueRequest(
        namespace=client.temporal.namespace, task_queue=TaskQueue(name=queue), identity="stranger"
    )
    service = client.temporal.workflow_service
    while True:
        task = await service.poll_workflow_task_queue(request, timeout=timedelta(seconds=60))
        if task.HasField("query"):
            payload = eager_start.json_payload(answer)
            answered = RespondQueryTaskCompletedRequest(
                namespace=client.temporal.namespace,
                task_token=task.task_token,
                completed_type=QueryResultType.QUERY_RESULT_TYPE_ANSWERED,
                query_result=Payloads(payloads=[payload]),
            )
            with contextlib.suppress(RPCError):
                await service.respond_query_task_completed(answered)


async def test_a_stranger_does_not_answer_for_a_run_of_the_project(shop: Shop) -> None:
    queue = shop.project.settings.temporal.task_queue
    async with running_worker(shop.project) as client:
        id = (await client.start("waiting", {})).id
        assert (await client.view(id)).incomplete is None
    # Its worker is gone: another one of the project would answer some of the queries.
    forged = forged_view(id, "COMPLETED", saga="waiting", phase="committed", output={"forged": True})
    stranger = asyncio.create_task(answer_queries(client, queue, forged))
    try:
        await until(lambda: is_answered(client, id))
        await assert_not_believed(client, id)
    finally:
        stranger.cancel()
        await asyncio.gather(stranger, return_exceptions=True)
    await client.temporal.get_workflow_handle(id).terminate("the test ends")


async def is_answered(client: Client, id: str) -> bool:
    return (await client.view(id)).incomplete == UNVERIFIED_ANSWER
