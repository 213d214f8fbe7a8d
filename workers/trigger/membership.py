"""How a reader of `saga trigger` is a member of its group."""

from __future__ import annotations

from typing import Any

from activities.kafka.config import consumer_config
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

    Raises UsageError, as :func:`activities.kafka.config.consumer_config` does.
    """
    # The end of a partition is told with its offset, which is behind the markers that are no messages.
    return {**_UNLESS_SAID, **consumer_config(settings, group), "enable.partition.eof": True}
