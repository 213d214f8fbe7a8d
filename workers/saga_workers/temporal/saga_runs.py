"""Finds the run of a saga among the runs of its id: any client can start another one, which tells nothing about it."""

from __future__ import annotations

import asyncio
import time

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus

from saga_activities.concurrency import Backoff
from saga_workers.temporal.begun_runs import continues_run
from saga_workers.temporal.run_history import readable_events
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo, describe_run, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.temporal.visible_states import visible_state
from sagas.bulk.names import TAKE_ACTIVITY
from sagas.errors import RefusedError
from sagas.protocol.payloads import LOAD_ACTIVITY, OUTCOME_MEMO, VERIFY_ACTIVITY
from sagas.text.shell import saga_command

_START_CHECKS = (LOAD_ACTIVITY, VERIFY_ACTIVITY, TAKE_ACTIVITY)
"""The activities that decide whether a run may start."""

_VISIBILITY_LAG = 5.0
"""Seconds in which the visibility store gets a run, unless something is wrong with it."""


def was_refused(run: RunInfo) -> bool:
    """True if a run has failed without the view that every saga leaves at its end: it has never become one."""
    return run.ended_by_itself and visible_state(run) == "FAILED" and OUTCOME_MEMO not in run.raw.memo.fields


async def was_never_accepted(temporal: Temporal, run: RunInfo) -> bool:
    """True if a closed run has never become a saga: it was refused, or closed from outside before it was accepted."""
    return was_refused(run) or (run.ended_from_outside and not await was_accepted(temporal, run))


def closed_before_begun(saga_id: str) -> RefusedError:
    """The refusal to undo a saga whose run was closed before its first workflow task."""
    return RefusedError(f"{saga_id} was closed before it had begun, so nothing is to be undone")


def state_is_lost(saga_id: str) -> RefusedError:
    """The refusal to undo a saga whose run was closed while its workflow task failed again and again."""
    return RefusedError(
        f"Temporal passes no query on to the closed run of {saga_id}, because its workflow task had failed again and "
        "again, so its state is not known",
        help=f"{saga_command('resume', saga_id)}    starts it again with what the guards have kept",
    )


async def describe_saga_run(temporal: Temporal, id: str) -> RunDescription | None:
    """The newest run of an id that has become a saga; if none has, the newest one, marked as ``never_accepted``. None
    if Temporal knows none.

    Such a run changes nothing, so the run before it tells how the saga has ended. The visibility store, which lists the
    runs before it, lags behind: without the newest it may lack others. If it does not get it in time, the newest is
    returned without the mark, and keeps its id.
    """
    newest = await describe_run(temporal, id)
    if newest is None or not await was_never_accepted(temporal, newest.run):
        return newest
    deadline = time.monotonic() + _VISIBILITY_LAG
    for delay in Backoff(0.05, 0.5):
        listed = False
        async for run in list_runs(temporal, keyword_condition("WorkflowId", id)):
            listed = listed or run.run_id == newest.run.run_id
            if run.id != id or was_refused(run) or run.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
                continue
            described = await describe_run(temporal, id, run.run_id)
            if described is not None and not await was_never_accepted(temporal, described.run):
                return described
        if listed:
            return newest.as_never_accepted()
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(delay)
    return newest


async def was_accepted(temporal: Temporal, run: RunInfo) -> bool:
    """True if a workflow task of the run has gone on after its start was checked. Before that, it has done nothing.

    True as well for a history that is deleted or cannot be read: the run may have done something.
    """
    accepted, check, events = False, 0, 0
    async for event in readable_events(temporal, run):
        events += 1
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED if continues_run(event):
                return True
            case EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED if accepted:
                return True
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                accepted = not check
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED if _checks_start(event):
                accepted, check = False, event.event_id
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED if _completes(event, check):
                check = 0
            case _:
                pass
    return accepted or not events


def _checks_start(event: HistoryEvent) -> bool:
    return event.activity_task_scheduled_event_attributes.activity_type.name in _START_CHECKS


def _completes(event: HistoryEvent, scheduled: int) -> bool:
    return event.activity_task_completed_event_attributes.scheduled_event_id == scheduled
