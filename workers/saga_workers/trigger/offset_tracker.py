"""Tracks how far a partition is processed while its messages end in any order."""

from __future__ import annotations


class OffsetTracker:
    """Tracks how far a partition is processed while its messages end in any order.

    Everything below the lowest message in flight may be committed. Offsets have gaps (control records, compaction), so
    nothing here assumes that the next one is greater by one.
    """

    def __init__(self, start: int | None = None) -> None:
        """``start``: the committed position from which the partition is read."""
        self._in_flight: dict[int, None] = {}  # in the order of reading, so the first is the lowest
        self._next = start
        self._committed = start

    @property
    def in_flight(self) -> int:
        """Messages that were read and have not ended."""
        return len(self._in_flight)

    def add(self, offset: int) -> None:
        """A message was read; offsets come in ascending order."""
        self._in_flight[offset] = None
        self._next = offset + 1

    def skip_to(self, offset: int) -> None:
        """The reader has passed everything below ``offset``, including control records at the end."""
        self._next = max(offset, self._next or 0)

    def complete(self, offset: int) -> None:
        """A message has been handled for good."""
        self._in_flight.pop(offset, None)

    @property
    def position(self) -> int | None:
        """The offset from which to continue after a crash now; None if nothing was read yet."""
        return next(iter(self._in_flight), self._next)

    @property
    def read_to(self) -> int | None:
        """The offset from which the reader goes on now; messages before it may be in flight."""
        return self._next

    def to_commit(self) -> int | None:
        """The position, if it differs from the last committed one; else None."""
        position = self.position
        return position if position is not None and position != self._committed else None

    def mark_committed(self, offset: int) -> None:
        self._committed = offset
