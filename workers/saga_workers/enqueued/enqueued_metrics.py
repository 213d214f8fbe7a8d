"""The metrics of a process that delivers enqueued rows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy.exc import SQLAlchemyError

from saga_activities.enqueued.tables import NEW, REFUSED
from saga_workers.enqueued.enqueued_table import Enqueued, EnqueuedTable
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from saga_workers.runtime.metrics import Refreshed, without_created

log = logging.getLogger("saga.enqueued")

OUTCOMES = ("started", "existed", "signalled", "refused")
TIMED = ("started", "signalled")
"""The outcomes whose time is told: what existed may be a row of long ago."""

GAUGE_MAX_AGE = 5.0
"""Seconds for which the values are reused."""

_GAUGE_TIMEOUT = 5.0
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class EnqueuedMetrics:
    """Described in docs/reference/metrics.md. A Prometheus collector; call ``refresh`` first.

    ``tables``: by the names of their connections.
    """

    def __init__(self, tables: Mapping[str, EnqueuedTable]) -> None:
        registry = self._registry = CollectorRegistry()
        self._delivered = Counter(
            "saga_enqueued_delivered_total",
            "Rows of saga_enqueued that were delivered or refused.",
            ["connection", "outcome"],
            registry=registry,
        )
        self._delivery_seconds = Histogram(
            "saga_enqueued_delivery_seconds",
            "From the insert of a row to the start of its saga, or to its signal.",
            ["connection"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._tables = tables
        self._counts: dict[str, Mapping[str, Enqueued]] = {}
        self.refresh = Refreshed(self._query_all, GAUGE_MAX_AGE).refresh
        """Query the databases, unless the values are recent. Those of a database that does not answer are left out."""
        for name in tables:
            self._delivery_seconds.labels(name)
            for outcome in OUTCOMES:
                self._delivered.labels(name, outcome)

    def count(self, connection: str, outcome: str, seconds: float) -> None:
        """Count a row that was finished so many seconds after it was written."""
        self._delivered.labels(connection, outcome).inc()
        if outcome in TIMED:
            self._delivery_seconds.labels(connection).observe(max(0.0, seconds))

    async def _query_all(self) -> None:
        await asyncio.gather(*(self._query(name, table) for name, table in self._tables.items()))

    async def _query(self, name: str, table: EnqueuedTable) -> None:
        self._counts.pop(name, None)
        try:
            async with asyncio.timeout(_GAUGE_TIMEOUT):
                self._counts[name] = await table.counts()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.debug("gauges not refreshed: %s", driver_message(error), extra=fields(connection=name))

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        yield from without_created(self._registry)
        rows = GaugeMetricFamily(
            "saga_enqueued_rows", "Rows of saga_enqueued, by status.", labels=["connection", "status"]
        )
        oldest = GaugeMetricFamily(
            "saga_enqueued_oldest_seconds", "Seconds the oldest row has waited for its delivery.", labels=["connection"]
        )
        for name, counts in self._counts.items():
            oldest.add_metric([name], counts.get(NEW, Enqueued()).oldest)
            for status in (NEW, REFUSED):
                rows.add_metric([name, status], counts.get(status, Enqueued()).rows)
        yield from (rows, oldest)
