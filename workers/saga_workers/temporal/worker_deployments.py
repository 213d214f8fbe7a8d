"""Finds workers that get no new saga, because no version of their deployment is current."""

from __future__ import annotations

from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion

from sagas.text.shell import shell_command


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
    options = [poller.deployment_options for poller in described.pollers]
    versioned = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    if not options or any(option.worker_versioning_mode != versioned for option in options):
        return None
    newest = max(described.pollers, key=lambda poller: poller.last_access_time.ToNanoseconds()).deployment_options
    return WorkerDeploymentVersion(newest.deployment_name, newest.build_id)


def set_current_command(version: WorkerDeploymentVersion) -> str:
    """The command of Temporal's CLI that makes a version current."""
    words = ("--deployment-name", version.deployment_name, "--build-id", version.build_id)
    return shell_command("temporal", "worker", "deployment", "set-current-version", *words)
