"""Versions of workers: those that Temporal takes, and those that get no new saga, because none is current."""

from __future__ import annotations

import re
from collections.abc import Iterable

from temporalio.api.deployment.v1 import WorkerDeploymentVersion as DescribedVersion
from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentVersionRequest,
)
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.temporal.temporal_runs import START_WORKER_HELP, no_poller_message, nobody_answers
from sagas.errors import UsageError
from sagas.text.printable import printable_line
from sagas.text.shell import shell_command

_LONGEST_POLL = 90
"""Seconds within which every worker that runs has begun another poll. Temporal names one that has ended for minutes."""


async def check_version(client: Client, version: WorkerDeploymentVersion) -> None:
    """Raises UsageError if Temporal takes no worker of this version, for example for a name with a dot.

    It refuses the polls of such a worker, and the SDK neither ends nor says so.
    """
    name, build = version.deployment_name, version.build_id
    service, namespace = client.workflow_service, client.namespace
    described = DescribedVersion(deployment_name=name, build_id=build)
    try:  # each of the two requests checks what the other leaves out
        await service.describe_worker_deployment(
            DescribeWorkerDeploymentRequest(namespace=namespace, deployment_name=name), retry=True
        )
    except RPCError as error:
        _refuse_invalid(version, error)
    try:
        await service.describe_worker_deployment_version(
            DescribeWorkerDeploymentVersionRequest(namespace=namespace, deployment_version=described), retry=True
        )
    except RPCError as error:
        _refuse_invalid(version, error)


def _refuse_invalid(version: WorkerDeploymentVersion, error: RPCError) -> None:
    """Any other error says nothing about the names: a new version is not found, and one may lack the right to ask."""
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        names = f"--deployment {printable_line(version.deployment_name)} --build-id {printable_line(version.build_id)}"
        raise UsageError(f"Temporal takes no worker with {names}: {printable_line(error.message)}") from None


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


def no_current_version(version: WorkerDeploymentVersion) -> str:
    """The message for a queue whose workers get no new saga; ``version`` is theirs."""
    return f"no version of the deployment {printable_line(version.deployment_name)} is current, so no saga starts"


def with_set_current_command(version: WorkerDeploymentVersion) -> str:
    """The message, with the command that helps, for places that show no help."""
    return f"{no_current_version(version)} (`{set_current_command(version)}` makes one current)"


_SET_CURRENT = ("temporal", "worker", "deployment", "set-current-version")
_WITH_COMMAND = re.compile(
    rf"no version of the deployment \S+ is current, so no saga starts \("
    rf"`({' '.join(_SET_CURRENT)} --deployment-name [\w-]+ --build-id [\w.+-]+)`"
)


def command_in(reason: str) -> str | None:
    """The command in a message of :func:`with_set_current_command`; None if it is none, or needs quotes."""
    match = _WITH_COMMAND.match(reason)
    return None if match is None else match[1]


def worker_help(reason: str) -> str | None:
    """The remedy for a saga that does not go on for this reason; None if it does not lack a worker."""
    if reason.startswith((no_poller_message(""), nobody_answers(""))):
        return START_WORKER_HELP
    return command_in(reason)


def set_current_command(version: WorkerDeploymentVersion) -> str:
    """The command of Temporal's CLI that makes a version current."""
    words = ("--deployment-name", version.deployment_name, "--build-id", version.build_id)
    return shell_command(*_SET_CURRENT, *words)
