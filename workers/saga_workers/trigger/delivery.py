"""Deliveries of records that end their process, counted where the end of a process cannot lose them.

Each commit of a consumer group carries a :class:`DeliveryMark` as its metadata. A reader marks its partitions as open
when it takes them over, and clears the mark when it gives them up in order. A mark that is still open at the next
assignment says that a process ended while it read. Which record was the cause is not known, so the records behind the
position are handled carefully: one at a time, with a mark that counts the attempt committed before each. The other
records cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from saga_activities.kafka.truncation import UNKNOWN_PLACE, ReadPlace

FIRST_WINDOW = 64
"""Records of a partition that are handled carefully after a process has ended."""
LARGEST_WINDOW = 1024


@dataclass(frozen=True, slots=True)
class DeliveryMark:
    """The metadata of a committed position.

    ``reader``: the reader that has the partition open; empty if it was given up in order. ``window``: how many records
    are, or were lately, handled carefully; 0 for none. ``attempts``: those begun for the record at ``offset``; more
    than the process that begins one survives, they end as a dead letter. ``read``: the place behind the newest record
    that was read, at or behind the position.
    """

    topic_id: str = ""
    reader: str = ""
    window: int = 0
    offset: int = -1
    attempts: int = 0
    read: ReadPlace = UNKNOWN_PLACE

    def __str__(self) -> str:
        if not self.reader and not self.window and self.read == UNKNOWN_PLACE:
            return self.topic_id
        numbers = (self.window, self.offset, self.attempts, self.read.offset, self.read.epoch)
        return " ".join(map(str, (self.topic_id or "-", self.reader or "-", *numbers)))

    @classmethod
    def parse(cls, metadata: str | None) -> DeliveryMark:
        """Read a mark. Other metadata, which some other program has committed, marks nothing."""
        words = ["" if word == "-" else word for word in (metadata or "").split(" ")]
        if len(words) != 7 or not all(word.removeprefix("-").isdecimal() for word in words[2:]):
            return cls(words[0])
        window, offset, attempts, read_offset, epoch = map(int, words[2:])
        return cls(words[0], words[1], window, offset, attempts, ReadPlace(read_offset, epoch))

    @property
    def is_open(self) -> bool:
        """True if its reader has not given the partition up."""
        return bool(self.reader)

    def taken_over(self, reader: str) -> DeliveryMark:
        """The mark with which ``reader`` begins."""
        if not self.is_open:
            return replace(self, reader=reader)
        if self.reader == reader:  # it lost the partition but lives, so its last attempt did not end the process
            return replace(self, attempts=max(self.attempts - 1, 0))
        if self.attempts:
            return replace(self, reader=reader)
        return replace(self, reader=reader, window=min(max(FIRST_WINDOW, 4 * self.window), LARGEST_WINDOW))

    def for_record(self, offset: int) -> int:
        """The attempts begun for the record at ``offset``."""
        return self.attempts if offset == self.offset else 0

    def began(self, offset: int, attempts: int) -> DeliveryMark:
        """The mark that counts these attempts for a record."""
        return replace(self, offset=offset, attempts=attempts)

    def between_records(self) -> DeliveryMark:
        """The mark while no record is being handled carefully."""
        return replace(self, offset=-1, attempts=0)

    def place(self, position: int) -> ReadPlace:
        """The place at or before this position behind which no record was read; see :class:`ReadPlace`."""
        return replace(self.read, offset=min(self.read.offset, position))

    def given_up(self) -> DeliveryMark:
        """The mark of a partition that is given up in order."""
        return replace(self, reader="")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a record to its handler.

    ``ended``: attempts that ended their process. ``turn``: entered for the time of each attempt. ``alone``: no other
    handler of the process runs meanwhile. ``aside``: entered while the record waits for long, so that the reader goes
    on with others.
    """

    ended: int = 0
    turn: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext
    alone: bool = False
    aside: Callable[[], AbstractAsyncContextManager[Any]] = nullcontext

    def give_up_reason(self, max_attempts: int) -> str | None:
        """Why no further attempt is made, or None."""
        if not self.ended or self.ended < max_attempts:
            return None
        return f"it ended its process {self.ended} {'time' if self.ended == 1 else 'times'}"
