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
        self._stalled_fetching.begin_again()

    def revoked(self) -> None:
        """The group assigns again."""
        self._empty_assignment.revoked()

    def why_to_join_again(
        self,
        cluster: KafkaAdmin,
        group: str,
        read_to: Mapping[int, int | None],
        *,
        is_busy: bool = False,
        is_paused: bool = False,
    ) -> str | None:
        """Why a reader has to join again, for which the client has no record now; None if it has not.

        ``read_to``: the offset from which each of its partitions is read, None if it is not known. ``is_busy``: records
        are being handled, which must not be interrupted. ``is_paused``: nothing is to be fetched. Raises
        KafkaOperationError.
        """
        if not read_to:
            return "no member has the topic" if self._empty_assignment.is_forgotten(cluster, group) else None
        if is_paused:
            self._stalled_fetching.begin_again()
        if is_paused or is_busy or not self._stalled_fetching.is_stalled(cluster, read_to):
            return None
        return "nothing is fetched although records wait"
