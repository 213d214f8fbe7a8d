"""The rows that one process has read and not deleted yet: each key in order, all keys at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.concurrency import Backoff, end_tasks, wait_first
from saga_workers.enqueued.enqueued_table import EnqueuedHead, EnqueuedRow, EnqueuedTable
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.keyed_executor import KeyedExecutor

MAX_HELD = 2_000
"""Rows that are delivered, or wait for an earlier row of their key, at the same time."""

MAX_HELD_BYTES = 32 * 1024 * 1024
"""Bytes of their inputs. Values that are read from JSON take ten times as much, one after the other."""

MAX_HELD_OF_KEY = 50
"""Rows of one key among them: a long queue of one key leaves room for the others."""

DATABASE_ERRORS = (SQLAlchemyError, OSError, TimeoutError)
_POLL_INTERVAL = 0.02
_BACKOFF = Backoff(0.2, 5.0)


@dataclass(slots=True)
class HeldRows:
    """The rows that are read and not deleted yet."""

    rows: dict[int, EnqueuedHead] = field(default_factory=dict)
    keys: Counter[str] = field(default_factory=Counter[str])
    bytes: int = 0

    @property
    def full_keys(self) -> list[str]:
        return [key for key, rows in self.keys.items() if rows >= MAX_HELD_OF_KEY]

    def add(self, head: EnqueuedHead) -> None:
        self.rows[head.id] = head
        self.keys[head.key] += 1
        self.bytes += head.size

    def remove(self, id: int) -> None:
        head = self.rows.pop(id)
        self.keys[head.key] -= 1
        if not self.keys[head.key]:
            del self.keys[head.key]
        self.bytes -= head.size


class Deliveries:
    """The deliveries of one process while it has the lease.

    ``deliver`` returns the outcome of a row that was read at a time of this process, and None if the row stays;
    ``count`` is called with each outcome and the seconds since the row was written, ``report`` with what fails here.
    """

    def __init__(
        self,
        table: EnqueuedTable,
        deliver: Callable[[EnqueuedRow, float], Awaitable[str | None]],
        count: Callable[[str, float], None],
        report: Callable[[str], None],
    ) -> None:
        self.held = HeldRows()
        self._table, self._deliver_row, self._count, self._report = table, deliver, count, report
        self._executor = KeyedExecutor[tuple[EnqueuedRow, float]](self._deliver, MAX_HELD)
        self._done: set[int] = set()
        self._has_done, self._progress = asyncio.Event(), asyncio.Event()
        self._error: Exception | None = None
        self._deleting = asyncio.create_task(self._delete_forever())

    async def take_rows(self) -> bool:
        """Read rows, and begin to deliver them; False if there are none for which there is room."""
        if self._error is not None:
            raise self._error
        self._progress.clear()
        room = MAX_HELD - len(self.held.rows)
        if room <= 0 or self.held.bytes >= MAX_HELD_BYTES:
            return False
        taken = []
        for head in await self._table.heads(self.held.rows, self.held.full_keys, room):
            if self.held.rows and self.held.bytes + head.size > MAX_HELD_BYTES:
                break
            if self.held.keys[head.key] < MAX_HELD_OF_KEY:
                self.held.add(head)
                taken.append(head)
        rows = await self._table.read([head.id for head in taken]) if taken else {}
        for head in taken:
            if head.id in rows:
                self._executor.submit(head.key, (rows[head.id], time.monotonic()))
            else:  # dropped by an operator since it was found
                self.held.remove(head.id)
        return bool(rows)

    async def wait_progress(self, *ends: asyncio.Event) -> None:
        """Wait until a row is done, or for a moment."""
        await wait_first(*(event.wait() for event in (self._progress, *ends)), timeout=_POLL_INTERVAL)

    async def _deliver(self, taken: tuple[EnqueuedRow, float]) -> None:
        row, read_at = taken
        try:
            outcome = await self._deliver_row(row, read_at)
        except Exception as error:  # noqa: BLE001 - the loop raises it
            self._error = error
            self._progress.set()
            return
        if outcome is None:
            return
        if outcome == "dropped":
            self._release([row.id])
            return
        self._count(outcome, float(row.age) + time.monotonic() - read_at)
        if outcome == "refused":
            self._release([row.id])
        else:
            self._done.add(row.id)
            self._has_done.set()

    async def _delete_forever(self) -> None:
        """Delete what is delivered: all rows that became so during a statement by the next one."""
        backoff = iter(_BACKOFF)
        while True:
            await self._has_done.wait()
            self._has_done.clear()
            ids = sorted(self._done)
            try:
                await self._table.delete(ids)
            except DATABASE_ERRORS as error:
                self._report(f"the database does not answer: {driver_message(error)}")
                await asyncio.sleep(next(backoff))
                self._has_done.set()
                continue
            backoff = iter(_BACKOFF)
            self._done.difference_update(ids)
            self._release(ids)

    def _release(self, ids: list[int]) -> None:
        for id in ids:
            self.held.remove(id)
        self._progress.set()

    async def finish(self, grace: float) -> None:
        """Wait for the deliveries under way, at most ``grace`` seconds, and delete what they have delivered."""
        self._executor.discard(lambda _: True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._executor.wait_idle()
                while self._done:
                    self._progress.clear()
                    await self._progress.wait()

    async def end(self) -> None:
        await self._executor.stop()
        await end_tasks([self._deleting])
