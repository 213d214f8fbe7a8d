"""Runs that another client has started under the id of a completed saga, and that were closed from outside.

Nobody of the project starts the id of a completed saga again, so such a run tells nothing of the saga, unless a worker
of the project has made calls for it.
"""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as Temporal

from saga_workers.temporal.run_history import readable_events
from saga_workers.temporal.signed_calls import is_signed_call
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.settings.signing_keys import SigningKeys

_OTHER_CALLS = (
    EventType.EVENT_TYPE_MARKER_RECORDED,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
)
"""Local activities and nested sagas, which have no signature."""


async def may_have_effects(temporal: Temporal, run: RunInfo, keys: SigningKeys) -> bool:
    """True if a worker of the project may have made calls for the run: one call is signed, or cannot be. So it may for
    a run that goes on with an earlier one, and for one whose history is deleted.
    """
    events = 0
    async for event in readable_events(temporal, run):
        events += 1
        started = event.workflow_execution_started_event_attributes
        if events == 1 and (started.continued_execution_run_id or started.original_execution_run_id != run.run_id):
            return True
        if event.event_type in _OTHER_CALLS:
            return True
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED and await is_signed_call(
            event.activity_task_scheduled_event_attributes, run, keys
        ):
            return True
    return not events
