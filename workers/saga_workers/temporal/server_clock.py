"""Compares the clock of this machine with that of the Temporal server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, PollWorkflowTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from saga_activities.concurrency import end_tasks

_PATIENCE = 1.5
"""Seconds until a poll must be listed."""


async def measure_server_clock(client: Client) -> float | None:
    """Seconds by which the server is ahead; None if it lists no poller in time, or cannot be asked.

    The server reveals its time only as the last access of a poller, so this polls once, in a queue without tasks.
    """
    # Only a poller with an identity is listed. Of an earlier poller the server would list the earlier time.
    queue = f"saga-clock-{uuid.uuid4().hex[:12]}"
    request = PollWorkflowTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), identity=queue)
    began, patience = time.time(), time.monotonic() + _PATIENCE
    # The server refuses short polls; this long poll is cancelled as soon as it is listed.
    poll = asyncio.ensure_future(
        client.workflow_service.poll_workflow_task_queue(request, timeout=timedelta(seconds=20))
    )
    try:
        # There is no event for the arrival of a poll.
        while not (pollers := await _pollers(client, queue)) and time.monotonic() < patience:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    except RPCError:
        return None
    finally:
        await end_tasks([poll])
    return pollers[0].last_access_time.ToMicroseconds() / 1e6 - began if pollers else None


async def _pollers(client: Client, queue: str) -> Sequence[Any]:
    described = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    return described.pollers
