"""State that the shards of one outbox share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from saga_activities.guard.guard import Guard
from saga_workers.relay.outbox_table import OutboxIdentity, OutboxTable
from saga_workers.relay.relay_metrics import RelayMetrics
from saga_workers.relay.suspended_topics import SuspendedTopics
from saga_workers.runtime.lease import Leases
from saga_workers.runtime.wakeup import Wakeup
from sagas.settings import KafkaSettings

ShardPhase = Literal["standby", "starting", "publishing", "trouble", "fenced"]


@dataclass
class ShardState:
    """The state of a shard; ``reason`` is a message for ``trouble`` and ``fenced``.

    ``calls_kafka``: it waits for Kafka; otherwise, while it works, for its database. ``ended``: it does nothing more.
    """

    state: ShardPhase = "standby"
    reason: str = ""
    calls_kafka: bool = False
    ended: bool = False


@dataclass
class Outbox:
    """One outbox and what publishing it needs. ``guard`` is that of its connection; ``stop`` ends its shards."""

    guard: Guard
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
    def name(self) -> str:
        """The name of its connection."""
        return self.guard.name

    @property
    def source(self) -> str:
        """The CloudEvents source of its events."""
        return f"/{self.settings.prefix}/{self.name}"

    @property
    def batch_size(self) -> int:
        """Events per transaction: the setting, limited so that the ids of two batches fit into one progress record."""
        return max(1, min(self.settings.batch, self.settings.max_message_bytes // 80))
