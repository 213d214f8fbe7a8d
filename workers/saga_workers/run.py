"""The worker process: serve until told to stop, then finish what is in flight."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

from prometheus_client import CollectorRegistry, generate_latest
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import Worker

from saga_activities.connections import Connections
from saga_activities.guard.watermark import RETENTION
from saga_workers.health import Answer, HealthServer, Page, live, temporal_answers
from saga_workers.metrics import Metrics
from saga_workers.plugin import SagaPlugin
from saga_workers.serve import make_worker
from saga_workers.spark import missing_package, uses_spark
from saga_workers.standing import StandingMetrics
from saga_workers.stopping import stop_on_signals
from saga_workers.temporal_client import connect
from saga_workers.upkeep import PERIOD, Upkeep, longest_attempt
from sagas.project import Project

log = logging.getLogger("saga.worker")


async def run_worker(
    project: Project,
    *,
    health: str | None = None,
    grace: timedelta = timedelta(seconds=30),
    deployment: WorkerDeploymentVersion | None = None,
    retention: timedelta = timedelta(seconds=RETENTION),
) -> None:
    """Run a worker until SIGTERM or SIGINT; then take nothing new and give attempts in flight ``grace`` to end.

    ``retention`` is how long the guards remember a finished saga at least.

    Raises UsageError: no server, an action module that cannot be loaded, a port that is taken.
    """
    actions = project.actions
    for diagnostic in project.diagnostics:
        log.warning("%s:%s %s %s", diagnostic.file, diagnostic.line, diagnostic.code, diagnostic.message)
    client = await connect(project.settings)
    plugin = SagaPlugin(project)
    worker = make_worker(client, project, grace=grace, deployment=deployment, plugin=plugin)
    stop = stop_on_signals()
    async with AsyncExitStack() as stack:
        if health is not None:
            standing = StandingMetrics(client, project.definitions.values())
            pages = {**_pages(worker, client, stop), "/metrics": _metrics(plugin.metrics, standing)}
            await stack.enter_async_context(HealthServer(health, pages))
        log.info(
            "serving %d sagas and %d actions on task queue %s of %s",
            len(project.definitions),
            len(actions),
            project.settings.temporal.task_queue,
            client.namespace,
        )
        await stack.enter_async_context(_upkeep(project, client, retention))
        _spare_the_collector()
        running = asyncio.create_task(worker.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            log.info("stopping: attempts in flight have %d s to end", int(grace.total_seconds()))
            await worker.shutdown()
        stopping.cancel()
        await running


def _spare_the_collector() -> None:
    """What is loaded now lives as long as the process: nobody needs to look through it for garbage again and again.

    A full collection would stop every attempt for a tenth of a second; afterwards it looks only at what has come since.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)  # generations of 700 objects are over within a few attempts


@contextlib.asynccontextmanager
async def _upkeep(project: Project, client: Client, retention: timedelta) -> AsyncIterator[None]:
    """Clean guards and stage area in the background, over connections of its own: attempts never wait for it."""
    databases = Connections(
        {one.name: {**one.options, "kind": "sql", "url": one.url} for one in project.settings.sql_connections()},
        pool_size=1,
    )
    work = Upkeep(
        client,
        databases,
        retention=retention.total_seconds(),
        longest_transaction=longest_attempt(project.definitions.values()),
    )
    tasks = {asyncio.create_task(work.run_for_ever(), name="the guards are")}
    if uses_spark(project) and project.settings.spark_ledger is not None and missing_package() is None:
        from saga_spark.settings import spark_settings
        from saga_workers.stage_upkeep import keep_stage_clear

        # What the guards have forgotten can no longer be undone; a round of theirs may be an hour away.
        window = retention.total_seconds() + PERIOD
        clearing = keep_stage_clear(client, databases, spark_settings(project.settings), undo_window=window)
        tasks.add(asyncio.create_task(clearing, name="the stage area is"))
    for task in tasks:
        task.add_done_callback(_tell_of_a_bug)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await databases.close()


def _tell_of_a_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("%s no longer cleaned up: this is a bug in saga", task.get_name(), exc_info=task.exception())


def _metrics(metrics: Metrics, standing: StandingMetrics) -> Page:
    registry = CollectorRegistry()
    registry.register(metrics)
    registry.register(standing)

    async def show() -> Answer:
        await standing.refresh()
        return 200, generate_latest(registry).decode()

    return show


def _pages(worker: Worker, client: Client, stop: asyncio.Event) -> dict[str, Page]:
    async def ready() -> Answer:
        if stop.is_set() or not worker.is_running:
            return 503, "stopping\n" if stop.is_set() else "starting\n"
        return await temporal_answers(client)

    return {"/livez": live, "/readyz": ready}
