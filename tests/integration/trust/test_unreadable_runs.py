"""A run whose history nobody can read: it is named, and hides no other run."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RespondActivityTaskFailedRequest,
)

from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas import Rejected
from sagas.actions.registry import action
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

CAUSES = 150
"""More than any reader of protobuf follows: 100."""

AWAY = """
saga: away
steps:
  - {{id: away, uses: elsewhere, task_queue: {queue}, with: {{n: 1}}, effect: none, retry: {{max_attempts: 1}}}}
"""
BROKEN = """
saga: broken
steps:
  - {id: pivot, uses: elsewhere, with: {n: 1}, pivot: true}
  - {id: broken, uses: refuses, with: {}}
"""


def field(message: type[Any], name: str, data: bytes) -> bytes:
    """A field of a message, in the form of protobuf."""
    number = message.DESCRIPTOR.fields_by_name[name].number
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    parts = []
    while True:
        parts.append(number & 127 | (128 if number > 127 else 0))
        number >>= 7
        if not number:
            return bytes(parts)


def nested_failure() -> bytes:
    info = ApplicationFailureInfo(type="Rejected", non_retryable=True)
    outer = Failure(message="failure", application_failure_info=info).SerializeToString()
    data = outer
    for _ in range(CAUSES):
        data = outer + field(Failure, "cause", data)
    return data


def answer_one_task(address: str, queue: str) -> None:
    """Answer the next activity of a task queue as a worker of another language."""
    service = "/temporal.api.workflowservice.v1.WorkflowService/"

    def call(channel: grpc.Channel, method: str, data: bytes) -> bytes:
        return channel.unary_unary(f"{service}{method}")(data, timeout=60)

    with grpc.insecure_channel(address) as channel:
        poll = PollActivityTaskQueueRequest(namespace="default", identity="other")
        poll.task_queue.name = queue
        answer = PollActivityTaskQueueResponse.FromString(
            call(channel, "PollActivityTaskQueue", poll.SerializeToString())
        )
        failed = RespondActivityTaskFailedRequest(namespace="default", identity="other", task_token=answer.task_token)
        data = failed.SerializeToString() + field(RespondActivityTaskFailedRequest, "failure", nested_failure())
        call(channel, "RespondActivityTaskFailed", data)


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_a_failure_that_nobody_can_decode_hides_no_other_saga(temporal: TemporalServer, tmp_path: Path) -> None:
    queue = f"other-{uuid.uuid4()}"

    async def elsewhere(n: int) -> None: ...

    async def refuses() -> None:
        raise Rejected("broken")

    texts = {"away": AWAY.format(queue=queue), "broken": BROKEN}
    project = make_project(
        tmp_path, texts, [action("elsewhere")(elsewhere), action("refuses")(refuses)], address=temporal.address
    )
    async with running_worker(project) as client:
        away = await client.start("away", {})
        broken = await client.start("broken", {})
        await asyncio.to_thread(answer_one_task, temporal.address, queue)
        criteria = SagaFilter(task_queue=project.settings.temporal.task_queue)

        async def stuck() -> dict[str, tuple[str, ...]]:
            views = [view async for view in list_stuck(client.locator, criteria, limit=50)]
            return {view.id: view.stuck or () for view in views}

        async def both_are_named() -> bool:
            named = await stuck()
            return broken.id in named and any("workflow task fails" in reason for reason in named.get(away.id, ()))

        await until(both_are_named, limit=90)
        shown = await client.show(away.id)
        assert shown["state"] == "RUNNING"
        assert "cannot be queried" in shown["incomplete"]
        for run in (away, broken):
            await client.temporal.get_workflow_handle(run.id).terminate("the end of the test")
