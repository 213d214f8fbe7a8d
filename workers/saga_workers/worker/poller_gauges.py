"""The gauge of the workers that poll the task queues of a project, from Temporal."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.runtime.metrics import Refreshed
from saga_workers.temporal.step_queues import actions_on_other_queues
from saga_workers.temporal.temporal_runs import count_pollers
from saga_workers.worker.metric_labels import Definitions

log = logging.getLogger("saga.metrics")

GAUGE_MAX_AGE = 15.0
"""Seconds for which the values are reused."""


class PollerGauges:
    """A Prometheus collector of the latest values; ``refresh`` updates them. ``definitions`` gives those of the
    project, as they are now; ``queue``: that of the sagas.
    """

    def __init__(self, client: Client, definitions: Definitions, queue: str) -> None:
        self._client = client
        self._definitions = definitions
        self._queue = queue
        self._pollers: Mapping[tuple[str, str], int] = {}
        self.refresh = Refreshed(self._query, GAUGE_MAX_AGE).refresh
        """Query Temporal, unless the values are recent. If it does not answer, the gauge disappears."""

    async def _query(self) -> None:
        pollers: dict[tuple[str, str], int] = {}
        others = sorted(actions_on_other_queues(self._definitions().values(), self._queue))
        try:
            for queue, kind in ((self._queue, "sagas"), *((each, "steps") for each in (self._queue, *others))):
                pollers[queue, kind] = await count_pollers(self._client, queue, workflows=kind == "sagas")
        except RPCError as error:
            pollers.clear()
            log.debug("pollers not counted: %s", error.message)
        self._pollers = pollers

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        pollers = GaugeMetricFamily(
            "saga_pollers", "Workers that poll a task queue of the project.", labels=["task_queue", "kind"]
        )
        for (queue, kind), count in self._pollers.items():
            pollers.add_metric([queue, kind], count)
        yield pollers
