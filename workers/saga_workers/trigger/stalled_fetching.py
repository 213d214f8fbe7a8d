"""Notices a client library that fetches nothing of partitions in which records wait, as after its topic was deleted and
created again in the middle of a rebalance.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from saga_activities.kafka.admin import KafkaAdmin

PATIENCE = 30.0
"""Seconds for which an idle reader may have records before it that it does not get."""

_INTERVAL = 10.0
"""Seconds between two questions to the brokers."""


class StalledFetching:
    """The state of one reader of ``topic``."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._since: float | None = None
        self._due = 0.0

    def goes_on(self) -> None:
        """Something was fetched, or is about to be."""
        self._since = None

    def is_stalled(self, cluster: KafkaAdmin, read_to: Mapping[int, int | None]) -> bool:
        """True if records have waited for too long. ``read_to``: the offset from which each partition is read; None if
        it is not known. Raises KafkaOperationError.
        """
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = now + min(_INTERVAL, PATIENCE / 3)
        ends = cluster.offsets(self._topic)
        waits = any(
            end.log_start < end.last_stable and (read_to[partition] or 0) < end.last_stable
            for partition, end in ends.items()
            if partition in read_to
        )
        if not waits:
            self._since = None
            return False
        self._since = self._since or now
        return now - self._since >= PATIENCE
