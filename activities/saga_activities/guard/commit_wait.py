"""Waits for the response to COMMIT as long as the attempt has time, and looks for its effect if none arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from saga_activities.concurrency import end_tasks
from saga_activities.guard.transaction import LONGER_TIMEOUT, LostCommit

T = TypeVar("T")

COMMIT_GRACE = 10.0
"""Seconds that a COMMIT has at least, even beyond its attempt's deadline: the effect exists by then, so a late outcome
is better than none. Also the interval of the looks for the effect of a longer one, and the time of such a look."""

_REPORTING = 0.5
"""Seconds of the attempt that are left for reporting that COMMIT took too long, before Temporal times it out."""


async def await_commit(commit: Awaitable[None], deadline: float, look: Callable[[], Awaitable[T | None]]) -> T | None:
    """Wait for ``commit`` until ``deadline``, in seconds since the epoch; None if it was answered.

    A network may lose the response without closing the connection: ``look`` reads on another one whether the effect is
    there, and what it finds ends the wait. Raises LostCommit once the time is over, and what ``commit`` raises.
    """
    remaining = deadline - time.time()
    seconds = max(COMMIT_GRACE, remaining - min(_REPORTING, remaining / 10))
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(seconds)
    watch = _EffectWatch(look, lambda: limit.reschedule(loop.time()))
    # Not a task: most responses arrive long before the first look, and a task costs more than a timer.
    timer = loop.call_later(COMMIT_GRACE, watch.begin)
    try:
        async with limit:
            await commit
        return None
    except TimeoutError:
        if watch.effect is not None:
            return watch.effect
        if limit.expired():
            raise LostCommit(_too_slow(seconds)) from None
        raise
    finally:
        timer.cancel()
        await watch.end()


class _EffectWatch(Generic[T]):
    """Looks for the effect of a COMMIT again and again, until it is there, and then calls ``end_wait``."""

    def __init__(self, look: Callable[[], Awaitable[T | None]], end_wait: Callable[[], None]) -> None:
        self.effect: T | None = None
        self._look = look
        self._end_wait = end_wait
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        while True:
            with suppress(Exception):  # if the database cannot be asked, the response may still arrive
                self.effect = await self._look()
            if self.effect is not None:
                return self._end_wait()
            await asyncio.sleep(COMMIT_GRACE)


def _too_slow(seconds: float) -> str:
    return (
        f"there was none within {seconds:.1f} s, which is what the `timeout` of the step left for COMMIT, and at least"
        f" {COMMIT_GRACE:g} s; {LONGER_TIMEOUT}"
    )
