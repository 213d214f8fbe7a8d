"""Tells whether an open run will end a saga: anybody may start one under its id on a task queue that nobody polls."""

from __future__ import annotations

from saga_workers.location.locator import Locator
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.run_times import was_started_by
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers, describe_run


def is_on_own_queue(locator: Locator, run: RunInfo) -> bool:
    """True for a run on the task queue of the project; of any run without a project."""
    return locator.settings is None or run.task_queue == locator.settings.temporal.task_queue


async def is_served(locator: Locator, run: RunInfo) -> bool:
    """False for an open run on a task queue that is not the project's, and that no worker polls."""
    return is_on_own_queue(locator, run) or await count_pollers(locator.temporal, run.task_queue) > 0


async def is_open_for(locator: Locator, run: RunInfo, at: float) -> bool:
    """True if the open run will end what was begun at this time: it was open then, whether or not it has a worker now,
    or has a worker. A run that somebody else has started under the id of a saga begins later. Raises RPCError.
    """
    if was_started_by(run, at) or await is_served(locator, run):
        return True
    started = await start_of_run(locator.temporal, run.id, run.run_id)
    if started is None or started.first_execution_run_id == run.run_id:
        return False
    first = await describe_run(locator.temporal, run.id, started.first_execution_run_id)
    return first is not None and was_started_by(first.run, at)
