"""Notices when a reader has to join its group again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin
from saga_workers.trigger.empty_assignment import EmptyAssignment
from saga_workers.trigger.stalled_fetching import StalledFetching


class Membership:
    """The membership of one reader in the group that reads ``topic``. Call everything in the thread of the client."""

    def __init__(self, topic: str) -> None:
        self._empty_assignment = EmptyAssignment(topic)
        self._stalled_fetching = StalledFetching(topic)

    def assigned(self, partitions: Collection[Any]) -> None:
        """The group has assigned these partitions."""
        self._empty_assignment.assigned(partitions)
        self._stalled_fetching.goes_on()

    def revoked(self) -> None:
        """The group assigns again."""
        self._empty_assignment.revoked()

    def fetched(self) -> None:
        """The client has fetched a record, or has come to the end of a partition."""
        self._stalled_fetching.goes_on()

    def why_to_join_again(
        self, cluster: KafkaAdmin, group: str, read_to: Mapping[int, int | None], *, is_busy: bool
    ) -> str | None:
        """Why an idle reader has to join again; None if it has not. ``read_to``: the offset from which each of its
        partitions is read, None if it is not known. ``is_busy``: records are being handled. Raises KafkaOperationError.
        """
        if not read_to:
            return "no member has the topic" if self._empty_assignment.is_forgotten(cluster, group) else None
        if is_busy or not self._stalled_fetching.is_stalled(cluster, read_to):
            return None
        return "nothing is fetched although records wait"
