"""The part of a process that delivers the rows of all databases of ``[enqueue]``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Literal

from saga_activities.concurrency import end_tasks
from saga_activities.connections import DatabaseConnections
from saga_workers.client import Client
from saga_workers.enqueued.deliverer import Deliverer
from saga_workers.enqueued.enqueued_metrics import EnqueuedMetrics
from saga_workers.enqueued.enqueued_table import EnqueuedTable
from saga_workers.enqueued.row_delivery import RowDelivery
from saga_workers.runtime.background import start_background
from saga_workers.start.bulk_wait import check_bulk_wait
from sagas.project import Project
from sagas.settings import Settings

_POOL_SIZE = 6
"""Connections to each database: for the lease, the wake-up, reading, deleting, reasons, and the metrics."""


def delivered_connections(settings: Settings, process: Literal["relay", "worker"]) -> tuple[str, ...]:
    """The connections whose rows such a process delivers. Raises UsageError for settings that exclude each other."""
    enqueue = settings.enqueue
    check_bulk_wait(settings, "enqueue", enqueue.bulk_wait)
    return enqueue.connections if enqueue.delivered_by == process else ()


class Delivering:
    """The deliverers of these connections, in a process that ends with ``stop``. ``once``: as for `saga relay`."""

    def __init__(
        self, project: Project, connections: tuple[str, ...], stop: asyncio.Event, *, once: bool = False
    ) -> None:
        self._once = once
        chosen = [project.settings.sql_connection(name) for name in connections]
        self._databases = DatabaseConnections(chosen, pool_size=_POOL_SIZE)
        engines = {name: self._databases.engine(name) for name in connections}
        self.metrics = EnqueuedMetrics({name: EnqueuedTable(engine) for name, engine in engines.items()})
        self._deliverers = [
            Deliverer(
                name,
                engine,
                RowDelivery(name, project, lambda: Client.connect(project)),
                self.metrics,
                stop,
                once=once,
            )
            for name, engine in engines.items()
        ]

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why rows wait at present, by the names of their connections."""
        return {each.connection: each.trouble for each in self._deliverers if each.trouble}

    async def run(self, grace: float) -> None:
        """Deliver until the stop; deliveries under way then have ``grace`` seconds to end. Raises SagaError, if it is
        to deliver once and something does not answer.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._databases.close)
            tasks = [self._start(each, grace) for each in self._deliverers]
            stack.push_async_callback(end_tasks, tasks)
            await asyncio.gather(*tasks)

    def _start(self, deliverer: Deliverer, grace: float) -> asyncio.Task[None]:
        """Deliver the rows of one database, whatever happens to those of others."""
        if self._once:
            return asyncio.create_task(deliverer.run(grace))
        return start_background(partial(deliverer.run, grace), f"delivery of enqueued rows of {deliverer.connection}")
