"""State that the shards of one outbox share: shard states, suspended topics, and the counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Metric

from saga_activities.concurrency import Backoff
from saga_workers.relay.lease import Leases
from saga_workers.relay.outbox_table import OutboxIdentity, OutboxTable
from saga_workers.relay.wakeup import Wakeup
from saga_workers.runtime.metrics import without_created
from sagas.settings import KafkaSettings

ShardPhase = Literal["standby", "starting", "publishing", "trouble", "fenced"]


@dataclass
class ShardState:
    """The state of a shard; ``reason`` is a message for ``trouble`` and ``fenced``."""

    state: ShardPhase = "standby"
    reason: str = ""


_TOPIC_BACKOFF = Backoff(2.0, 30.0)
"""Seconds until a suspended topic is retried."""


class SuspendedTopics:
    """Topics that one outbox cannot publish to at present, and why.

    They are left out of the scan, so that they do not block other topics, and retried after a backoff.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _SuspendedTopic] = {}

    def suspend(self, topic: str, reason: str) -> bool:
        """Leave a topic out until its backoff is over; True if it was not suspended before, or for another reason."""
        checked = self._topics.get(topic)
        failures = 0 if checked is None else checked.failures + 1
        self._topics[topic] = _SuspendedTopic(reason, failures, time.monotonic() + _TOPIC_BACKOFF.delay(failures))
        return checked is None or checked.reason != reason

    def resume(self, topic: str) -> bool:
        """Forget a topic after events were published to it; True if it was suspended before."""
        return self._topics.pop(topic, None) is not None

    def suspended(self) -> set[str]:
        """The topics to leave out of a scan."""
        moment = time.monotonic()
        return {name for name, topic in self._topics.items() if topic.retry_at > moment}

    def next_retry(self, topics: Collection[str]) -> float | None:
        """Seconds until the first of these topics is retried; None if there is none."""
        moments = (self._topics[name].retry_at if name in self._topics else 0.0 for name in topics)
        first = min(moments, default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def reasons(self) -> dict[str, str]:
        """Each topic whose last attempt failed, and the reason."""
        return {name: topic.reason for name, topic in self._topics.items()}


@dataclass
class Outbox:
    """One outbox and what publishing it needs. ``name`` is that of its connection; ``stop`` ends its shards."""

    name: str
    settings: KafkaSettings
    identity: OutboxIdentity
    table: OutboxTable
    leases: Leases
    wakeup: Wakeup
    metrics: RelayMetrics
    stop: asyncio.Event
    once: bool = False
    suspended_topics: SuspendedTopics = field(default_factory=SuspendedTopics)
    states: dict[int, ShardState] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The CloudEvents source of its events."""
        return f"/{self.settings.prefix}/{self.name}"

    @property
    def batch_size(self) -> int:
        """Events per transaction: the setting, limited so that the ids of two batches fit into one progress record."""
        return max(1, min(self.settings.batch, self.settings.max_message_bytes // 80))


@dataclass(slots=True)
class _SuspendedTopic:
    reason: str
    failures: int
    retry_at: float


class RelayMetrics:
    """The counters of one relay process, described in docs/reference/metrics.md. A Prometheus collector."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        label = ["connection"]
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
