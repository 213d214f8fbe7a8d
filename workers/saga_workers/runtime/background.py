"""Tasks that run as long as their process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any


def start_background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task of this name; if it ends by an error, which is a bug, that is logged at once."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_crash)
    return task


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("%s stopped by an internal error (a bug in saga)", task.get_name(), exc_info=task.exception())


log = logging.getLogger("saga")
