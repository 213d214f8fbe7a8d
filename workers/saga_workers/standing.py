"""How the sagas of a namespace stand, asked of Temporal: who is parked, since when, and who is overdue.

Every worker gets the same answers: take the maximum over workers, not the sum.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from sagas.definition.model import Definition

log = logging.getLogger("saga.metrics")

MAX_AGE = 15.0
"""Seconds an answer may be old: Temporal is asked at most that often, however many scrape."""

_PATIENCE = timedelta(seconds=5)
_NEW_AT_ONCE = 50
"""Parked sagas whose history is read in one go; the others follow with the next answers, oldest first."""

_RECENT_EVENTS = 100
_PARKED = "ExecutionStatus = 'Running' AND SagaState = 'PARKED'"


@dataclass(frozen=True, slots=True)
class Standing:
    """One answer. ``parked`` counts by saga and step, ``oldest`` is since when (epoch seconds) by saga."""

    parked: Mapping[tuple[str, str], int] = field(default_factory=dict)
    oldest: Mapping[str, float] = field(default_factory=dict)
    overdue: Mapping[str, int] = field(default_factory=dict)


class StandingMetrics:
    """A Prometheus collector of the last answer; ``refresh`` asks for a new one."""

    def __init__(self, client: Client, definitions: Iterable[Definition]) -> None:
        self._client = client
        self._warn_after = {one.saga: one.warn_after for one in definitions if one.warn_after is not None}
        self._since: dict[str, float] = {}
        self._last: Standing | None = None
        self._asked_at: float | None = None
        self._trouble: str | None = None
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Ask Temporal, unless the last answer is younger than :data:`MAX_AGE`.

        When Temporal does not answer there is nothing to show: an old number would look like a healthy one.
        """
        async with self._lock:
            if self._asked_at is not None and time.monotonic() - self._asked_at < MAX_AGE:
                return
            try:
                self._last = await self._ask()
                self._trouble = None
            except RPCError as error:
                self._last = None
                if self._trouble != error.message:  # once, not with every scrape
                    self._trouble = error.message
                    log.warning("parked and overdue sagas cannot be counted: %s", error.message)
            self._asked_at = time.monotonic()

    def collect(self) -> Iterator[Metric]:
        """What Prometheus asks for."""
        parked = GaugeMetricFamily("saga_parked", "Sagas that wait for a person.", labels=["saga", "step"])
        oldest = GaugeMetricFamily(
            "saga_parked_oldest_seconds", "How long the longest of them has waited.", labels=["saga"]
        )
        overdue = GaugeMetricFamily("saga_overdue", "Sagas that run longer than `warn_after`.", labels=["saga"])
        standing, now = self._last or Standing(), time.time()
        for (saga, step), count in sorted(standing.parked.items()):
            parked.add_metric([saga, step], count)
        for saga, since in sorted(standing.oldest.items()):
            oldest.add_metric([saga], max(0.0, now - since))
        for saga, count in sorted(standing.overdue.items()):
            overdue.add_metric([saga], count)
        yield from (parked, oldest, overdue)

    async def _ask(self) -> Standing:
        runs = [run async for run in self._client.list_workflows(_PARKED, rpc_timeout=_PATIENCE)]
        await self._learn_since(runs)
        oldest: dict[str, float] = {}
        for run in runs:
            since = self._since.get(run.run_id)
            if since is not None:
                oldest[run.workflow_type] = min(since, oldest.get(run.workflow_type, since))
        return Standing(
            parked=Counter((run.workflow_type, _step_of(run)) for run in runs),
            oldest=oldest,
            overdue={saga: await self._overdue(saga, seconds) for saga, seconds in self._warn_after.items()},
        )

    async def _learn_since(self, runs: list[WorkflowExecution]) -> None:
        present = {run.run_id for run in runs}
        # One that was helped on and parked again is asked again, unless both happened between two answers.
        self._since = {run_id: since for run_id, since in self._since.items() if run_id in present}
        new = sorted((run for run in runs if run.run_id not in self._since), key=lambda run: run.start_time)
        for run in new[:_NEW_AT_ONCE]:
            self._since[run.run_id] = await self._parked_since(run)

    async def _parked_since(self, run: WorkflowExecution) -> float:
        """When the run said PARKED: its newest change of search attributes. A parked run does little after that."""
        answer = await self._client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=self._client.namespace,
                execution=Execution(workflow_id=run.id, run_id=run.run_id),
                maximum_page_size=_RECENT_EVENTS,
            ),
            timeout=_PATIENCE,
        )
        at = run.start_time.timestamp()
        for event in answer.history.events:
            at = event.event_time.ToMicroseconds() / 1e6
            if event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
                break
        return at

    async def _overdue(self, saga: str, warn_after: float) -> int:
        before = datetime.fromtimestamp(time.time() - warn_after, UTC).isoformat()
        query = f"ExecutionStatus = 'Running' AND WorkflowType = '{saga}' AND StartTime < '{before}'"
        return (await self._client.count_workflows(query, rpc_timeout=_PATIENCE)).count


def _step_of(run: WorkflowExecution) -> str:
    """The definition's id of the step it is parked at; the search attribute holds the ledger id (``reserve#3``)."""
    for pair in run.typed_search_attributes:
        if pair.key.name == "SagaStep":
            return str(pair.value).partition("#")[0]
    return ""
