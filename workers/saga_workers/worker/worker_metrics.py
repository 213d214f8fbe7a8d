"""The metrics of a worker, described in docs/reference/metrics.md.

Counters count what this worker did: sum them over all workers. Gauges (:class:`SagaGauges`) come from Temporal and are
equal on all workers: take the maximum.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError
from temporalio.worker import (
    ExecuteWorkflowInput,
    WorkflowInboundInterceptor,
)

from saga_activities.attempt_context import ObservedAttempt, ObservedChunk
from saga_activities.circuit_breakers import BreakerState
from saga_workers.ledger.writer import LedgerMetrics
from saga_workers.runtime.metrics import Refreshed, without_created
from saga_workers.temporal.begun_runs import has_begun
from saga_workers.temporal.run_interceptor import RunInterceptor
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import RunInfo, list_runs
from saga_workers.temporal.visibility_filter import begun_condition, time_literal
from saga_workers.views.held_counts import count_held
from saga_workers.views.saga_list import SagaFilter
from saga_workers.worker.metric_labels import OTHER, Definitions, MetricLabels
from sagas.definition.model import Definition
from sagas.protocol.messages import CallOperation
from sagas.protocol.payloads import REFUSED_TYPE, STARTED_AT_MEMO, UNDO_SUFFIX
from sagas.protocol.standing_pause import StandingPause, pause_order
from sagas.workflow.bulk_workflow import BulkWorkflow
from sagas.workflow.notify import NotifyWorkflow
from sagas.workflow.redelivery import RedeliveryOutcome, RedeliveryWorkflow
from sagas.workflow.saga_workflow import SagaWorkflow

_SAGA_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800, 7200, 43200, 86400, 604800)
_CHUNK_CALLS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2000)
_STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class WorkerMetrics:
    """The counters of one worker.

    A Prometheus collector: ``prometheus_client.REGISTRY.register(metrics)`` adds it to the metrics of your own program.
    """

    labels = MetricLabels()
    """Set by the worker: the sagas of its project, which are counted by name."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._started = Counter("saga_started_total", "Sagas whose run began.", ["saga"], registry=registry)
        self._finished = Counter(
            "saga_finished_total", "Sagas that ended, undos included.", ["saga", "state", "reason"], registry=registry
        )
        self._duration = Histogram(
            "saga_duration_seconds",
            "From the beginning of a saga to its end.",
            ["saga", "state"],
            buckets=_SAGA_SECONDS,
            registry=registry,
        )
        self._attempts = Counter(
            "saga_step_attempts_total",
            "Attempts of steps, by how each ended.",
            ["saga", "step", "op", "outcome"],
            registry=registry,
        )
        self._step_duration = Histogram(
            "saga_step_duration_seconds",
            "How long attempts of steps took.",
            ["saga", "step", "op"],
            buckets=_STEP_SECONDS,
            registry=registry,
        )
        self._chunk_calls = Histogram(
            "saga_chunk_calls",
            "Calls of each chunk that bulk workflows had performed.",
            ["saga", "step", "op"],
            buckets=_CHUNK_CALLS,
            registry=registry,
        )
        self._notifications = Counter(
            "saga_notifications_total",
            "Notifications that ended, delivered or exhausted.",
            ["saga", "outcome"],
            registry=registry,
        )
        self._redeliveries = Counter(
            "saga_redeliveries_total",
            "Further starts of compensated sagas for their events: started, refused, or exhausted: none was left.",
            ["saga", "outcome"],
            registry=registry,
        )
        self._late = Counter(
            "saga_guard_late_total",
            "Attempts the guard refused: their step was undone or sealed before, or they are below the watermark.",
            registry=registry,
        )
        self.ledger = LedgerMetrics(registry)

        self._lock_wait = Histogram(
            "saga_lock_wait_seconds",
            "How long sagas waited for the locks that they were granted.",
            ["saga"],
            buckets=_SAGA_SECONDS,
            registry=registry,
        )

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        return without_created(self._registry)

    def initialize(self, definitions: Iterable[Definition]) -> None:
        """Show what counts whole sagas at zero: a series that first appears at 1 hides that step from rate(), so a saga
        that runs once a day would be in no graph. Steps are left out: they would be thousands of series.
        """
        for definition in definitions:
            name = definition.saga
            self._started.labels(name)
            self._finished.labels(name, "COMPLETED", "")
            self._duration.labels(name, "COMPLETED")
            for reason in ("rejected", "failed", "unknown"):
                self._finished.labels(name, "COMPENSATED", reason)
            if definition.locks is not None:
                self._lock_wait.labels(name)
            if definition.notify:
                for outcome in ("delivered", "exhausted"):
                    self._notifications.labels(name, outcome)
            if any(trigger.redeliver for trigger in definition.triggers):
                for outcome in get_args(RedeliveryOutcome):
                    self._redeliveries.labels(name, outcome)

    def started(self, saga: str, count: int = 1) -> None:
        """Count the start of a saga, or of several."""
        self._started.labels(self.labels.saga(saga)).inc(count)

    def finished(self, saga: str, state: str, reason: str, seconds: float | None) -> None:
        """Count the end of a saga. ``reason``: its kind in the view, or empty; ``seconds`` is None if unknown."""
        saga = self.labels.saga(saga)
        self._finished.labels(saga, state, reason).inc()
        if seconds is not None:
            self._duration.labels(saga, state).observe(seconds)

    def notified(self, saga: str, state: str) -> None:
        """Count a notification that was delivered or given up."""
        self._notifications.labels(self.labels.saga(saga), state.lower()).inc()

    def redelivered(self, saga: str, outcome: RedeliveryOutcome) -> None:
        """Count what has become of the next start of a compensated saga for its event."""
        self._redeliveries.labels(self.labels.saga(saga), outcome).inc()

    def lock_waited(self, saga: str, seconds: float) -> None:
        """Observe the time from the request of a saga's locks to their grant."""
        self._lock_wait.labels(self.labels.saga(saga)).observe(seconds)

    @contextmanager
    def observe_attempt(self, observed: ObservedAttempt) -> Iterator[None]:
        """Observe one attempt; see :data:`saga_activities.attempt_context.AttemptObserver`."""
        began = time.monotonic()
        try:
            yield
        finally:
            outcome = observed.outcome
            if outcome is not None:
                labels = self._step_labels(observed.saga, observed.step, observed.invocation.op)
                self._attempts.labels(*labels, outcome.kind).inc()
                self._step_duration.labels(*labels).observe(time.monotonic() - began)
                if outcome.kind == "late" and observed.invocation.guard is not None:
                    self._late.inc()

    @contextmanager
    def observe_chunk(self, observed: ObservedChunk) -> Iterator[None]:
        """Observe one attempt of a chunk: an attempt of each of its calls, which took as long as the chunk."""
        began = time.monotonic()
        try:
            yield
        finally:
            labels = self._step_labels(observed.saga, observed.step, observed.op)
            outcomes = [outcome for outcome in observed.outcomes or () if outcome is not None]
            for kind, count in collections.Counter(outcome.kind for outcome in outcomes).items():
                self._attempts.labels(*labels, kind).inc(count)
                if kind == "late":
                    self._late.inc(count)
            if outcomes:
                self._chunk_calls.labels(*labels).observe(len(observed.calls))
                self._step_duration.labels(*labels).observe(time.monotonic() - began)

    def _step_labels(self, saga: str, step: str, op: str) -> tuple[str, str, str]:
        return self.labels.saga(saga), self.labels.step(saga, step), op if op in get_args(CallOperation) else OTHER


# Counts and logs the start and end of sagas and notifications, once per run and never during replay.


class MetricsInterceptor(RunInterceptor):
    """Worker interceptor that counts in ``metrics``."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        super().__init__(lambda next: _MetricsInbound(next, metrics))


class _MetricsInbound(WorkflowInboundInterceptor):
    def __init__(self, next: WorkflowInboundInterceptor, metrics: WorkerMetrics) -> None:
        super().__init__(next)
        self._metrics = metrics

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        saga = workflow.instance()
        if isinstance(saga, NotifyWorkflow):
            try:
                return await super().execute_workflow(input)
            finally:
                if saga.ended is not None and not workflow.unsafe.is_replaying():
                    self._metrics.notified(*saga.ended)
        if isinstance(saga, RedeliveryWorkflow):
            try:
                return await super().execute_workflow(input)
            finally:
                if saga.outcome is not None and not workflow.unsafe.is_replaying():
                    self._metrics.redelivered(*saga.outcome)
        if isinstance(saga, BulkWorkflow):
            saga.observer = _BulkCounter(self._metrics)
        if not isinstance(saga, SagaWorkflow):
            return await super().execute_workflow(input)
        info = workflow.info()
        undo = info.workflow_id.endswith(UNDO_SUFFIX)
        # A saga that has left a bulk workflow was counted there, unless it had not begun.
        began_before = info.continued_run_id is not None or STARTED_AT_MEMO in info.raw_memo
        if not began_before and not undo and not workflow.unsafe.is_replaying():
            self._metrics.started(info.workflow_type)
        try:
            result = await super().execute_workflow(input)
        except FailureError as error:
            # No other exception ends a saga: it continues as new, or the worker evicts it from its cache.
            _count_end(saga, self._metrics, error, undo)
            raise
        _count_end(saga, self._metrics, None, undo)
        return result


class _BulkCounter:
    """Counts the sagas of a bulk workflow."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics

    def started(self, saga: str, count: int) -> None:
        if not workflow.unsafe.is_replaying():
            self._metrics.started(saga, count)

    def ended(self, saga: str, state: str, reason: str, seconds: float) -> None:
        if not workflow.unsafe.is_replaying():
            self._metrics.finished(saga, state, reason, seconds)


def _count_end(saga: SagaWorkflow, metrics: WorkerMetrics, error: BaseException | None, undo: bool) -> None:
    finish = saga.ended
    if finish is None and not (isinstance(error, ApplicationError) and error.type == REFUSED_TYPE):
        return
    if workflow.unsafe.is_replaying():
        return
    name = workflow.info().workflow_type
    if finish is None:
        metrics.finished(name, "REFUSED", "refused", None)
        workflow.logger.warning("saga refused, no step was run: %s", error)
        return
    reason = finish.reason or {}
    seconds = None if undo or saga.started_at is None else max(0.0, workflow.time() - saga.started_at)
    metrics.finished(name, finish.state, reason.get("kind") or "", seconds)
    if finish.state == "RESIDUE":
        workflow.logger.warning("saga ended RESIDUE: an effect stays or is missing, see `saga show`")
    elif finish.state != "COMPLETED":
        where = f" at {reason['step']}" if reason.get("step") else ""
        workflow.logger.info("saga ended %s: %s%s: %s", finish.state, reason.get("kind"), where, reason.get("message"))


# Gauges of the namespace's sagas, from Temporal: parked (where and since when) and overdue.
log = logging.getLogger("saga.metrics")

GAUGE_MAX_AGE = 15.0
"""Maximum age of the values in seconds: Temporal is queried at most that often, however many scrapes there are."""

_RPC_TIMEOUT = timedelta(seconds=5)
_NEW_PER_REFRESH = 50
"""Parked sagas whose history is read per refresh, oldest first; the others follow with the next refreshes."""

_RECENT_EVENTS = 100
_PARKED_QUERY = "ExecutionStatus = 'Running' AND SagaState = 'PARKED'"


@dataclass(frozen=True, slots=True)
class SagaGaugeValues:
    """Values of one refresh. ``parked``: counts by saga and step. ``oldest_since``: by saga, in epoch seconds."""

    parked: Mapping[tuple[str, str], int] = field(default_factory=dict)
    oldest_since: Mapping[str, float] = field(default_factory=dict)
    overdue: Mapping[str, int] = field(default_factory=dict)


class SagaGauges:
    """A Prometheus collector of the latest values; ``refresh`` updates them."""

    def __init__(
        self,
        client: Client,
        definitions: Definitions,
        pauses: Callable[[], Awaitable[Sequence[StandingPause]]] | None = None,
        breakers: Callable[[], Awaitable[Mapping[str, BreakerState]]] | None = None,
    ) -> None:
        """``definitions`` gives those of the project, as they are now. ``pauses`` reads the standing pauses,
        ``breakers`` the states of the circuit breakers, by connection.
        """
        self._client = client
        self._server_time, self._offset = ServerTime(client), 0.0
        self._read_pauses, self._read_breakers = pauses, breakers
        self._pauses: Sequence[StandingPause] = ()
        self._held: Mapping[str, int] = {}
        self._breakers: Mapping[str, BreakerState] = {}
        self._definitions = definitions
        self._labels = MetricLabels(definitions)
        self._parked_since: dict[str, float | None] = {}
        """By the id of the run; None for one that claims to be parked, and that no worker has begun."""
        self._values: SagaGaugeValues | None = None
        self._last_error: str | None = None
        self.refresh = Refreshed(self._query_all, GAUGE_MAX_AGE).refresh
        """Query Temporal, unless the values are recent.

        If Temporal does not answer, the gauges disappear: an outdated value would look healthy.
        """

    async def _query_all(self) -> None:
        if self._read_pauses is not None:
            self._pauses = await self._read_pauses()
        if self._read_breakers is not None:
            self._breakers = await self._read_breakers()
        try:
            self._values = await self._query()
            orders = [pause.order for pause in self._pauses]
            orders += [
                pause_order("circuit_breaker", name) for name, is_in in self._breakers.items() if is_in != "closed"
            ]
            self._held = (await count_held(self._client, SagaFilter(), orders)).by_order
            self._last_error = None
        except RPCError as error:
            self._values, self._held = None, {}
            if self._last_error != error.message:  # once, not at every scrape
                self._last_error = error.message
                log.warning("parked and overdue sagas not counted: %s", error.message)

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        parked = GaugeMetricFamily("saga_parked", "Sagas that wait for an operator.", labels=["saga", "step"])
        oldest = GaugeMetricFamily(
            "saga_parked_oldest_seconds", "How long the longest of them has waited.", labels=["saga"]
        )
        overdue = GaugeMetricFamily("saga_overdue", "Sagas that run longer than `warn_after`.", labels=["saga"])
        standing, now = self._values or SagaGaugeValues(), self._offset + time.monotonic()
        for (saga, step), count in sorted(standing.parked.items()):
            parked.add_metric([saga, step], count)
        for saga, since in sorted(standing.oldest_since.items()):
            oldest.add_metric([saga], max(0.0, now - since))
        for saga, count in sorted(standing.overdue.items()):
            overdue.add_metric([saga], count)
        paused = GaugeMetricFamily(
            "saga_paused", "1 while all sagas of this name, or a connection, are paused.", labels=["kind", "name"]
        )
        for pause in self._pauses:
            paused.add_metric([pause.kind, pause.name], 1)
        breakers = GaugeMetricFamily(
            "saga_circuit_breaker",
            "1 for the state of the circuit breaker of a connection, 0 for its other states.",
            labels=["connection", "state"],
        )
        for connection, current in sorted(self._breakers.items()):
            for state in get_args(BreakerState):
                breakers.add_metric([connection, state], state == current)
        held = GaugeMetricFamily(
            "saga_paused_sagas",
            "Sagas that wait for the end of a pause or of an open circuit breaker.",
            labels=["kind", "name"],
        )
        for order, count in sorted(self._held.items()):
            kind, _, name = order.partition("=")
            held.add_metric([kind, name], count)
        yield from (parked, oldest, overdue, paused, held, breakers)

    async def _query(self) -> SagaGaugeValues:
        self._offset = await self._server_time.likely() - time.monotonic()
        query = f"{_PARKED_QUERY} AND {begun_condition()}"
        claims = [_ParkedRun.of(run) async for run in list_runs(self._client, query)]
        await self._update_parked_since(claims)
        # One that is not looked at yet counts: a false alert is better than none.
        runs = [run for run in claims if self._parked_since.get(run.run_id, 0.0) is not None]
        oldest: dict[str, float] = {}
        for run in runs:
            since = self._parked_since.get(run.run_id)
            if since is not None:
                saga = self._labels.saga(run.workflow_type)
                oldest[saga] = min(since, oldest.get(saga, since))
        return SagaGaugeValues(
            parked=collections.Counter(
                (self._labels.saga(run.workflow_type), self._labels.step(run.workflow_type, run.step)) for run in runs
            ),
            oldest_since=oldest,
            overdue={
                definition.saga: await self._count_overdue(definition.saga, definition.warn_after)
                for definition in self._definitions().values()
                if definition.warn_after is not None
            },
        )

    async def _update_parked_since(self, runs: list[_ParkedRun]) -> None:
        present = {run.run_id for run in runs}
        # A run that was resolved and parked again is read again, unless both happened between two refreshes.
        self._parked_since = {run_id: since for run_id, since in self._parked_since.items() if run_id in present}
        new = sorted((run for run in runs if run.run_id not in self._parked_since), key=lambda run: run.start_time)
        by_id = {run.run_id: run for run in runs}
        again = [by_id[run_id] for run_id, since in self._parked_since.items() if since is None]
        for run in [*new, *again][:_NEW_PER_REFRESH]:
            begun = await has_begun(self._client, run)
            self._parked_since.pop(run.run_id, None)  # so that another one is the next to be looked at again
            self._parked_since[run.run_id] = await self._read_parked_since(run) if begun else None

    async def _read_parked_since(self, run: _ParkedRun) -> float:
        """The time of the newest upsert of search attributes, which parked the run; it has few events after that."""
        answer = await self._client.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=self._client.namespace,
                execution=Execution(workflow_id=run.id, run_id=run.run_id),
                maximum_page_size=_RECENT_EVENTS,
            ),
            timeout=_RPC_TIMEOUT,
        )
        at = run.start_time.timestamp()
        for event in answer.history.events:
            at = event.event_time.ToMicroseconds() / 1e6
            if event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
                break
        return at

    async def _count_overdue(self, saga: str, warn_after: float) -> int:
        before = time_literal(self._offset + time.monotonic() - warn_after)
        query = f"ExecutionStatus = 'Running' AND WorkflowType = '{saga}' AND StartTime < {before}"
        return (await self._client.count_workflows(query, rpc_timeout=_RPC_TIMEOUT)).count


@dataclass(frozen=True, slots=True)
class _ParkedRun:
    """A parked run without its memo, which may be large.

    ``step``: the definition's id of the step it is parked at; the search attribute holds the entry id (``reserve#3``).
    """

    id: str
    run_id: str
    workflow_type: str
    start_time: datetime
    step: str

    @classmethod
    def of(cls, run: RunInfo) -> _ParkedRun:
        step = str(run.attributes.get("SagaStep", "")).partition("#")[0]
        return cls(run.id, run.run_id, run.workflow_type, run.start_time, step)
