"""Runs with the id of an undo, which any client may start and close: they undo a saga once a worker of the project has
answered what is to be undone.
"""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes
from temporalio.client import Client as Temporal

from saga_workers.temporal.begun_runs import completes_task
from saga_workers.temporal.run_history import readable_events, start_of_run
from saga_workers.temporal.saga_runs import was_accepted
from saga_workers.temporal.signed_calls import calling_run, is_signed_answer, is_signed_call
from saga_workers.temporal.temporal_runs import RunInfo, describe_run
from saga_workers.temporal.visible_states import CLOCKS_DIFFER
from sagas.protocol.payloads import LOAD_ACTIVITY
from sagas.settings.signing_keys import SigningKeys

_MANY_ATTEMPTS = 5
"""Attempts of the first workflow task."""


async def is_accepted_undo(temporal: Temporal, run: RunInfo, keys: SigningKeys | None) -> bool:
    """True if the run with the id of an undo has begun to undo the saga: it has what the run itself demands, an answer
    to `saga.load` that is signed for it, or goes on with a run that has. False if its history is deleted.

    ``keys``: those of the project; without any, each run counts that has begun.
    """
    if keys is None or not keys.keys:
        return run.begins_at <= datetime.now(UTC) and await was_accepted(temporal, run)
    if await _has_signed_load(temporal, run, keys):
        return True
    started = await start_of_run(temporal, run.id, run.run_id)
    if started is None or not started.continued_execution_run_id:
        return False
    if await _has_signed_call(temporal, run, keys):  # the first runs of a long chain are deleted
        return True
    first = await describe_run(temporal, run.id, started.first_execution_run_id)
    return first is not None and await _has_signed_load(temporal, first.run, keys)


async def may_undo(temporal: Temporal, run: RunInfo, keys: SigningKeys | None) -> bool:
    """True if the open run with the id of an undo, on the task queue of the project, undoes the saga, or its next task
    decides about that: no task of it is completed yet, and none is delayed, nor has it failed again and again.
    """
    if run.begins_at > datetime.now(UTC) + CLOCKS_DIFFER:
        return False
    if keys is None or not keys.keys:
        return True
    if not await _has_completed_task(temporal, run):
        return not await _fails_again_and_again(temporal, run)
    return await _has_signed_call(temporal, run, keys) or await is_accepted_undo(temporal, run, keys)


async def _fails_again_and_again(temporal: Temporal, run: RunInfo) -> bool:
    """True if no worker can take the run up, such as one whose input is encrypted with an invented key."""
    described = await describe_run(temporal, run.id, run.run_id)
    return described is not None and described.raw.pending_workflow_task.attempt > _MANY_ATTEMPTS


async def _has_completed_task(temporal: Temporal, run: RunInfo) -> bool:
    async for event in readable_events(temporal, run):
        if completes_task(event):
            return True
    return False


async def _has_signed_load(temporal: Temporal, run: RunInfo, keys: SigningKeys) -> bool:
    asked: dict[int, ActivityTaskScheduledEventAttributes] = {}
    loaded: set[str] = set()
    """The ids of the runs for which an answered `saga.load` is signed: of others, if a stranger repeats the history of
    an earlier undo, which anybody can read."""
    run_ids = {run.run_id}
    async for event in readable_events(temporal, run):
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                run_ids.add(event.workflow_execution_started_event_attributes.original_execution_run_id)
            case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                # Only Temporal writes this field, when it resets a run.
                run_ids.add(event.workflow_task_failed_event_attributes.base_run_id)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                call = event.activity_task_scheduled_event_attributes
                if call.activity_type.name == LOAD_ACTIVITY and await is_signed_call(call, run, keys):
                    asked[event.event_id] = call
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                call = asked.pop(completed.scheduled_event_id, None)
                if call is not None and await is_signed_answer(call, completed.result.payloads, run, keys):
                    loaded.add(calling_run(call))
            case _:
                pass
        if not loaded.isdisjoint(run_ids):
            return True
    return False


async def _has_signed_call(temporal: Temporal, run: RunInfo, keys: SigningKeys) -> bool:
    async for event in readable_events(temporal, run):
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            call = event.activity_task_scheduled_event_attributes
            if calling_run(call) == run.run_id and await is_signed_call(call, run, keys):
                return True
    return False
