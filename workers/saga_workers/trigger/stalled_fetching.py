"""Notices a client library that fetches nothing of partitions in which records wait, as after its topic was deleted and
created again in the middle of a rebalance.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets

PATIENCE = 30.0
"""Seconds for which an idle reader may have records before it that it does not get."""

_INTERVAL = 10.0
"""Seconds between two questions to the brokers."""


class StalledFetching:
    """The state of one reader of ``topic``."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._waits: dict[int, tuple[int | None, float]] = {}
        """The partitions with records before the reader: the offset from which each is read, and since when."""
        self._asked_at = 0.0

    def begin_again(self) -> None:
        """Nothing was expected to be fetched until now: the partitions are assigned again, or were paused."""
        self._waits.clear()

    def is_stalled(self, cluster: KafkaAdmin, read_to: Mapping[int, int | None]) -> bool:
        """True if records of a partition have waited for too long, whatever was fetched of the others.

        ``read_to``: the offset from which each partition is read; None if it is not known. Records of a transaction
        that is open do not wait. Raises KafkaOperationError.
        """
        now = time.monotonic()
        if now - self._asked_at < min(_INTERVAL, PATIENCE / 3):
            return False
        if now - self._asked_at > PATIENCE:  # the process was stopped, or busy: nobody knows what it could have fetched
            self.begin_again()
        self._asked_at = now
        try:
            ends = cluster.offsets(self._topic)
        except KafkaOperationError:
            self.begin_again()  # nothing can be fetched while the brokers do not answer
            raise
        before = self._waits
        self._waits = {
            partition: before[partition] if (partition in before and before[partition][0] == offset) else (offset, now)
            for partition, offset in read_to.items()
            if partition in ends and _has_records(ends[partition], offset)
        }
        return any(now - since >= PATIENCE for _, since in self._waits.values())


def _has_records(end: PartitionOffsets, offset: int | None) -> bool:
    return end.log_start < end.last_stable and (offset or 0) < end.last_stable
