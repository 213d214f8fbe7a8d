"""The gauge of the prepared transactions that are too old, from the databases in which steps prepare them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.two_phase.prepared import PreparedTransaction, list_prepared
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from saga_workers.runtime.metrics import Refreshed
from sagas.settings import SqlConnection

log = logging.getLogger("saga.metrics")

GAUGE_MAX_AGE = 15.0
"""Seconds for which the values are reused."""

_GAUGE_TIMEOUT = 5.0


class PreparedGauges:
    """A Prometheus collector of the latest values; ``refresh`` updates them. ``databases`` gives those of the
    connections in which steps prepare transactions, as the definitions are now.
    """

    def __init__(self, databases: Callable[[], Mapping[str, tuple[SqlConnection, AsyncEngine]]]) -> None:
        self._databases = databases
        self._old: dict[str, Mapping[str, int]] = {}
        self.refresh = Refreshed(self._query, GAUGE_MAX_AGE).refresh
        """Query the databases, unless the values are recent. One that does not answer has no value."""

    async def _query(self) -> None:
        databases = self._databases()
        counted = await asyncio.gather(*(self._count(*each) for each in databases.values()))
        self._old = {name: counts for name, counts in zip(databases, counted, strict=True) if counts is not None}

    async def _count(self, connection: SqlConnection, engine: AsyncEngine) -> Mapping[str, int] | None:
        try:
            async with asyncio.timeout(_GAUGE_TIMEOUT):
                prepared = await list_prepared(engine)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.debug(
                "the prepared transactions are not counted: %s",
                driver_message(error),
                extra=fields(connection=connection.name),
            )
            return None
        old = [each for each in prepared if each.is_older_than(connection.prepared_warn_after)]
        return {"saga": _of_sagas(old), "other": len(old) - _of_sagas(old)}

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        gauge = GaugeMetricFamily(
            "saga_prepared_old",
            "Prepared transactions that are older than `prepared_warn_after` of their connection.",
            labels=["connection", "owner"],
        )
        for connection, counts in self._old.items():
            for owner, count in counts.items():
                gauge.add_metric([connection, owner], count)
        yield gauge


def _of_sagas(prepared: Sequence[PreparedTransaction]) -> int:
    return sum(1 for each in prepared if not each.is_foreign)
