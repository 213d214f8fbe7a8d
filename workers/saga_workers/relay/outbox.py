"""What the shards of one outbox share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from saga_workers.relay.bell import Bell
from saga_workers.relay.lease import Leases
from saga_workers.relay.left_out import LeftOut
from saga_workers.relay.metrics import RelayMetrics
from saga_workers.relay.rows import Home, OutboxRows
from sagas.settings import KafkaSettings

State = Literal["standby", "starting", "publishing", "trouble", "fenced"]


@dataclass
class ShardState:
    """What a shard does now; ``reason`` is a sentence for trouble."""

    state: State = "standby"
    reason: str = ""


@dataclass
class Outbox:
    """One outbox and what publishing it needs. ``name`` is its connection's; ``stop`` ends its shards."""

    name: str
    settings: KafkaSettings
    home: Home
    rows: OutboxRows
    leases: Leases
    bell: Bell
    metrics: RelayMetrics
    stop: asyncio.Event
    once: bool = False
    left_out: LeftOut = field(default_factory=LeftOut)
    states: dict[int, ShardState] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The CloudEvents source of its events."""
        return f"/{self.settings.prefix}/{self.name}"

    @property
    def batch(self) -> int:
        """Events in one transaction: as set, but so that the ids of two batches fit into one progress record."""
        return max(1, min(self.settings.batch, self.settings.max_message_bytes // 80))
