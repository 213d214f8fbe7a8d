"""Waits for the response to COMMIT as long as the attempt has time, and looks for its effect if none arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

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
    end = time.monotonic() + seconds
    task = asyncio.ensure_future(commit)
    try:
        while not await _has_ended(task, min(COMMIT_GRACE, end - time.monotonic())):
            if time.monotonic() >= end:
                raise LostCommit(_too_slow(seconds))
            effect = await _find_meanwhile(task, look())
            if effect is not None:
                return effect
        await task
        return None
    finally:
        await _stop(task)


async def _has_ended(task: asyncio.Future[None], seconds: float) -> bool:
    await asyncio.wait({task}, timeout=max(0.0, seconds))
    return task.done()


async def _find_meanwhile(commit: asyncio.Future[None], look: Awaitable[T | None]) -> T | None:
    """Look while ``commit`` runs; None also if the database cannot be asked: the response may still arrive."""
    task = asyncio.ensure_future(look)
    await asyncio.wait({commit, task}, return_when=asyncio.FIRST_COMPLETED)
    if commit.done():
        await _stop(task)
        return None
    return None if task.exception() is not None else task.result()


async def _stop(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # marks it as retrieved


def _too_slow(seconds: float) -> str:
    return (
        f"there was none within {seconds:.1f} s, which is what the `timeout` of the step left for COMMIT, and at least"
        f" {COMMIT_GRACE:g} s; {LONGER_TIMEOUT}"
    )
