"""Tells whether a worker has begun a run: before that, any state that it claims came with its start, from any client.

Temporal's visibility store cannot tell, so the history is read.
"""

from __future__ import annotations

from temporalio.api.enums.v1 import ContinueAsNewInitiator, EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client as Temporal

from saga_workers.temporal.run_history import RunIds, readable_events
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.temporal.visible_states import visible_pause, visible_state
from sagas.protocol.saga_view import PauseView, ViewState


async def has_begun(temporal: Temporal, run: RunIds) -> bool:
    """True if a workflow task of the run is completed, or of the one that it continues.

    True as well for a history that is deleted or cannot be read: a worker may have begun it.
    """
    events = 0
    async for event in readable_events(temporal, run):
        events += 1
        if completes_task(event) or continues_run(event):
            return True
    return not events


async def open_state(temporal: Temporal, run: RunInfo) -> ViewState:
    """The state of a run, where it is open one that it has written itself."""
    state = visible_state(run)
    return "RUNNING" if run.running and state != "RUNNING" and not await has_begun(temporal, run) else state


async def open_pause(temporal: Temporal, run: RunInfo) -> PauseView | None:
    """The pause that an open run has recorded itself, without what it holds back; None without one."""
    pause = await visible_pause(run)
    return pause if pause is not None and await has_begun(temporal, run) else None


def completes_task(event: HistoryEvent) -> bool:
    """True for the end of a workflow task that a worker has completed."""
    return event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


def continues_run(event: HistoryEvent) -> bool:
    """True for the first event of a run as which a worker has continued the run before, and not a client's retry policy
    or cron schedule.
    """
    initiator = event.workflow_execution_started_event_attributes.initiator
    return initiator == ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_WORKFLOW
