"""The endpoints of the processes of a stack, as Prometheus scrapes them, and what it is to see besides the states."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from saga_activities.connections import DatabaseConnections, open_engine
from saga_activities.enqueued.tables import create_tables
from saga_workers.enqueued.delivering import Delivering
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.outbox_table import OutboxTable
from saga_workers.relay.relay_metrics import RelayMetrics
from saga_workers.relay.relay_status import OutboxGauges
from saga_workers.runtime.health import health_server
from saga_workers.runtime.lease import Leases
from saga_workers.runtime.wakeup import Wakeup
from saga_workers.serve.api import requests_counter
from saga_workers.worker.plugin import SagaPlugin
from saga_workers.worker.scraped_metrics import ScrapedMetrics, scraped_metrics
from sagas.settings import Settings
from tests.helpers.free_ports import free_ports
from tests.helpers.waiting import until
from tests.integration.operators.troubled_project import Stack, project_of

PROCESSES = ("worker", "ledger_worker", "idle_worker", "relay", "serve")
"""``idle_worker`` is scraped, and polls nothing."""


def choose_endpoints() -> dict[str, str]:
    """An address for each of the processes."""
    return {name: f"127.0.0.1:{port}" for name, port in free_ports(*PROCESSES).items()}


@dataclass
class Endpoints:
    """The endpoints of a stack that runs. ``workers``: their metrics; ``delivering``: what delivers enqueued rows."""

    workers: Sequence[ScrapedMetrics]
    outboxes: OutboxGauges
    delivering: Delivering

    async def refresh(self) -> list[Metric]:
        """Look for open effects, which a worker does in the background; all metrics."""
        await asyncio.gather(*(worker.effects.refresh() for worker in self.workers))
        await asyncio.gather(*(worker.refresh() for worker in self.workers), self.outboxes.refresh())
        collectors = [collector for worker in self.workers for collector in worker.collectors]
        return [metric for collector in (*collectors, self.outboxes) for metric in collector.collect()]


@contextlib.asynccontextmanager
async def running_endpoints(stack: Stack, addresses: Mapping[str, str]) -> AsyncIterator[Endpoints]:
    """Serve the metrics of each process of the stack. ``addresses``: by the names of the processes."""
    stop, ledger = asyncio.Event(), stack.ledger.project
    delivering = Delivering(ledger, ("shop",), stop, once=True)
    idle = project_of(stack.folder, "idle.toml")
    parts = (
        (stack.client.project, stack.plugin, Delivering(stack.client.project, (), stop)),
        (ledger, stack.ledger_plugin, delivering),
        (idle, SagaPlugin(idle), Delivering(idle, (), stop)),
    )
    async with contextlib.AsyncExitStack() as context:
        workers = [
            await context.enter_async_context(scraped_metrics(stack.client.temporal, project, plugin, enqueued.metrics))
            for project, plugin, enqueued in parts
        ]
        outboxes = await context.enter_async_context(outbox_gauges(stack.client.project.settings))
        requests = requests_counter(CollectorRegistry())
        requests.labels("200").inc()
        served: Sequence[tuple[Sequence[Collector], Callable[[], Awaitable[None]]]]
        served = [*((worker.collectors, worker.refresh) for worker in workers)]
        served = [*served, ((outboxes,), outboxes.refresh), ((requests,), _is_ready)]
        for name, (collectors, refresh) in zip(PROCESSES, served, strict=True):
            server = health_server(addresses[name], stop=stop, ready=_is_ready, metrics=collectors, refresh=refresh)
            await context.enter_async_context(server)
        engine = open_engine("shop", stack.url, 1)
        await create_tables(engine)
        await engine.dispose()
        yield Endpoints(workers, outboxes, delivering)


async def _is_ready() -> None:
    return None


@contextlib.asynccontextmanager
async def outbox_gauges(settings: Settings) -> AsyncIterator[OutboxGauges]:
    """The gauges of a relay that does not publish."""
    databases = DatabaseConnections(settings.sql_connections(), pool_size=1)
    guard = databases.guard("shop")
    table, leases = OutboxTable(guard.engine), Leases(guard.engine, "a test")
    home, wakeup = await table.read_identity(), Wakeup(guard.engine)
    outbox = Outbox(guard, settings.kafka, home, table, leases, wakeup, RelayMetrics(), asyncio.Event())
    try:
        yield OutboxGauges([outbox])
    finally:
        await databases.close()


async def leave_enqueued_rows(stack: Stack, delivering: Delivering) -> None:
    """One row that is refused, because there is no such saga, one that is delivered, and one that nobody delivers."""
    insert = "insert into saga_enqueued (saga, input, created_at) values (%s, '{}', %s)"
    for saga in ("unknown", "other"):
        stack.sql(insert, saga, time.time())
    await delivering.run(10.0)
    stack.sql(insert, "emitting", time.time() - 120)


async def lose_a_ledger_row(stack: Stack) -> None:
    """A saga whose row the database of the ledger refuses."""
    stack.sql("alter table saga_run add constraint refused check (saga <> 'refused-by-ledger')")
    id = await stack.start("refused-by-ledger", client=stack.ledger)

    async def ended() -> bool:
        return await stack.state(id, stack.ledger) == "COMPLETED"

    await until(ended)
