"""Asyncio: waits between the attempts of the engine's own work, and work that a cancellation must not interrupt."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_MAX_EXPONENT = 64


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

    A cancellation for which ``unless`` returns True cancels the work, too.
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
