"""Whether anybody polls a task queue."""

from __future__ import annotations

import time

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

FRESH = 90.0
"""Seconds. The server remembers pollers for minutes after they have gone; a poll itself lasts up to 60."""


async def count_pollers(client: Client, queue: str, *, workflows: bool = True) -> int:
    """How many workers poll ``queue`` for workflow tasks (or for activities)."""
    return sum(1 for at in await _polls(client, queue, workflows=workflows) if time.time() - at < FRESH)


async def last_poll(client: Client, queue: str, *, workflows: bool = True) -> float:
    """When a worker last polled ``queue``, in seconds since the epoch; 0.0: the server remembers none."""
    return max(await _polls(client, queue, workflows=workflows), default=0.0)


async def _polls(client: Client, queue: str, *, workflows: bool) -> list[float]:
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW if workflows else TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    found = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind),
        retry=True,
    )
    return [poller.last_access_time.ToMicroseconds() / 1e6 for poller in found.pollers]


def nobody_polls(queue: str) -> str:
    """The sentence for it."""
    return f"no worker polls the task queue {queue}"


def nobody_answers(queue: str) -> str:
    """The sentence for workers that polled a moment ago and answer nothing now."""
    return f"no worker answers on the task queue {queue}"


NEXT_STEP = "saga worker    (or saga dev up)"
