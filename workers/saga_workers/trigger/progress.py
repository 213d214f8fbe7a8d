"""How far a partition has been worked off, while its messages end in any order."""

from __future__ import annotations


class Progress:
    """The offsets of one partition. What may be committed is everything below the lowest that has not ended.

    Offsets have gaps (control markers, compaction), so nothing here counts on the next one being one more.
    """

    def __init__(self) -> None:
        self._open: dict[int, None] = {}  # in the order they were read, so the first is the lowest
        self._next: int | None = None
        self._committed: int | None = None

    @property
    def open(self) -> int:
        """Messages that were read and have not ended."""
        return len(self._open)

    def read(self, offset: int) -> None:
        """A message was read; offsets come in order."""
        self._open[offset] = None
        self._next = offset + 1

    def skip_to(self, offset: int) -> None:
        """The reader has passed everything below ``offset``, control markers at the end included."""
        self._next = max(offset, self._next or 0)

    def end(self, offset: int) -> None:
        """A message has had its effect, for good."""
        self._open.pop(offset, None)

    @property
    def position(self) -> int | None:
        """The offset to go on from after a crash now; None: nothing was read yet."""
        return next(iter(self._open), self._next)

    def to_commit(self) -> int | None:
        """The position, when it is further than what was committed last."""
        position = self.position
        return position if position is not None and position != self._committed else None

    def committed(self, offset: int) -> None:
        self._committed = offset
