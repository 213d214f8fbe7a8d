"""The delivery marks of one reader's partitions, and in which of them records are handled carefully at present."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from saga_activities.kafka.truncation import UNKNOWN_PLACE, ReadPlace
from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.partition_assignment import AssignedPosition

CALM_TIME = 60.0
"""Seconds after which the end of a process counts as another one, not as a repetition of the last."""


@dataclass(slots=True)
class _Partition:
    """``resting``: the mark while no attempt is in progress. ``careful_records``: those to be handled carefully.

    ``read``: the place behind the newest record, with which each mark is committed.
    """

    resting: DeliveryMark
    current: DeliveryMark
    careful_records: int
    read: ReadPlace
    calm_at: float = 0.0


class PartitionMarks:
    """The marks of the partitions that are assigned; ``reader`` is the id that the marks have."""

    def __init__(self, reader: str) -> None:
        self.reader = reader
        self._partitions: dict[int, _Partition] = {}

    def begin(self, starts: Iterable[AssignedPosition]) -> None:
        """Partitions were assigned."""
        for start in starts:
            self._partitions[start.partition] = _Partition(start.mark, start.mark, start.mark.window, start.mark.read)

    def restart(self, partitions: Iterable[int], topic_id: str, read: ReadPlace = UNKNOWN_PLACE) -> None:
        """Partitions are read from another position, where nothing has happened yet. ``read``: the place behind what
        was read before it.
        """
        for partition in partitions:
            mark = DeliveryMark(topic_id, self.reader)
            self._partitions[partition] = _Partition(mark, mark, 0, read)

    def read(self, partition: int, offset: int, epoch: int | None) -> None:
        """A record was read; ``epoch``: that of the leader that wrote it, if the brokers tell it."""
        state = self._partitions.get(partition)
        if state is not None and epoch is not None and epoch >= 0:
            state.read = ReadPlace(offset + 1, epoch)

    def place(self, partition: int) -> ReadPlace:
        """The place behind the newest record that was read."""
        state = self._partitions.get(partition)
        return state.read if state is not None else UNKNOWN_PLACE

    def end(self, partitions: Iterable[int]) -> None:
        """Partitions were given up."""
        for partition in partitions:
            self._partitions.pop(partition, None)

    def careful_records(self, partition: int) -> int:
        """The number of records that are still to be handled carefully."""
        state = self._partitions.get(partition)
        return state.careful_records if state is not None else 0

    def ended(self, partition: int, offset: int) -> int:
        """Attempts for the record that have ended their process."""
        state = self._partitions.get(partition)
        return state.resting.for_record(offset) if state is not None else 0

    def attempts(self) -> Iterator[tuple[int, int]]:
        """Partition, and the attempts for its next record that have ended their process."""
        return ((number, state.resting.attempts) for number, state in list(self._partitions.items()))

    def began(self, partition: int, offset: int) -> DeliveryMark:
        """Count an attempt; returns the mark to commit before it."""
        state = self._partitions[partition]
        state.current = state.resting.began(offset, state.resting.for_record(offset) + 1)
        return replace(state.current, read=state.read)

    def survived(self, partition: int, offset: int) -> DeliveryMark | None:
        """The attempt has failed, but has not ended the process: the mark without it."""
        state = self._partitions.get(partition)
        if state is None:
            return None
        state.current = state.resting = state.resting.began(offset, state.resting.for_record(offset))
        return replace(state.current, read=state.read)

    def handled(self, partition: int) -> None:
        """A record that is handled carefully has ended for good."""
        if (state := self._partitions.get(partition)) is not None:
            state.current = state.resting = state.resting.between_records()
            state.careful_records -= 1
            if state.careful_records <= 0:
                self.finish(partition)

    def finish(self, partition: int, *, at_end: bool = False) -> None:
        """From now on the records of this partition are handled as usual. ``at_end``: no other record was read before
        the process ended, so that the next end has another cause.
        """
        if (state := self._partitions.get(partition)) is not None:
            fresh_mark = DeliveryMark(state.resting.topic_id, self.reader)
            state.current = state.resting = fresh_mark if at_end else state.resting.between_records()
            state.careful_records, state.calm_at = 0, time.monotonic() + CALM_TIME

    def current(self, partition: int) -> DeliveryMark:
        """The mark to commit with a position."""
        state = self._partitions.get(partition)
        if state is None:
            return DeliveryMark("", self.reader)
        if state.careful_records <= 0 and state.current.window and time.monotonic() > state.calm_at:
            state.current = state.resting = DeliveryMark(state.resting.topic_id, self.reader)
        return replace(state.current, read=state.read)

    def given_up(self, partition: int) -> DeliveryMark:
        """The mark to commit when the partition is given up in order: the next reader goes on where this one was."""
        state = self._partitions.get(partition)
        if state is None:
            return DeliveryMark()
        mark = state.resting.given_up() if state.careful_records > 0 else DeliveryMark(state.resting.topic_id)
        return replace(mark, read=state.read)
