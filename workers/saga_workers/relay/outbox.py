"""What the shards of one outbox share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Metric
from sqlalchemy.exc import SQLAlchemyError

from saga_workers.relay.lease import Leases
from saga_workers.relay.outbox_table import OutboxIdentity, OutboxTable
from saga_workers.runtime.http_server import without_created
from sagas.settings import KafkaSettings

ShardPhase = Literal["standby", "starting", "publishing", "trouble", "fenced"]


@dataclass
class ShardState:
    """What a shard does now; ``reason`` is a sentence for trouble."""

    state: ShardPhase = "standby"
    reason: str = ""


class SuspendedTopics:
    """The topics one outbox cannot publish to, and why."""

    def __init__(self) -> None:
        self._topics: dict[str, _SuspendedTopic] = {}

    def suspend(self, topic: str, reason: str) -> bool:
        """Leave a topic out for a while; True if it is new, or has a new reason."""
        known = self._topics.get(topic)
        pause = FIRST_RETRY if known is None else min(LONGEST_RETRY, known.backoff * 2)
        self._topics[topic] = _SuspendedTopic(reason, pause, time.monotonic() + pause)
        return known is None or known.reason != reason

    def resume(self, topic: str) -> bool:
        """Events of it were published; True if it was left out before."""
        return self._topics.pop(topic, None) is not None

    def suspended(self) -> set[str]:
        """The topics to leave out of a scan."""
        moment = time.monotonic()
        return {name for name, topic in self._topics.items() if topic.retry_at > moment}

    def reasons(self) -> dict[str, str]:
        """Every topic that did not work when it was tried last."""
        return {name: topic.reason for name, topic in self._topics.items()}


@dataclass
class Outbox:
    """One outbox and what publishing it needs. ``name`` is its connection's; ``stop`` ends its shards."""

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
        """Events in one transaction: as set, but so that the ids of two batches fit into one progress record."""
        return max(1, min(self.settings.batch, self.settings.max_message_bytes // 80))


# Wakes shards that have nothing to do: one small question to the database for all of them, many times a second.

POLL_INTERVAL = 0.03
"""Seconds between two questions: a good part of how long an event waits on an idle system."""

POLL_TIMEOUT = 10.0


class Wakeup:
    """Rings for a shard when its outbox has new events (or cannot be asked: then the shard finds out why)."""

    def __init__(self, table: OutboxTable) -> None:
        self._table = table
        self._waiting: dict[int, asyncio.Event] = {}
        self._has_waiters = asyncio.Event()

    async def wait(self, shard: int) -> None:
        """Until the shard has something to publish."""
        rung = self._waiting[shard] = asyncio.Event()
        self._has_waiters.set()
        try:
            await rung.wait()
        finally:
            self._waiting.pop(shard, None)

    async def run_forever(self) -> None:
        """Ask as long as somebody waits."""
        while True:
            await self._has_waiters.wait()
            await asyncio.sleep(POLL_INTERVAL)
            shards = sorted(self._waiting)
            if not shards:
                self._has_waiters.clear()
                continue
            try:
                async with asyncio.timeout(POLL_TIMEOUT):
                    found = await self._table.shards_with_events(shards)
            except (SQLAlchemyError, OSError, TimeoutError):
                found = set(shards)
            for shard in found & self._waiting.keys():
                self._waiting[shard].set()


# Topics that cannot be used at the moment: left out of the scan, so that they hold up nobody, and tried again.

FIRST_RETRY, LONGEST_RETRY = 2.0, 30.0
"""Seconds until a topic is tried again: twice as long after each vain try."""


@dataclass(slots=True)
class _SuspendedTopic:
    reason: str
    backoff: float
    retry_at: float


# What a relay counts itself; docs/reference/metrics.md is the page.


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

    def initialize(self, connection: str) -> None:
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
