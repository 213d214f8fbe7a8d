"""The gauges of the semantic locks of a project, from their tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.locks.lock_list import LockAges, read_ages
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from saga_workers.runtime.metrics import Refreshed

log = logging.getLogger("saga.metrics")

GAUGE_MAX_AGE = 15.0
"""Seconds for which the values are reused."""

_GAUGE_TIMEOUT = 5.0


class LockGauges:
    """A Prometheus collector of the latest values; ``refresh`` updates them. ``connection``: its name."""

    def __init__(self, connection: str, engine: AsyncEngine) -> None:
        self._connection, self._engine = connection, engine
        self._ages: LockAges | None = None
        self.refresh = Refreshed(self._query, GAUGE_MAX_AGE).refresh
        """Query the database, unless the values are recent. If it does not answer, the gauges disappear."""

    async def _query(self) -> None:
        try:
            async with asyncio.timeout(_GAUGE_TIMEOUT):
                self._ages = await read_ages(self._engine)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._ages = None
            context = fields(connection=self._connection)
            log.debug("the ages of the locks are not known: %s", driver_message(error), extra=context)

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        held = GaugeMetricFamily(
            "saga_lock_oldest_seconds", "Seconds for which the oldest lock has been held.", labels=["connection"]
        )
        waiting = GaugeMetricFamily(
            "saga_lock_wait_oldest_seconds", "Seconds the oldest request for a lock has waited.", labels=["connection"]
        )
        if self._ages is not None:
            held.add_metric([self._connection], self._ages.held)
            waiting.add_metric([self._connection], self._ages.waiting)
        yield from (held, waiting)
