"""The configuration of the Kafka client with which a reader is a member of its consumer group."""

from __future__ import annotations

from typing import Any

from saga_activities.kafka.config import consumer_config
from sagas.settings import KafkaSettings

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
