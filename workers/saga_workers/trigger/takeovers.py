"""The moments at which a reader took over its partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable

from saga_workers.trigger.partition_assignment import AssignedPosition


class Takeovers:
    """When the partitions of a reader were taken over, and where they ended then."""

    def __init__(self) -> None:
        self._partitions: dict[int, tuple[int, float]] = {}

    def begin(self, starts: Iterable[AssignedPosition]) -> None:
        """Partitions were assigned."""
        self._partitions.update((start.partition, (start.end, time.monotonic())) for start in starts)

    def of(self, partition: int, offset: int) -> float | None:
        """See :class:`saga_workers.trigger.consumed_record.ConsumedRecord`."""
        end, at = self._partitions.get(partition, (0, 0.0))
        return at if offset < end else None
