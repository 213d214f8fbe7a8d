"""The counters of a relay process."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric

from saga_workers.runtime.metrics import without_created


class RelayMetrics:
    """The counters of one relay process, described in docs/reference/metrics.md. A Prometheus collector."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        label = ["connection"]
        running = Gauge("saga_relay_running", "1: a relay runs, also without an outbox.", registry=registry)
        running.set(1)
        self._published = Counter("saga_relay_published_total", "Events published.", label, registry=registry)
        self._batches = Counter("saga_relay_batches_total", "Transactions committed.", label, registry=registry)
        self._rebuilds = Counter(
            "saga_relay_rebuilds_total", "Producers replaced after an error.", label, registry=registry
        )
        self._fenced = Counter(
            "saga_relay_fenced_total", "Producers fenced by another relay of the shard.", label, registry=registry
        )
        self._refused = Counter("saga_relay_refused_total", "Events refused for good.", label, registry=registry)

    def collect(self) -> Iterator[Metric]:
        return without_created(self._registry)

    def initialize(self, connection: str) -> None:
        """Show the counters of an outbox at zero: a counter that first appears at 1 hides that step from rate()."""
        for counter in (self._published, self._batches, self._rebuilds, self._fenced, self._refused):
            counter.labels(connection)

    def published(self, connection: str, events: int) -> None:
        self._published.labels(connection).inc(events)
        self._batches.labels(connection).inc()

    def rebuilt(self, connection: str) -> None:
        self._rebuilds.labels(connection).inc()

    def fenced(self, connection: str) -> None:
        self._fenced.labels(connection).inc()

    def refused(self, connection: str) -> None:
        self._refused.labels(connection).inc()
