"""The gauge of sagas with open effects that no run will undo or complete, by their verdicts.

Every `saga worker` with a health address looks for them in the background, and logs each when it is first seen.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.location.locator import using_locator
from saga_workers.runtime.logs import fields
from saga_workers.stuck.guard_scan import GuardScan
from saga_workers.stuck.open_sagas import find_left_members, find_lost, find_terminated
from saga_workers.stuck.verdict import OpenSaga, left_saga
from sagas.errors import SagaError
from sagas.settings import Settings

log = logging.getLogger("saga.metrics")

INTERVAL = 60.0
"""Seconds between two rounds."""

PORTION = 5_000
"""Sagas of the guards that are read in one round; the next round continues after them."""

_MAX_TERMINATED = 500


class OpenEffects:
    """A Prometheus collector of the latest round."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._scan = GuardScan(settings)
        self._without_effects: set[str] = set()
        """The ids of terminated runs that have no effects."""
        self._open: Mapping[str, OpenSaga] | None = None
        """The sagas by id; None until the first round is complete."""
        self._deleted: set[str] = set()
        """The sagas without a run of the last complete round: the next one looks for others in the guards."""

    async def run_forever(self) -> None:
        """A round now and one a minute; an error is logged, and the values are left out until the next."""
        while True:
            try:
                await self.refresh()
            except (SagaError, RPCError, TimeoutError) as error:
                self._open = None
                log.warning("sagas with open effects cannot be counted: %s", error)
            await asyncio.sleep(INTERVAL)

    async def refresh(self) -> None:
        """One round. Raises SagaError, RPCError."""
        settings, before = self._settings, self._open or {}
        async with using_locator(self._client, settings) as locator:
            terminated = await find_terminated(
                locator, settings.temporal.task_queue, _MAX_TERMINATED, self._without_effects
            )
            members = [left_saga(member) for member in await find_left_members(locator)]
            deleted = await find_lost(locator, settings, suspects=self._deleted, scan=self._scan, portion=PORTION)
        self._deleted = {saga.saga_id for saga in deleted}
        self._open = {saga.saga_id: saga for saga in (*members, *terminated, *deleted)}
        for id in self._open.keys() - before.keys():
            saga = self._open[id]
            log.warning("open effects: %s", saga.reason, extra=fields(saga=saga.saga or "unknown", saga_id=id))

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        gauge = GaugeMetricFamily(
            "saga_open_effects", "Sagas whose effects no run will undo or complete.", labels=["saga", "why"]
        )
        sagas = (self._open or {}).values()
        counts = collections.Counter((saga.saga or "unknown", saga.verdict) for saga in sagas)
        for (saga, why), count in sorted(counts.items()):
            gauge.add_metric([saga, why], count)
        yield gauge
