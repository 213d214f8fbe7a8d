"""Tells whether an open run will end a saga: anybody may start one under its id on a task queue that nobody polls."""

from __future__ import annotations

from typing import Protocol

from temporalio.client import Client as Temporal

from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.run_times import was_started_by
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers, describe_run
from sagas.settings import Settings


class QueueReader(Protocol):
    """A reader of runs, such as a locator. ``settings``: those of its project."""

    temporal: Temporal
    settings: Settings | None


def is_on_own_queue(reader: QueueReader, run: RunInfo) -> bool:
    """True for a run on the task queue of the project; of any run without a project."""
    return reader.settings is None or run.task_queue == reader.settings.temporal.task_queue


async def is_served(reader: QueueReader, run: RunInfo) -> bool:
    """False for an open run on a task queue that is not the project's, and that no worker polls."""
    return is_on_own_queue(reader, run) or await count_pollers(reader.temporal, run.task_queue) > 0


async def is_open_for(reader: QueueReader, run: RunInfo, at: float) -> bool:
    """True if the open run will end what was begun at this time: it was open then, whether or not it has a worker now,
    or has a worker. A run that somebody else has started under the id of a saga begins later. Raises RPCError.
    """
    if was_started_by(run, at) or await is_served(reader, run):
        return True
    started = await start_of_run(reader.temporal, run.id, run.run_id)
    if started is None or started.first_execution_run_id == run.run_id:
        return False
    first = await describe_run(reader.temporal, run.id, started.first_execution_run_id)
    return first is not None and was_started_by(first.run, at)
