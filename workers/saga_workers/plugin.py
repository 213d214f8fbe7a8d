"""`SagaPlugin`: everything a Temporal worker or client needs to run sagas, in one value."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.plugin import SimplePlugin
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from saga_activities.connections import Connections
from saga_activities.dispatch import Dispatcher
from saga_activities.http import HttpConnections, http_settings
from saga_activities.load import Loader
from saga_activities.performer import Performer
from saga_activities.request.performing import Requests
from saga_activities.temporal import SagaActivities
from saga_workers.attempt_log import log_attempt
from saga_workers.details import DetailsInterceptor
from saga_workers.headers import HeaderInterceptor
from saga_workers.metrics import Metrics
from saga_workers.search_attributes import present
from saga_workers.spark import performers, spark_steps
from saga_workers.tracing_setup import tracing_from_environment, tracing_interceptors
from saga_workers.watching import WatchInterceptor
from sagas.errors import RefusedError
from sagas.project import Project
from sagas.settings import load_settings
from sagas.workflow import NotifyWorkflow, SagaWorkflow

if TYPE_CHECKING:
    from saga_workers.tracing import Tracing


PACKAGES = ("sagas", "saga_activities", "saga_spark", "saga_workers")

HEARTBEAT_THROTTLE = timedelta(seconds=1)


class SagaPlugin(SimplePlugin):
    """Adds the sagas of a project to a worker of one's own.

        client = await Client.connect(address, plugins=[SagaPlugin()])
        async with Worker(client, task_queue="sagas", workflows=[MyWorkflow], activities=[my_activity]):
            ...

    It brings the workflow of all sagas, one dynamic activity for their actions, and the client's part of a start. A
    worker can have one dynamic workflow and one dynamic activity, so one with its own cannot take this plugin too.

    Args:
        project: the project; default: the one found from the current folder upwards.
        metrics: where to count; default: a collector of its own, the attribute ``metrics``.
        tracing: where spans go; default: what the OTEL_* variables say, which is nowhere unless they are set.
    """

    def __init__(
        self, project: Project | None = None, *, metrics: Metrics | None = None, tracing: Tracing | None = None
    ) -> None:
        self._project = project or Project(load_settings())
        self._open: tuple[Connections, HttpConnections, Performer | None] | None = None
        self.metrics = metrics or Metrics()
        self._tracing = tracing or tracing_from_environment()
        super().__init__(
            "saga-orchestrator",
            workflows=[SagaWorkflow, NotifyWorkflow],
            workflow_runner=_pass_through,
            interceptors=[
                HeaderInterceptor(),
                DetailsInterceptor(),
                WatchInterceptor(self.metrics),
                *tracing_interceptors(self._tracing),
            ],
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Temporal calls this when a worker is made."""
        config = super().configure_worker(config)
        connections = self._project.settings.connections.values()
        databases = Connections(
            {one.name: {**one.options, "kind": "sql", "url": one.url} for one in connections if one.kind == "sql"}
        )
        http = HttpConnections({one.name: http_settings(one) for one in connections if one.kind == "http"})
        spark = spark_steps(self._project, databases)
        self._open = (databases, http, spark)
        client = config.get("client")
        assert client is not None
        kafka = self._project.settings.kafka
        dispatcher = Dispatcher(
            self._project.actions,
            databases,
            http,
            performers(spark),
            Requests(databases, kafka),
            max_event_bytes=kafka.max_message_bytes,
        )
        watchers = [log_attempt, self.metrics.watch, *([self._tracing.watch] if self._tracing else ())]
        activities = SagaActivities(dispatcher, _loader(client, self._project), watchers)
        config["activities"] = [*config.get("activities", ()), activities.perform]
        # Heartbeats of guarded attempts must not be held back for longer than they may be late.
        config["max_heartbeat_throttle_interval"] = min(
            config.get("max_heartbeat_throttle_interval", HEARTBEAT_THROTTLE), HEARTBEAT_THROTTLE
        )
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """Temporal calls this around the worker's life; the connections close with it."""
        try:
            await super().run_worker(worker, next)
        finally:
            if self._open is not None:
                databases, http, spark = self._open
                if spark is not None:
                    await spark.close()
                await databases.close()
                await http.aclose()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.flush)


def _pass_through(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Let Temporal's sandbox import the engine once; the rest of the user's own runner stays as it is.

    All packages of the engine, not only the one that workflows run: a file with a workflow is imported again inside the
    sandbox, and if it says `from sagas import SagaPlugin`, database drivers and HTTP clients come with it.
    """
    if isinstance(runner, SandboxedWorkflowRunner):
        restrictions = runner.restrictions.with_passthrough_modules(*PACKAGES, "re2")
        return dataclasses.replace(runner, restrictions=restrictions)
    assert runner is not None
    return runner


def _loader(client: Client, project: Project) -> Loader:
    async def read_machine(saga_id: str) -> str | None:
        handle = client.get_workflow_handle(saga_id)
        try:
            described = await handle.describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise
        if described.status is WorkflowExecutionStatus.RUNNING:
            raise RefusedError(f"{saga_id} is still running; cancel it instead of undoing it")
        return await handle.query("machine", result_type=str)

    names: list[str] = []

    async def list_attributes() -> list[str]:
        if not names:
            names.extend(await present(client))
        return names

    return Loader(project, read_machine, list_attributes)
