"""How a reader of `saga trigger` is a member of its group."""

from __future__ import annotations

import time
from typing import Any

from saga_activities.kafka.config import consumer_config
from sagas.settings import KafkaSettings

_UNLESS_SAID = {
    # A process that was killed is missed after this, and its partitions go to the others.
    "session.timeout.ms": 15_000,
    "heartbeat.interval.ms": 3_000,
    # A topic that is made later is found after this.
    "topic.metadata.refresh.interval.ms": 10_000,
    # Of every partition, read ahead in memory.
    "queued.max.messages.kbytes": 16_384,
}


def membership(settings: KafkaSettings, group: str) -> dict[str, Any]:
    """The properties of a member. What ``[kafka] client`` says wins over our habits, not over our guarantees.

    Raises UsageError, as :func:`saga_activities.kafka.config.consumer_config` does.
    """
    # The end of a partition is told with its offset, which is behind the markers that are no messages.
    return {**_UNLESS_SAID, **consumer_config(settings, group), "enable.partition.eof": True}


class Highs:
    """Up to where the partitions of one member can be read, as far as its fetches have told.

    The client may be asked in the thread that polls it only: from another one it would wait for that thread's lock
    while it holds the interpreter's, and that thread, in a callback, for the interpreter's.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._due = 0.0

    def ask(self, client: Any) -> None:
        """Look again, at most once a second. In the thread that polls."""
        from confluent_kafka import KafkaException

        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 1.0
        found: dict[int, int] = {}
        for one in client.assignment():
            try:
                found[one.partition] = client.get_watermark_offsets(one, cached=True)[1]
            except KafkaException:
                continue  # it is just being handed over
        self._last = found

    def behind(self, partition: int, position: int | None) -> int | None:
        """How many offsets lie between; None: nobody knows."""
        high = self._last.get(partition, -1)
        return None if position is None or high < 0 else max(high - position, 0)
