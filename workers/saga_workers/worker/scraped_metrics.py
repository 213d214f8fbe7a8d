"""All that a worker shows when it is scraped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from prometheus_client.registry import Collector
from temporalio.client import Client

from saga_activities.connections import DatabaseConnections
from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.runtime.current_definitions import CurrentDefinitions
from saga_workers.views.prepared import two_phase_connections
from saga_workers.worker.lock_gauges import LockGauges
from saga_workers.worker.open_effects import OpenEffects
from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.poller_gauges import PollerGauges
from saga_workers.worker.prepared_gauges import PreparedGauges
from saga_workers.worker.worker_metrics import SagaGauges
from sagas.project import Project


@dataclass(frozen=True, slots=True)
class ScrapedMetrics:
    """The collectors of an endpoint, and what updates them before a scrape. ``effects`` is updated in the background:
    call its ``run_forever``.
    """

    collectors: tuple[Collector, ...]
    effects: OpenEffects
    queries: tuple[Callable[[], Awaitable[None]], ...]
    current: CurrentDefinitions

    async def refresh(self) -> None:
        await self.current.read()  # the labels have the names of its definitions
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
    pollers = PollerGauges(client, project.definitions.values(), settings.temporal.task_queue)
    effects = OpenEffects(client, settings)
    gauges: list[SagaGauges | PollerGauges | EnqueuedMetrics | LockGauges | PreparedGauges] = [sagas, pollers, enqueued]
    locks, two_phase = settings.lock_connection, sorted(two_phase_connections(project.definitions))
    asked = [settings.sql_connection(name) for name in {*two_phase, *([] if locks is None else [locks])}]
    databases = DatabaseConnections(asked, pool_size=1)
    if locks is not None:
        gauges.append(LockGauges(locks, databases.engine(locks)))
    if two_phase:
        gauges.append(
            PreparedGauges({name: (settings.sql_connection(name), databases.engine(name)) for name in two_phase})
        )
    try:
        yield ScrapedMetrics(
            (plugin.metrics, effects, *gauges), effects, tuple(gauge.refresh for gauge in gauges), current
        )
    finally:
        await databases.close()
