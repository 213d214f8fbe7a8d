"""Tells whether a run that goes on with an earlier one was closed before it had learned what the saga had done.

A reset makes such a run, which has the state of an earlier time, at which steps may not have begun that were made
since. Another one starts a saga again whose run was deleted.
"""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import (
    ActivityTaskScheduledEventAttributes,
    WorkflowExecutionStartedEventAttributes,
)
from temporalio.client import Client as Temporal

from saga_workers.temporal.run_history import readable_events, start_of_run
from saga_workers.temporal.signed_calls import is_believed_answer
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.errors import RefusedError
from sagas.protocol.payloads import REPEATS_MEMO, RESET_ACTIVITY, RESUMED_HEADER
from sagas.settings.signing_keys import SigningKeys
from sagas.text.continuation_words import CANCEL_BEFORE
from sagas.text.shell import reset_command

_RESET = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW

THEN_LOOKS_BACK = f"makes a run that looks it up; {CANCEL_BEFORE}"
"""The effect of the reset that is advised for such a run."""


async def require_answered_reset(temporal: Temporal, run: RunInfo, keys: SigningKeys | None) -> None:
    """Raise RefusedError if the run was closed before a worker of the project had answered what the saga had done.

    ``keys``: those with which answers are verified; None if the project accepts anything.
    """
    if not await closed_before_answer(temporal, run, keys):
        return
    raise RefusedError(
        f"the run of {run.id} was closed before it had looked up what the saga had done before",
        help=f"{reset_command(run.id)}    {THEN_LOOKS_BACK}",
    )


async def closed_before_answer(temporal: Temporal, run: RunInfo, keys: SigningKeys | None) -> bool:
    """True if the run was closed from outside before it knew what the saga had done. ``keys``: as above."""
    if not run.ended_from_outside:
        return False
    started = await start_of_run(temporal, run.id, run.run_id)
    if started is None:
        return False
    was_reset = run.raw.first_run_id not in ("", run.run_id)
    repeats = not started.continued_execution_run_id and _repeats(started)
    return (was_reset or repeats) and await _is_unanswered(temporal, run, keys, repeats=repeats)


def _repeats(started: WorkflowExecutionStartedEventAttributes) -> bool:
    """True for the start of a saga whose run was deleted, by `saga resume` or by its parent."""
    return RESUMED_HEADER in started.header.fields or REPEATS_MEMO in started.memo.fields


async def _is_unanswered(temporal: Temporal, run: RunInfo, keys: SigningKeys | None, *, repeats: bool) -> bool:
    is_unanswered, asked = repeats, dict[int, ActivityTaskScheduledEventAttributes]()
    async for event in readable_events(temporal, run):
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                if event.workflow_task_failed_event_attributes.cause == _RESET:
                    is_unanswered, asked = True, {}
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                call = event.activity_task_scheduled_event_attributes
                if call.activity_type.name == RESET_ACTIVITY:
                    asked[event.event_id] = call
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                call, answers = asked.get(completed.scheduled_event_id), completed.result.payloads
                if call is not None and await is_believed_answer(call, answers, run, keys):
                    is_unanswered = False
            case _:
                pass
    return is_unanswered
