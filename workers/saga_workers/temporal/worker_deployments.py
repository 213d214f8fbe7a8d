"""Finds workers that get no new saga, because no version of their deployment is current."""

from __future__ import annotations

from collections.abc import Iterable

from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion

from sagas.text.shell import shell_command

_LONGEST_POLL = 90
"""Seconds within which every worker that runs has begun another poll. Temporal names one that has ended for minutes."""


async def version_to_make_current(client: Client, queue: str) -> WorkerDeploymentVersion | None:
    """The version of the workers of this queue, if Temporal gives them no new saga; None if it does, or if there is no
    worker. Raises RPCError.
    """
    described = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        retry=True,
    )
    routing = described.versioning_info
    if routing.current_deployment_version.build_id or routing.ramping_deployment_version.build_id:
        return None
    return polled_version(described.pollers)


def polled_version(pollers: Iterable[PollerInfo]) -> WorkerDeploymentVersion | None:
    """The version of those that have begun a poll lately; None if one of them has no version, or if there is none."""
    polls = sorted(pollers, key=lambda poll: poll.last_access_time.ToNanoseconds())
    options = [
        poll.deployment_options
        for poll in polls
        if poll.last_access_time.ToSeconds() > polls[-1].last_access_time.ToSeconds() - _LONGEST_POLL
    ]
    versioned = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    if not options or any(option.worker_versioning_mode != versioned for option in options):
        return None
    return WorkerDeploymentVersion(options[-1].deployment_name, options[-1].build_id)


def set_current_command(version: WorkerDeploymentVersion) -> str:
    """The command of Temporal's CLI that makes a version current."""
    words = ("--deployment-name", version.deployment_name, "--build-id", version.build_id)
    return shell_command("temporal", "worker", "deployment", "set-current-version", *words)
