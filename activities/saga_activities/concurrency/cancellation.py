"""Work that goes on although its attempt is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


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
