"""How a reader of `saga trigger` is a member of its group."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from saga_activities.kafka.config import consumer_config
from sagas.settings import KafkaSettings

_DEFAULT_PROPERTIES = {
    # A process that was killed is missed after this, and its partitions go to the others.
    "session.timeout.ms": 15_000,
    "heartbeat.interval.ms": 3_000,
    # A topic that is made later is found after this.
    "topic.metadata.refresh.interval.ms": 10_000,
    # Of every partition, read ahead in memory.
    "queued.max.messages.kbytes": 16_384,
}


def member_properties(settings: KafkaSettings, group: str) -> dict[str, Any]:
    """The properties of a member. What ``[kafka] client`` says wins over our habits, not over our guarantees.

    Raises UsageError, as :func:`saga_activities.kafka.config.consumer_config` does.
    """
    # The end of a partition is told with its offset, which is behind the markers that are no messages.
    return {**_DEFAULT_PROPERTIES, **consumer_config(settings, group), "enable.partition.eof": True}


class HighWatermarks:
    """Up to where the partitions of one member can be read, as far as its fetches have told.

    The client may be asked in the thread that polls it only: from another one it would wait for that thread's lock
    while it holds the interpreter's, and that thread, in a callback, for the interpreter's.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._due = 0.0

    def refresh(self, client: Any) -> None:
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
        self._offsets = found

    def lag(self, partition: int, position: int | None) -> int | None:
        """How many offsets lie between; None: nobody knows."""
        high = self._offsets.get(partition, -1)
        return None if position is None or high < 0 else max(high - position, 0)


# Whether a reader reaches Kafka. Its client tries for ever and in silence; people and orchestrators want to know.

log = logging.getLogger("saga.trigger")

STATISTICS_INTERVAL = 5.0
"""Seconds between two looks."""


class BrokerHealth:
    """What one client of Kafka says about its connections, told in the thread that polls."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._unreachable = False

    def properties(self) -> dict[str, Any]:
        """For the client's configuration."""
        return {"statistics.interval.ms": round(STATISTICS_INTERVAL * 1000), "stats_cb": self._on_statistics}

    def health(self) -> str | None:
        """None, or why nothing can be read at the moment."""
        return f"{self._group}: no broker of Kafka can be reached" if self._unreachable else None

    def _on_statistics(self, statistics: str) -> None:
        brokers = json.loads(statistics).get("brokers", {}).values()
        away = not any(one.get("state") == "UP" for one in brokers)
        if away and not self._unreachable:
            log.warning("%s: no broker of Kafka can be reached; messages wait", self._group)
        if self._unreachable and not away:
            log.info("%s reads again", self._group)
        self._unreachable = away
