"""The metrics of `saga trigger`, described in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric

from saga_workers.runtime.metrics import without_created

PartitionLag = tuple[str, str, int, int]
"""Group, topic, partition, and the number of offsets the group is behind."""
PartitionAttempts = tuple[str, str, int, int]
"""Group, topic, partition, and the attempts for its next record that have ended their process."""


REPLY_OUTCOMES = ("woken", "late", "duplicate", "unknown", "refused", "malformed")


class MeasuredReader(Protocol):
    """A reader whose state is asked for at each scrape."""

    group: str
    topic: str

    def health(self) -> str | None: ...

    def lags(self) -> Iterable[PartitionLag]: ...

    def ended_attempts(self) -> Iterable[PartitionAttempts]: ...


class TriggerMetrics:
    """The counters of one process, and the lag of its partitions. A Prometheus collector."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._started = Counter(
            "saga_trigger_started_total", "Sagas that events started.", ["saga", "topic"], registry=registry
        )
        self._existed = Counter(
            "saga_trigger_existing_total",
            "Events that started nothing, because their saga existed.",
            ["saga", "topic"],
            registry=registry,
        )
        self._signalled = Counter(
            "saga_trigger_signalled_total", "Sagas that events signalled.", ["saga", "topic"], registry=registry
        )
        self._consumed = Counter(
            "saga_consumed_total",
            "Messages that consumers and bridges have completed.",
            ["consumer", "topic", "outcome"],
            registry=registry,
        )
        self._replies = Counter("saga_replies_total", "Replies to commands, by result.", ["outcome"], registry=registry)
        self._dead = Counter(
            "saga_dead_letters_total", "Messages moved to a dead letter topic.", ["group", "topic"], registry=registry
        )
        self._lag = Gauge(
            "saga_trigger_lag", "Offsets not yet processed.", ["group", "topic", "partition"], registry=registry
        )
        self._ended = Gauge(
            "saga_trigger_ended_attempts",
            "Attempts for the next record that have ended their process.",
            ["group", "topic", "partition"],
            registry=registry,
        )
        self._undecided = Gauge(
            "saga_trigger_undecided",
            "1 while a reader waits for a decision where in its topic it begins (saga trigger --from), else 0.",
            ["group", "topic"],
            registry=registry,
        )
        self._stopped = Gauge(
            "saga_trigger_stopped",
            "1 for a reader that cannot read: no broker answers, the topic is gone, an ACL is missing, "
            "or what it needs to begin does not answer.",
            ["group", "topic"],
            registry=registry,
        )
        for outcome in REPLY_OUTCOMES:
            self._replies.labels(outcome)
        self._readers: list[MeasuredReader] = []
        self._waiting: set[tuple[str, str]] = set()

    def add_reader(self, reader: MeasuredReader) -> None:
        self._readers.append(reader)
        self._dead.labels(reader.group, reader.topic)

    def remove_reader(self, reader: MeasuredReader) -> None:
        self._readers.remove(reader)

    def starts_sagas(self, saga: str, topic: str) -> None:
        """Show the counters of a saga's trigger at zero: one that first appears at 1 hides that step from rate()."""
        for counter in (self._started, self._existed, self._signalled):
            counter.labels(saga, topic)

    def consumes(self, consumer: str, topic: str) -> None:
        """Show the counters of a consumer or a bridge at zero."""
        for outcome in ("done", "rejected", "duplicate"):
            self._consumed.labels(consumer, topic, outcome)

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        self._lag.clear()
        self._ended.clear()
        self._stopped.clear()
        for reader in self._readers:
            self._stopped.labels(reader.group, reader.topic).set(reader.health() is not None)
            for group, topic, partition, behind in reader.lags():
                self._lag.labels(group, topic, str(partition)).set(behind)
            for group, topic, partition, count in reader.ended_attempts():
                self._ended.labels(group, topic, str(partition)).set(count)
        for group, topic in self._waiting:
            self._stopped.labels(group, topic).set(1)
        return without_created(self._registry)

    def started(self, saga: str, topic: str) -> None:
        self._started.labels(saga, topic).inc()

    def existed(self, saga: str, topic: str) -> None:
        """Count an event whose saga existed: it was delivered before, or another one had the same id and input."""
        self._existed.labels(saga, topic).inc()

    def signalled(self, saga: str, topic: str) -> None:
        self._signalled.labels(saga, topic).inc()

    def consumed(self, consumer: str, topic: str, outcome: str, count: int = 1) -> None:
        """Count messages; ``outcome`` is ``done``, ``rejected`` or ``duplicate``."""
        self._consumed.labels(consumer, topic, outcome).inc(count)

    def dead(self, group: str, topic: str) -> None:
        self._dead.labels(group, topic).inc()

    def undecided(self, group: str, topic: str, waits: bool) -> None:
        """Note whether a reader waits for a decision where in its topic it begins."""
        self._undecided.labels(group, topic).set(int(waits))

    def waits_to_begin(self, group: str, topic: str, waits: bool) -> None:
        """Note whether a reader waits for a database, Temporal or a broker before it begins."""
        (self._waiting.add if waits else self._waiting.discard)((group, topic))

    def replied(self, outcome: str) -> None:
        """Count a reply; ``outcome`` is one of :data:`REPLY_OUTCOMES`."""
        self._replies.labels(outcome).inc()
