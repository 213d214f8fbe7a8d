"""A consumer group that has forgotten its topic."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin

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

    def is_forgotten(self, cluster: KafkaAdmin, group: str) -> bool:
        """True if no member has the topic although it exists. Raises KafkaOperationError."""
        if self._due is None or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _ASSIGNMENT_PATIENCE
        return not cluster.unusable_topics([self._topic]) and not cluster.is_read_by(group, self._topic)
