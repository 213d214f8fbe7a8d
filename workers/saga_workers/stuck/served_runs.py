"""Tells whether any worker serves an open run: anybody may start a run on a task queue that nobody polls."""

from __future__ import annotations

from saga_workers.location.locator import Locator
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers


async def is_served(locator: Locator, run: RunInfo) -> bool:
    """False for an open run on a task queue that is not the project's, and that no worker polls."""
    if locator.settings is None or run.task_queue == locator.settings.temporal.task_queue:
        return True
    return await count_pollers(locator.temporal, run.task_queue) > 0
