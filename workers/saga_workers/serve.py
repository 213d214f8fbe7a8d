"""Runs a worker of our own: `saga worker`."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from saga_workers.plugin import SagaPlugin
from sagas.project import Project


def make_worker(
    client: Client,
    project: Project,
    *,
    grace: timedelta = timedelta(seconds=30),
    deployment: WorkerDeploymentVersion | None = None,
    plugin: SagaPlugin | None = None,
    **options: Any,
) -> Worker:
    """A worker that serves the project's sagas; use it as an async context manager.

    The workflow runs outside Temporal's sandbox: it is the engine's own code, replayed against recorded histories
    in its tests, and the sandbox would cost a third of the worker's time.
    """
    config = None
    if deployment is not None:
        config = WorkerDeploymentConfig(
            version=deployment,
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED,
        )
    settings: dict[str, Any] = {
        "workflow_runner": UnsandboxedWorkflowRunner(),
        "graceful_shutdown_timeout": grace,
        "deployment_config": config,
        "build_id": None if deployment is not None else build_id(project),
        "workflow_task_poller_behavior": PollerBehaviorSimpleMaximum(10),
        "activity_task_poller_behavior": PollerBehaviorSimpleMaximum(10),
        # A task for a worker that was killed waits this long before another one may take it; the SDK's own is 10 s.
        "sticky_queue_schedule_to_start_timeout": timedelta(seconds=3),
        # No payload is stored outside of Temporal; for more than one at a time the SDK makes a task of every payload.
        "max_workflow_task_external_storage_concurrency": 1,
        **options,
    }
    task_queue = project.settings.temporal.task_queue
    return Worker(client, task_queue=task_queue, plugins=[plugin or SagaPlugin(project)], **settings)


def build_id(project: Project) -> str:
    """What the Web UI calls the build of a worker that has no deployment: the engine's version and the definitions.

    The SDK's own is a hash over the code of all modules, which takes half a second to read.
    """
    digests = sorted(one.digest for one in project.definitions.values())
    return f"saga-{version('saga-orchestrator')}-{hashlib.sha256(''.join(digests).encode()).hexdigest()[:12]}"
