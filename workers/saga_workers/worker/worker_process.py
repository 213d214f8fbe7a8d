"""The worker process of `saga worker`: serves until it is stopped, then finishes what is in flight."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Any

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from saga_activities.concurrency import end_tasks, wait_first
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.watermark import RETENTION
from saga_workers.enqueued.delivering import Delivering, delivered_connections
from saga_workers.ledger.run_ledger import open_ledger
from saga_workers.ledger.upkeep import maintain_ledger_forever
from saga_workers.location.locator import Locator
from saga_workers.reconcile.missing_rows import write_missing_rows_forever
from saga_workers.runtime.background import start_background
from saga_workers.runtime.current_definitions import log_diagnostics
from saga_workers.runtime.garbage import freeze_loaded_objects
from saga_workers.runtime.health import health_server, temporal_readiness
from saga_workers.runtime.logs import fields
from saga_workers.runtime.shutdown import stop_on_signals
from saga_workers.schedules.schedule_setup import set_up_schedules
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_client import connect
from saga_workers.temporal.worker_deployments import check_version, version_to_make_current, with_set_current_command
from saga_workers.worker.guard_retention import CLEANUP_INTERVAL, GuardRetention, longest_attempt
from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.refused_databases import log_refused_databases
from saga_workers.worker.scraped_metrics import scraped_metrics
from saga_workers.worker.spark_support import missing_package, uses_spark
from sagas.project import Project

log = logging.getLogger("saga.worker")

_LOOKS_AT_ROUTING = 10


async def run_worker(
    project: Project,
    *,
    health: str | None = None,
    grace: timedelta = timedelta(seconds=30),
    deployment: WorkerDeploymentVersion | None = None,
    retention: timedelta = timedelta(seconds=RETENTION),
) -> None:
    """Run a worker until SIGTERM or SIGINT; then poll no new tasks, and give attempts in flight ``grace`` to end.

    ``retention``: how long the guards keep a finished saga at least.

    Raises UsageError if no server is configured, an action module cannot be loaded, a port is taken, or Temporal takes
    no worker of this deployment or build.
    """
    actions = project.actions
    log_diagnostics(project.diagnostics)
    client = await connect(project.settings)
    if deployment is not None:
        await check_version(client, deployment)
    plugin = SagaPlugin(project)
    worker = make_worker(client, project, grace=grace, deployment=deployment, plugin=plugin)
    stop = stop_on_signals()
    delivering = Delivering(project, delivered_connections(project.settings, "worker"), stop)
    async with AsyncExitStack() as stack:
        if health is not None:
            metrics = await stack.enter_async_context(scraped_metrics(client, project, plugin, delivering.metrics))
            await stack.enter_async_context(
                health_server(
                    health,
                    stop=stop,
                    ready=partial(_readiness, worker, client),
                    metrics=metrics.collectors,
                    refresh=metrics.refresh,
                )
            )
            looking = start_background(metrics.effects.run_forever, "search for open effects")
            stack.push_async_callback(end_tasks, [looking])
        log.info(
            "serving %d sagas and %d actions on task queue %s of %s",
            len(project.definitions),
            len(actions),
            project.settings.temporal.task_queue,
            client.namespace,
        )
        if project.settings.worker.schedules:
            await set_up_schedules(
                client,
                project,
                done=lambda saga, change: log.info("schedule %s", change, extra=fields(saga=saga)),
                failed=lambda saga, why: log.warning("schedule not set up: %s", why, extra=fields(saga=saga)),
            )
        await stack.enter_async_context(_run_retention(project, plugin, client, retention))
        freeze_loaded_objects()
        deliveries = start_background(partial(delivering.run, grace.total_seconds()), "delivery of enqueued rows")
        stack.push_async_callback(end_tasks, [deliveries])
        if deployment is not None:
            routing = start_background(partial(_report_missing_version, client, project), "look at the deployment")
            stack.push_async_callback(end_tasks, [routing])
        running = asyncio.create_task(worker.run())
        await wait_first(asyncio.wait({running}), stop.wait())
        if not running.done():
            log.info("stopping: attempts in flight have %d s to complete", int(grace.total_seconds()))
            await worker.shutdown()
            await asyncio.wait({deliveries})
        await running


async def _report_missing_version(client: Client, project: Project) -> None:
    """Log how the version of this worker gets new sagas, unless one of its deployment does."""
    for _ in range(_LOOKS_AT_ROUTING):  # Temporal lists a worker only after it has polled
        await asyncio.sleep(1.0)
        with contextlib.suppress(RPCError):
            version = await version_to_make_current(client, project.settings.temporal.task_queue)
            if version is not None:
                log.warning("%s", with_set_current_command(version))
                return


@contextlib.asynccontextmanager
async def _run_retention(
    project: Project, plugin: SagaPlugin, client: Client, retention: timedelta
) -> AsyncIterator[None]:
    """Clean up guards, ledger and stage area in the background, over separate connections: no attempt waits for it."""
    databases = DatabaseConnections(project.settings.sql_connections(), pool_size=1)
    run_ledger = open_ledger(project.settings)
    locator = Locator(client, run_ledger, project.settings)
    work = GuardRetention(
        locator,
        databases,
        retention=retention.total_seconds(),
        longest_transaction=lambda: longest_attempt(plugin.definitions.values()),
        locks=project.settings.lock_connection,
    )
    tasks = {
        start_background(partial(log_refused_databases, databases), "check of the databases"),
        start_background(work.run_forever, "purge of guard tables"),
    }
    if uses_spark(project) and project.settings.spark_ledger is not None and missing_package() is None:
        from saga_spark.settings import spark_settings
        from saga_workers.worker.stage_upkeep import clean_stage_periodically

        # Once the guard rows are purged a saga cannot be undone; the next purge may be one interval away.
        window = retention.total_seconds() + CLEANUP_INTERVAL
        spark = spark_settings(project.settings)
        clearing = partial(clean_stage_periodically, locator, databases, spark, undo_window=window)
        tasks.add(start_background(clearing, "clean-up of the stage area"))
    if (ledger := project.settings.ledger).connection is not None:
        clock, queue = ServerTime(client), project.settings.temporal.task_queue
        upkeep = partial(maintain_ledger_forever, databases, ledger.connection, ledger.retention, clock)
        missing = partial(write_missing_rows_forever, locator, queue, ledger.retention, clock)
        tasks.add(start_background(upkeep, "purge of the ledger"))
        tasks.add(start_background(missing, "writer of missing rows of the ledger"))
    try:
        yield
    finally:
        await end_tasks(tasks)
        await run_ledger.close()
        await databases.close()


async def _readiness(worker: Worker, client: Client) -> str | None:
    return await temporal_readiness(client) if worker.is_running else "starting"


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

    The workflow runs outside Temporal's sandbox: it is the engine's own code, replayed against recorded histories in
    its tests, and the sandbox would take a third of the worker's time.
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
        "max_cached_workflows": project.settings.worker.max_cached_workflows,
        # A sticky task of a killed worker waits this long before another worker may take it; the SDK's default is 10 s.
        "sticky_queue_schedule_to_start_timeout": timedelta(seconds=3),
        # No payload is stored outside Temporal; with a concurrency above one the SDK creates a task for each payload.
        "max_workflow_task_external_storage_concurrency": 1,
        **options,
    }
    task_queue = project.settings.temporal.task_queue
    return Worker(client, task_queue=task_queue, plugins=[plugin or SagaPlugin(project)], **settings)


def build_id(project: Project) -> str:
    """The build id of a worker without a deployment, for the Web UI: the engine's version and the definitions.

    The SDK's default hashes the code of all modules, which takes half a second. Nothing depends on
    it, so twelve digits are enough.
    """
    digests = sorted(definition.digest for definition in project.definitions.values())
    return f"saga-{version('saga-orchestrator')}-{hashlib.sha256(''.join(digests).encode()).hexdigest()[:12]}"
