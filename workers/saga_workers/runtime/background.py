"""Tasks that run as long as their process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

RESTART_DELAY = 60.0
"""Seconds until work that an internal error has ended begins again."""

log = logging.getLogger("saga")


def start_background(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """Start a task of this name. If an error ends the work, which is a bug, that is logged, and it begins again later:
    what others can cause must not end it until the process is restarted.
    """
    return asyncio.create_task(_repeat_after_errors(work, name), name=name)


async def _repeat_after_errors(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    while True:
        try:
            return await work()
        except Exception:
            log.exception(
                "%s was ended by an internal error (a bug in saga), and begins again in %g s", name, RESTART_DELAY
            )
        await asyncio.sleep(RESTART_DELAY)
