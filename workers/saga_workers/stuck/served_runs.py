"""Tells whether any worker serves an open run: anybody may start a run on a task queue that nobody polls."""

from __future__ import annotations

from saga_workers.location.locator import Locator
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers


def is_on_own_queue(locator: Locator, run: RunInfo) -> bool:
    """True for a run on the task queue of the project; of any run without a project."""
    return locator.settings is None or run.task_queue == locator.settings.temporal.task_queue


async def is_served(locator: Locator, run: RunInfo) -> bool:
    """False for an open run on a task queue that is not the project's, and that no worker polls."""
    return is_on_own_queue(locator, run) or await count_pollers(locator.temporal, run.task_queue) > 0
