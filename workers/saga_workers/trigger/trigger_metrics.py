"""The metrics of `saga trigger`; docs/reference/metrics.md is their page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric

PartitionLag = tuple[str, str, int, int]
"""Group, topic, partition, and how many offsets the group is behind."""


class TriggerMetrics:
    """The counters of one process, and the lag of the partitions it owns. A Prometheus collector."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._started = Counter(
            "saga_trigger_started_total", "Sagas that events started.", ["saga", "topic"], registry=registry
        )
        self._signalled = Counter(
            "saga_trigger_signalled_total", "Sagas that events woke.", ["saga", "topic"], registry=registry
        )
        self._consumed = Counter(
            "saga_consumed_total",
            "Messages that consumers and bridges are done with.",
            ["consumer", "topic", "outcome"],
            registry=registry,
        )
        self._replies = Counter(
            "saga_replies_total", "Replies to commands, by what became of each.", ["outcome"], registry=registry
        )
        self._dead = Counter("saga_dead_letters_total", "Messages given up.", ["group", "topic"], registry=registry)
        self._lag = Gauge(
            "saga_trigger_lag", "Offsets not yet worked off.", ["group", "topic", "partition"], registry=registry
        )
        self._lags: list[Callable[[], Iterable[PartitionLag]]] = []

    def add_lag_source(self, lags: Callable[[], Iterable[PartitionLag]]) -> None:
        """Ask this whenever somebody scrapes."""
        self._lags.append(lags)

    def collect(self) -> Iterator[Metric]:
        """What Prometheus asks for, without the ``_created`` samples that its client adds."""
        self._lag.clear()
        for lags in self._lags:
            for group, topic, partition, behind in lags():
                self._lag.labels(group, topic, str(partition)).set(behind)
        for metric in self._registry.collect():
            shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            shown.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield shown

    def started(self, saga: str, topic: str) -> None:
        self._started.labels(saga, topic).inc()

    def signalled(self, saga: str, topic: str) -> None:
        self._signalled.labels(saga, topic).inc()

    def consumed(self, consumer: str, topic: str, outcome: str, count: int = 1) -> None:
        """``outcome``: ``done``, ``rejected`` or ``duplicate``."""
        self._consumed.labels(consumer, topic, outcome).inc(count)

    def dead(self, group: str, topic: str) -> None:
        self._dead.labels(group, topic).inc()

    def replied(self, outcome: str) -> None:
        """A reply was dealt with: ``woken``, ``late``, ``duplicate``, ``unknown`` or ``malformed``."""
        self._replies.labels(outcome).inc()
