"""The gauge of sagas with open effects that no run will undo or complete: deleted runs, terminated ones.

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

from saga_workers.location.deleted_runs import describe_deleted_run, find_deleted_runs
from saga_workers.location.guard_scan import GuardScan
from saga_workers.location.locator import Locator, using_locator
from saga_workers.reconcile.left_claims import list_left_claims
from saga_workers.runtime.logs import fields
from saga_workers.views.answering import Workers
from saga_workers.views.parked_holders import ParkedHolders
from saga_workers.views.stuck import inspect_run, list_terminated
from sagas.errors import SagaError
from sagas.settings import Settings
from sagas.text.shell import saga_command

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
        self._deleted: dict[str, str] = {}
        """The sagas without a run, by id, each with its name."""
        self._without_effects: set[str] = set()
        """The ids of terminated runs that have no effects."""
        self._open: Mapping[str, tuple[str, str]] | None = None
        """The sagas by id, each with its name and why nothing ends it; None until the first round is complete."""

    async def run_forever(self) -> None:
        """A round now and one a minute; an error is logged, and the values are left out until the next."""
        while True:
            try:
                await self.refresh()
            except (SagaError, RPCError, TimeoutError) as error:
                self._open = None
                log.warning("sagas with open effects and without a run not counted: %s", error)
            await asyncio.sleep(INTERVAL)

    async def refresh(self) -> None:
        """One round. Raises SagaError, RPCError."""
        async with using_locator(self._client, self._settings) as locator:
            before = self._open or {}
            self._open = {
                **{id: (saga, "terminated") for id, saga in (await self._find_terminated(locator)).items()},
                **{id: (saga, "no run") for id, saga in (await self._find_deleted(locator)).items()},
            }
        for id, (saga, why) in self._open.items():
            if id not in before:
                about = fields(saga=saga, saga_id=id)
                command = saga_command("resume", id)
                log.warning("its effects are open, and it has %s: %s", _IN_WORDS[why], command, extra=about)

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        gauge = GaugeMetricFamily(
            "saga_open_effects", "Sagas whose effects no run will undo or complete.", labels=["saga", "why"]
        )
        for (saga, why), count in sorted(collections.Counter((self._open or {}).values()).items()):
            gauge.add_metric([saga, why], count)
        yield gauge

    async def _find_deleted(self, locator: Locator) -> dict[str, str]:
        """The sagas without a run: those of this round, and those of earlier ones that still have none."""
        settings = self._settings
        deleted = {
            saga.saga_id: saga for saga in await find_deleted_runs(locator, settings, scan=self._scan, portion=PORTION)
        }
        for id in self._deleted.keys() - deleted.keys():
            if (saga := await describe_deleted_run(settings, await locator.locate(id))) is not None:
                deleted[id] = saga
        self._deleted = {id: saga.saga or "unknown" for id, saga in deleted.items()}
        return self._deleted

    async def _find_terminated(self, locator: Locator) -> dict[str, str]:
        """The sagas whose newest run, or whose bulk workflow, was closed from outside."""
        workers = Workers(locator.temporal)
        holders = ParkedHolders(locator, workers)
        closed = {claim.saga_id: claim.saga for claim in await list_left_claims(locator)}
        runs = await list_terminated(locator, self._settings.temporal.task_queue, _MAX_TERMINATED)
        for run in runs:
            if run.run_id in self._without_effects:
                continue
            view = await inspect_run(locator, run, workers, holders, None)
            if view is not None and view.state == "TERMINATED":
                closed[view.id] = view.saga
            else:
                self._without_effects.add(run.run_id)
        self._without_effects &= {run.run_id for run in runs}
        return closed


_IN_WORDS = {"no run": "no run in Temporal any more", "terminated": "been terminated"}
