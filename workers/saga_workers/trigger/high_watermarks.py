"""How far a member of a consumer group is behind the ends of its partitions."""

from __future__ import annotations

import time
from typing import Any


class HighWatermarks:
    """The high watermarks of one member's partitions, as of its last fetches.

    Ask the client only in the thread that polls it. Another thread would wait for the client's lock while holding the
    GIL, and the polling thread, in a callback, for the GIL: a deadlock.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._due = 0.0

    def refresh(self, client: Any) -> None:
        """Update the watermarks, at most once a second. Call it in the polling thread."""
        from confluent_kafka import KafkaException

        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 1.0
        high_watermarks: dict[int, int] = {}
        for partition in client.assignment():
            try:
                high_watermarks[partition.partition] = client.get_watermark_offsets(partition, cached=True)[1]
            except KafkaException:
                continue  # the partition is being reassigned
        self._offsets = high_watermarks

    def lag(self, partition: int, position: int | None) -> int | None:
        """Offsets between the position and the high watermark; None if unknown."""
        high = self._offsets.get(partition, -1)
        return None if position is None or high < 0 else max(high - position, 0)
