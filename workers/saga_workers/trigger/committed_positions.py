"""The positions that a reader commits."""

from __future__ import annotations

import logging
from typing import Any

from saga_activities.kafka.errors import classify_kafka_error
from saga_workers.runtime.logs import fields
from saga_workers.trigger.delivery import DeliveryMark

log = logging.getLogger("saga.trigger")


def commit_position(topic: str, partition: int, offset: int, mark: DeliveryMark) -> Any:
    """The position to commit: the offset, and the mark with the id of the topic that it belongs to."""
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, partition, offset, metadata=str(mark))


def commit_revoked(client: Any, group: str, topic: str, offsets: list[Any]) -> None:
    """Commit the positions of partitions that go to another member, which otherwise reads some records again."""
    from confluent_kafka import KafkaException

    if not offsets:
        return
    try:
        client.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        reason = classify_kafka_error(error).reason
        log.warning("offsets of revoked partitions not committed: %s", reason, extra=fields(group=group, topic=topic))
