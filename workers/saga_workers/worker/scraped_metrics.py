"""All that a worker shows when it is scraped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from prometheus_client.registry import Collector
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client

from saga_activities.connections import DatabaseConnections
from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.runtime.current_definitions import CurrentDefinitions
from saga_workers.views.prepared import two_phase_connections
from saga_workers.worker.failing_task_gauges import FailingTaskGauges
from saga_workers.worker.lock_gauges import LockGauges
from saga_workers.worker.open_effects import OpenEffects
from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.poller_gauges import PollerGauges
from saga_workers.worker.prepared_gauges import PreparedGauges
from saga_workers.worker.reader_gauges import ReaderGauges
from saga_workers.worker.worker_metrics import SagaGauges, WorkerMetrics
from sagas.project import Project
from sagas.settings import SqlConnection


@dataclass(frozen=True, slots=True)
class ScrapedMetrics:
    """The collectors of an endpoint, and what updates them before a scrape. ``effects`` is updated in the background:
    call its ``run_forever``.
    """

    collectors: tuple[Collector, ...]
    effects: OpenEffects
    queries: tuple[Callable[[], Awaitable[None]], ...]
    current: CurrentDefinitions
    metrics: WorkerMetrics

    async def refresh(self) -> None:
        definitions = await self.current.read()  # the labels have their names
        self.metrics.initialize(definitions.values())
        await asyncio.gather(*(query() for query in self.queries))


@contextlib.asynccontextmanager
async def scraped_metrics(
    client: Client, project: Project, plugin: SagaPlugin, enqueued: EnqueuedMetrics
) -> AsyncIterator[ScrapedMetrics]:
    """The metrics of the worker of this project. ``enqueued``: those of the rows that it delivers."""
    settings, current = project.settings, CurrentDefinitions(project)
    sagas = SagaGauges(
        client,
        lambda: project.definitions,
        plugin.pauses and plugin.pauses.current,
        plugin.breakers and plugin.breakers.states,
    )
    pollers = PollerGauges(client, lambda: project.definitions, settings.temporal.task_queue)
    failing = FailingTaskGauges(client, lambda: project.definitions)
    effects = OpenEffects(client, settings)
    databases = DatabaseConnections(settings.sql_connections(), pool_size=1)
    readers = ReaderGauges(project, lambda: databases.engine(settings.kafka.outbox or ""))
    gauges: list[
        SagaGauges | PollerGauges | FailingTaskGauges | EnqueuedMetrics | LockGauges | PreparedGauges | ReaderGauges
    ]
    gauges = [sagas, pollers, failing, enqueued, readers]

    def prepared() -> dict[str, tuple[SqlConnection, AsyncEngine]]:
        names = sorted(two_phase_connections(project.definitions))
        return {name: (settings.sql_connection(name), databases.engine(name)) for name in names}

    gauges.append(PreparedGauges(prepared))
    if (locks := settings.lock_connection) is not None:
        gauges.append(LockGauges(locks, databases.engine(locks)))
    try:
        yield ScrapedMetrics(
            (plugin.metrics, effects, *gauges),
            effects,
            tuple(gauge.refresh for gauge in gauges),
            current,
            plugin.metrics,
        )
    finally:
        await databases.close()
