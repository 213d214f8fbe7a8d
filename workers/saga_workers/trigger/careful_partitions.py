"""Handles the records behind the position of a process that has ended: one at a time, each attempt counted before.

See `delivery.py`. The records after these are held, and handled as usual when it is clear that none of them has ended
the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from saga_activities.concurrency import run_unless
from saga_workers.runtime.logs import fields
from saga_workers.trigger.attempt_gate import AttemptGate
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.delivery import Delivery, DeliveryMark
from saga_workers.trigger.offset_tracker import OffsetTracker
from saga_workers.trigger.partition_marks import PartitionMarks
from saga_workers.trigger.retry import ProcessStopping

log = logging.getLogger("saga.trigger")


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A record to handle, and the progress of its partition."""

    record: ConsumedRecord
    tracker: OffsetTracker


@dataclass(slots=True)
class _Careful:
    held: deque[WorkItem] = field(default_factory=deque)
    in_process: WorkItem | None = None
    at_end: bool = False
    revoked: asyncio.Event = field(default_factory=asyncio.Event)


class CarefulPartitions:
    """The partitions of one reader with records to be handled carefully.

    ``submit`` has an item handled as usual, ``submit_careful`` after all other items of its partition.
    ``commit_mark`` commits the position of an item with a mark. ``max_attempts``: those of a record, and ``timeout``:
    the seconds of each.
    """

    def __init__(
        self,
        marks: PartitionMarks,
        gate: AttemptGate,
        *,
        group: str,
        max_attempts: int,
        timeout: float,
        submit: Callable[[WorkItem], None],
        submit_careful: Callable[[WorkItem], None],
        commit_mark: Callable[[WorkItem, DeliveryMark], Awaitable[None]],
    ) -> None:
        self._marks = marks
        self._gate = gate
        self._group = group
        self._max_attempts = max_attempts
        self._timeout = timeout
        self._submit = submit
        self._submit_careful = submit_careful
        self._commit_mark = commit_mark
        self._partitions: dict[int, _Careful] = {}

    def __bool__(self) -> bool:
        """True while a record is handled carefully."""
        return any(careful.in_process is not None for careful in self._partitions.values())

    @property
    def pending(self) -> int:
        """Records that are held."""
        return sum(len(careful.held) for careful in self._partitions.values())

    def hold(self, item: WorkItem) -> bool:
        """Take an item over; False if its partition is read as usual."""
        partition = item.record.partition
        state = self._partitions.get(partition)
        if state is None:
            if self._marks.careful_records(partition) <= 0:
                return False
            state = self._partitions[partition] = _Careful()
        state.held.append(item)
        self._go_on(partition, state)
        return True

    def at_end(self, partition: int) -> None:
        """All records of the partition were read: no other one can have ended the process."""
        state = self._partitions.get(partition)
        if state is not None:
            state.at_end = True
            self._go_on(partition, state)
        elif self._marks.careful_records(partition) > 0:
            self._marks.finish(partition, at_end=True)

    def handled(self, item: WorkItem) -> None:
        """The handler has returned. Other items than those of `submit_careful` are ignored."""
        partition = item.record.partition
        state = self._partitions.get(partition)
        if state is not None and state.in_process is item:
            state.in_process = None
            self._marks.handled(partition)
            self._go_on(partition, state)

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget what is held of these partitions, and let no further attempt begin."""
        for partition in partitions:
            if (state := self._partitions.pop(partition, None)) is not None:
                state.held.clear()
                state.revoked.set()

    def _go_on(self, partition: int, state: _Careful) -> None:
        if state.in_process is not None:
            return
        if state.at_end and not state.held:
            self._marks.finish(partition, at_end=True)
        if self._marks.careful_records(partition) <= 0:
            del self._partitions[partition]
            for item in state.held:
                self._submit(item)
        elif state.held:
            item = state.in_process = state.held.popleft()
            ended = self._marks.ended(partition, item.record.offset)
            alone = ended > 0 or self._max_attempts <= 1
            item.record.delivery = Delivery(ended, partial(self._turn, state, item, ended, alone), alone)
            self._submit_careful(item)

    @contextlib.asynccontextmanager
    async def _turn(self, state: _Careful, item: WorkItem, ended: int, alone: bool) -> AsyncIterator[None]:
        """Entered for one attempt. Raises ProcessStopping if the partition is given up before it begins."""
        record = item.record
        async with contextlib.AsyncExitStack() as stack:
            turn = self._gate.alone(ended, self._timeout) if alone else self._gate.shared()
            await _unless(state.revoked, stack.enter_async_context(turn))
            await _unless(state.revoked, self._commit_mark(item, self._marks.began(record.partition, record.offset)))
            log_careful_attempt(self._group, record, ended, self._max_attempts)
            try:
                yield
            except BaseException as error:
                mark = self._marks.survived(record.partition, record.offset)
                if isinstance(error, Exception) and mark is not None:
                    await _unless(state.revoked, self._commit_mark(item, mark))
                raise


def log_careful_attempt(group: str, record: ConsumedRecord, ended: int, max_attempts: int) -> None:
    """Name the record before its handler, which may end the process, is called."""
    about = fields(group=group, record=record.position)
    if ended:
        log.warning(
            "attempt %d of %d begins; the attempts before have ended their process",
            ended + 1,
            max_attempts,
            extra=about,
        )
    else:
        log.info("attempt begins, of a record that may have ended the last process", extra=about)


async def _unless(revoked: asyncio.Event, work: Awaitable[object]) -> None:
    """Wait for ``work``; cancel it and raise ProcessStopping as soon as the partition is given up."""
    await run_unless(revoked.wait(), work, ProcessStopping())
