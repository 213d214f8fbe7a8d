"""The worker process: serve until told to stop, then finish what is in flight."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from datetime import timedelta

from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import Worker

from sagas.project import Project
from workers.health import HealthServer
from workers.serve import make_worker
from workers.temporal_client import connect

log = logging.getLogger("saga.worker")


async def run_worker(
    project: Project,
    *,
    health: str | None = None,
    grace: timedelta = timedelta(seconds=30),
    deployment: WorkerDeploymentVersion | None = None,
) -> None:
    """Run a worker until SIGTERM or SIGINT; then take nothing new and give attempts in flight ``grace`` to end.

    Raises UsageError: no server, an action module that cannot be loaded, a port that is taken.
    """
    actions = project.actions
    for diagnostic in project.diagnostics:
        log.warning("%s:%s %s %s", diagnostic.file, diagnostic.line, diagnostic.code, diagnostic.message)
    client = await connect(project.settings)
    worker = make_worker(client, project, grace=grace, deployment=deployment)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        if health is not None:
            await stack.enter_async_context(HealthServer(health, _pages(worker, client, stop)))
        log.info(
            "serving %d sagas and %d actions on task queue %s of %s",
            len(project.definitions),
            len(actions),
            project.settings.temporal.task_queue,
            client.namespace,
        )
        running = asyncio.create_task(worker.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            log.info("stopping: attempts in flight have %d s to end", int(grace.total_seconds()))
            await worker.shutdown()
        stopping.cancel()
        await running


def _pages(worker: Worker, client: object, stop: asyncio.Event) -> dict:
    from temporalio.client import Client

    assert isinstance(client, Client)

    async def live() -> tuple[int, str]:
        return 200, "ok\n"

    async def ready() -> tuple[int, str]:
        if stop.is_set() or not worker.is_running:
            return 503, "stopping\n" if stop.is_set() else "starting\n"
        try:
            await client.service_client.check_health(timeout=timedelta(seconds=2))
        except RPCError as error:
            return 503, f"Temporal does not answer: {error.message}\n"
        return 200, "ready\n"

    return {"/livez": live, "/readyz": ready}
