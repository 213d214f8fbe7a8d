"""The metrics a worker counts itself; docs/reference/metrics.md is their page.

Each worker counts what it did, so sums over all workers are the truth. What is asked of Temporal instead (parked and
overdue sagas) is in ``standing``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric

from saga_activities.watching import Watched

_SAGA_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800, 7200, 43200, 86400, 604800)
_STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """The counters of one worker. A Prometheus collector: ``prometheus_client.REGISTRY.register(metrics)`` adds it
    to the metrics of a program of one's own."""

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
        self._notifications = Counter(
            "saga_notifications_total",
            "Notifications that ended, delivered or exhausted.",
            ["saga", "outcome"],
            registry=registry,
        )
        self._late = Counter(
            "saga_guard_late_total",
            "Attempts the guard refused: their step was undone or sealed before, or they are below the watermark.",
            registry=registry,
        )

    def collect(self) -> Iterator[Metric]:
        """What Prometheus asks for."""
        return without_created(self._registry)

    def started(self, saga: str) -> None:
        """A saga began."""
        self._started.labels(saga).inc()

    def finished(self, saga: str, state: str, reason: str, seconds: float | None) -> None:
        """A saga ended. ``reason`` is the kind of `reason` in its story, empty for none; None: no duration to tell."""
        self._finished.labels(saga, state, reason).inc()
        if seconds is not None:
            self._duration.labels(saga, state).observe(seconds)

    def notified(self, saga: str, state: str) -> None:
        """A notification of a saga was delivered, or given up."""
        self._notifications.labels(saga, state.lower()).inc()

    @contextmanager
    def watch(self, watched: Watched) -> Iterator[None]:
        """Watches one attempt; see :data:`saga_activities.watching.Watcher`."""
        began = time.monotonic()
        try:
            yield
        finally:
            outcome, op = watched.outcome, watched.invocation.op
            if outcome is not None:
                self._attempts.labels(watched.saga, watched.step, op, outcome.kind).inc()
                self._step_duration.labels(watched.saga, watched.step, op).observe(time.monotonic() - began)
                if outcome.kind == "late" and watched.invocation.guard is not None:
                    self._late.inc()


def without_created(registry: CollectorRegistry) -> Iterator[Metric]:
    """The metrics of a registry without the ``_created`` samples that Prometheus' client adds to every counter."""
    for metric in registry.collect():
        shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        shown.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        yield shown
