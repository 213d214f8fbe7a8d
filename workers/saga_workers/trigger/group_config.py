"""Membership of a reader in its consumer group: client configuration, partition lag, reachability of the brokers."""

from __future__ import annotations

import logging
import time
from typing import Any

from saga_activities.kafka.config import consumer_config
from saga_workers.runtime.logs import fields
from sagas.settings import KafkaSettings
from sagas.text.exact_json import decode_json

_DEFAULT_PROPERTIES = {
    # The group reassigns the partitions of a killed process after this time.
    "session.timeout.ms": 15_000,
    "heartbeat.interval.ms": 3_000,
    # A topic that is created later is found after this time.
    "topic.metadata.refresh.interval.ms": 10_000,
    # Prefetch limit in memory, for each partition.
    "queued.max.messages.kbytes": 16_384,
}


_FILLED_FETCH = 256 * 1024
"""Bytes with which a fetch is answered before the fill time has passed."""


def member_properties(settings: KafkaSettings, group: str, *, fill_time: float = 0.0) -> dict[str, Any]:
    """Configuration of a group member. ``[kafka] client`` overrides defaults, but not what the guarantees rest on.

    ``fill_time``: seconds for which the brokers collect messages, 0 for none: a fetch of one message takes them about
    as much CPU as one of many.

    Raises UsageError, as :func:`saga_activities.kafka.config.consumer_config` does.
    """
    fetch = {"fetch.min.bytes": _FILLED_FETCH, "fetch.wait.max.ms": round(fill_time * 1000)} if fill_time else {}
    # The end-of-partition event has the true end offset, beyond control records, which are not delivered as messages.
    return {**_DEFAULT_PROPERTIES, **fetch, **consumer_config(settings, group), "enable.partition.eof": True}


def is_cooperative(settings: KafkaSettings) -> bool:
    """True if the project's own assignment strategy gives partitions one by one."""
    return "cooperative" in str(settings.client.get("partition.assignment.strategy", ""))


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


# Reachability of the brokers: the client retries forever without an error, but readiness probes and logs must show it.
log = logging.getLogger("saga.trigger")

STATISTICS_INTERVAL = 5.0
"""Seconds between two statistics callbacks."""


class BrokerHealth:
    """Connection state of one Kafka client, from its statistics callback in the polling thread."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._unreachable = False

    def properties(self) -> dict[str, Any]:
        """Properties to add to the client's configuration."""
        return {"statistics.interval.ms": round(STATISTICS_INTERVAL * 1000), "stats_cb": self._on_statistics}

    def health(self) -> str | None:
        """Why nothing can be read at present; None if it can."""
        return f"{self._group}: no Kafka broker can be reached" if self._unreachable else None

    def _on_statistics(self, statistics: str) -> None:
        brokers = decode_json(statistics).get("brokers", {}).values()
        away = not any(broker.get("state") == "UP" for broker in brokers)
        if away and not self._unreachable:
            log.warning("no Kafka broker can be reached, messages wait", extra=fields(group=self._group))
        if self._unreachable and not away:
            log.info("Kafka brokers can be reached again", extra=fields(group=self._group))
        self._unreachable = away
