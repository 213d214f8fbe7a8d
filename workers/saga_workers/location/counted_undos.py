"""Decides which run with the id of an undo tells how a saga is. Any client may start one, and close it."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from temporalio.client import WorkflowExecutionStatus

from saga_workers.location.accepted_undos import is_accepted_undo, may_undo
from saga_workers.location.served_runs import QueueReader, is_on_own_queue, is_served
from saga_workers.location.verified_outcomes import OutcomeReader, outcome_of
from saga_workers.temporal.saga_runs import describe_saga_run, was_accepted, was_never_accepted
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo, describe_run, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from sagas.protocol.doubtful_outcomes import UNVERIFIED
from sagas.protocol.payloads import UNDO_SUFFIX


class UndoReader(OutcomeReader, QueueReader, Protocol):
    """A reader of sagas and of their undos, such as a locator."""


async def counted_undo(
    reader: UndoReader,
    saga_id: str,
    saga: str,
    since: datetime,
    *,
    queue: str | None = None,
    closed_from_outside: bool = False,
) -> RunDescription | None:
    """The newest run of the undo of a saga that counts; None if there is none.

    ``saga``: its name; a workflow of another type does not concern it, whatever its start was. ``since``: its start; an
    older run belongs to an earlier generation, before the id was started again. ``queue``: the task queue of its run;
    None if only the ledger tells of the saga. ``closed_from_outside``: the run of the saga was, so it is to be
    continued. Raises RPCError.
    """

    async def counts(undo: RunInfo) -> bool:
        is_of_saga = undo.workflow_type == saga and undo.start_time >= since
        return is_of_saga and await _counts(reader, undo, queue, closed_from_outside=closed_from_outside)

    undo_id = saga_id + UNDO_SUFFIX
    newest = await describe_saga_run(reader.temporal, undo_id)
    if newest is None or await counts(newest.run):
        return newest
    earlier = [
        run
        async for run in list_runs(reader.temporal, keyword_condition("WorkflowId", undo_id))
        if run.id == undo_id and run.run_id != newest.run.run_id
        if run.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW
    ]
    for run in sorted(earlier, key=lambda run: run.start_time, reverse=True):
        if await counts(run) and not await was_never_accepted(reader.temporal, run):
            return await describe_run(reader.temporal, run.id, run.run_id)
    return None


async def _counts(reader: UndoReader, undo: RunInfo, queue: str | None, *, closed_from_outside: bool) -> bool:
    """False for an open or a terminated run that no worker of the project has taken for an undo, nor will with its next
    task; and for one that anybody may have closed, if the saga was closed from outside. The undo of a saga of another
    project is on the task queue of that saga: on any other one a stranger may have a worker of his own.
    """
    if undo.ended_by_itself:
        if not closed_from_outside:
            return True  # what it says of its end is shown as not verified
        outcome = await outcome_of(reader, undo)
        return outcome.doubt != UNVERIFIED or outcome.row is not None
    if undo.running and is_on_own_queue(reader, undo):
        return await may_undo(reader.temporal, undo, reader.keys)
    if await is_accepted_undo(reader.temporal, undo, reader.keys):
        return True  # also on a task queue that the project has had before
    is_of_another_project = not is_on_own_queue(reader, undo) and undo.task_queue == queue
    return is_of_another_project and await is_served(reader, undo) and await was_accepted(reader.temporal, undo)
