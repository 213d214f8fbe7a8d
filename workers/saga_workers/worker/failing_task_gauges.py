"""The gauge of the runs whose workflow task fails or times out again and again, from Temporal."""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from temporalio.client import Client
from temporalio.service import RPCError

from saga_workers.runtime.metrics import Refreshed
from saga_workers.temporal.temporal_runs import list_runs
from saga_workers.worker.metric_labels import Definitions, MetricLabels
from sagas.errors import SagaError

log = logging.getLogger("saga.metrics")

GAUGE_MAX_AGE = 15.0
"""Seconds for which the values are reused."""

_MAX_RUNS = 1000
"""Runs that are counted: what fails in more of them is the worker, and the alert is the same."""

_QUERY = "ExecutionStatus = 'Running' AND TemporalReportedProblems IS NOT NULL"
"""Temporal sets this attribute after some problems in a row, and takes it away with the next task that is completed."""


class FailingTaskGauges:
    """A Prometheus collector of the latest values; ``refresh`` updates them. ``definitions`` gives those of the
    project, as they are now.
    """

    def __init__(self, client: Client, definitions: Definitions) -> None:
        self._client = client
        self._labels = MetricLabels(definitions)
        self._failing: Mapping[str, int] = {}
        self.refresh = Refreshed(self._query, GAUGE_MAX_AGE).refresh
        """Query Temporal, unless the values are recent. The gauge disappears if Temporal does not answer or has no such
        attribute.
        """

    async def _query(self) -> None:
        failing: collections.Counter[str] = collections.Counter()
        try:
            async for run in list_runs(self._client, _QUERY):
                failing[self._labels.saga(run.workflow_type)] += 1
                if failing.total() == _MAX_RUNS:
                    break
        except (RPCError, SagaError) as error:
            failing.clear()
            log.debug("runs whose workflow task fails are not counted: %s", error)
        self._failing = failing

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        failing = GaugeMetricFamily(
            "saga_failing_tasks", "Runs whose workflow task fails or times out again and again.", labels=["saga"]
        )
        for saga, count in sorted(self._failing.items()):
            failing.add_metric([saga], count)
        yield failing
