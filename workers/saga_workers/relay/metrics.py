"""What a relay counts itself; docs/reference/metrics.md is the page."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Metric

from saga_workers.metrics import without_created


class RelayMetrics:
    """The counters of one relay process. A Prometheus collector."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        label = ["connection"]
        self._published = Counter("saga_relay_published_total", "Events published.", label, registry=registry)
        self._batches = Counter("saga_relay_batches_total", "Transactions committed.", label, registry=registry)
        self._rebuilds = Counter(
            "saga_relay_rebuilds_total", "Producers thrown away after trouble.", label, registry=registry
        )
        self._fenced = Counter(
            "saga_relay_fenced_total", "Producers fenced by another relay of the shard.", label, registry=registry
        )
        self._refused = Counter(
            "saga_relay_refused_total", "Events the broker will never take.", label, registry=registry
        )

    def collect(self) -> Iterator[Metric]:
        return without_created(self._registry)

    def introduce(self, connection: str) -> None:
        """Show the counters of an outbox at zero: a counter that appears late hides its first step."""
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
