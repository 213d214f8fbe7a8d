"""Asyncio: waits between the attempts of the engine's own work, waits that an event ends, work that a cancellation must
not interrupt, and the end of work that must not outlive its owner."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_EXPONENT = 64

_CANCEL_AGAIN = 1.0
"""Seconds that a cancelled task has to end before it is cancelled again."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays of ``first`` seconds and ``factor`` times as much each time, up to ``longest``.

    For the engine's own work; the retries of a saga's steps follow their `retry`.
    """

    first: float
    longest: float
    factor: float = 2.0

    def delay(self, attempt: int) -> float:
        """The delay after an attempt; the first one has the number 0."""
        return min(self.longest, self.first * self.factor ** min(attempt, _MAX_EXPONENT))

    def __iter__(self) -> Iterator[float]:
        """The delays in turn."""
        return map(self.delay, itertools.count())

    def restarting(self) -> Iterator[float]:
        """The delays in turn, and from the first again when none was needed for twice ``longest``."""
        attempt, last = 0, time.monotonic()
        while True:
            now = time.monotonic()
            if now - last > 2 * self.longest:
                attempt = 0
            last = now
            yield self.delay(attempt)
            attempt += 1


async def uncancellable(work: Awaitable[T], *, unless: Callable[[], bool] | None = None) -> T:
    """Wait for ``work`` to end, despite cancellation of the waiting task.

    A cancellation for which ``unless`` returns True also cancels the work.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            if unless is not None and unless():
                task.cancel()
    return task.result()


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raise is ignored.

    One cancellation may be lost: up to Python 3.11 `asyncio.wait_for`, which drivers and pools use, returns its result
    instead if that arrives at the same time. A task that repeats its work would then never end.
    """
    every = set(tasks)
    while pending := {task for task in every if not task.done()}:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_CANCEL_AGAIN)
    await asyncio.gather(*every, return_exceptions=True)


async def wait_first(*waits: Awaitable[Any], timeout: float | None = None) -> bool:
    """Wait until one of these has ended, and cancel the others; False if none has within ``timeout`` seconds.

    What they raise is ignored. A task that is to go on is waited for with ``asyncio.wait({task})``.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        ended, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(tasks)
    return bool(ended)


async def run_unless(end: Awaitable[Any], work: Awaitable[T], error: Exception) -> T:
    """The result of ``work``. As soon as ``end`` has ended, the work is cancelled, and ``error`` raised."""
    working = asyncio.ensure_future(work)
    try:
        await wait_first(end, asyncio.wait({working}))
        if not working.done():
            raise error
        return working.result()
    finally:
        await end_tasks([working])
