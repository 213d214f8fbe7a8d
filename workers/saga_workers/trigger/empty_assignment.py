"""A consumer group that has forgotten its topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.start_positions import REQUEST_TIMEOUT

_ASSIGNMENT_PATIENCE = 10.0
"""Seconds without a partition until a member looks whether others have the topic."""


class EmptyAssignment:
    """Notices that a group has forgotten its topic.

    The member that assigns the partitions may just not see the topic, because it is deleted and created again. Then
    all members have an empty assignment, and the client library joins again only if the number of partitions changes.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._due: float | None = None

    def assigned(self, partitions: Collection[Any]) -> None:
        """The group has assigned these partitions."""
        self._due = None if partitions else time.monotonic() + _ASSIGNMENT_PATIENCE

    def revoked(self) -> None:
        """The group assigns again."""
        self._due = None

    def is_forgotten(self, client: Any, read_topic_id: Callable[[str], str]) -> bool:
        """True if no member has the topic although it exists. Raises KafkaException, KafkaOperationError."""
        from confluent_kafka import TopicPartition

        if self._due is None or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _ASSIGNMENT_PATIENCE
        numbers = client.list_topics(self._topic, REQUEST_TIMEOUT).topics[self._topic].partitions
        if not numbers:
            return False
        topic_id = read_topic_id(self._topic)
        positions = client.committed([TopicPartition(self._topic, number) for number in numbers], REQUEST_TIMEOUT)
        marks = [DeliveryMark.parse(position.metadata) for position in positions]
        # Members commit an open mark for each partition that they take over.
        return not any(mark.is_open and mark.topic_id == topic_id for mark in marks)
