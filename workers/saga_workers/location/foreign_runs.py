"""Runs that another client has started under the id of a completed saga, or that a reset has made from the last run of
one that has ended, and that were closed from outside.

Nobody of the project starts the id of a completed saga again, so such a run tells nothing of the saga, unless a worker
of the project has made calls for it. What a reset has copied into its history is of the run before.
"""

from __future__ import annotations

from collections.abc import Collection

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as Temporal

from saga_workers.temporal.run_history import readable_events
from saga_workers.temporal.signed_calls import is_signed_call
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.payloads import RESET_ACTIVITY
from sagas.settings.signing_keys import SigningKeys

_OTHER_CALLS = (
    EventType.EVENT_TYPE_MARKER_RECORDED,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
)
"""Local activities and nested sagas, which have no signature."""


_BEGUN = (
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
)
_ENDED = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "activity_task_completed_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "activity_task_failed_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "activity_task_timed_out_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "activity_task_canceled_event_attributes",
}
"""Calls, and their ends. The end of a nested saga is not looked for: one in a history counts as under way."""


async def may_have_effects(
    temporal: Temporal, run: RunInfo, keys: SigningKeys, *, bases: Collection[str] = (), only_resets: bool = False
) -> bool:
    """True if a worker of the project may have made calls for the run: one call is signed, or cannot be. So it may for
    a run that goes on with an earlier one, and for one whose history is deleted.

    ``bases``: the runs whose history a reset may have copied into this one. Temporal repeats calls that were under way
    there; the others are of those runs, and the question what they have done changes nothing. ``only_resets``: another
    run counts as one with effects.
    """
    events = 0
    is_copied = False
    under_way: set[int] = set()
    async for event in readable_events(temporal, run):
        events += 1
        if events == 1:
            started = event.workflow_execution_started_event_attributes
            is_copied = started.original_execution_run_id != run.run_id
            if started.continued_execution_run_id or (is_copied and not bases) or (only_resets and not is_copied):
                return True
        if is_copied:
            is_copied = event.workflow_task_failed_event_attributes.base_run_id not in bases
            if event.event_type in _BEGUN:
                under_way.add(event.event_id)
            elif end := _ENDED.get(event.event_type):
                under_way.discard(getattr(event, end).scheduled_event_id)
        elif event.event_type in _OTHER_CALLS:
            return True
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            call = event.activity_task_scheduled_event_attributes
            if call.activity_type.name != RESET_ACTIVITY and await is_signed_call(call, run, keys):
                return True
    return not events or is_copied or bool(under_way)
