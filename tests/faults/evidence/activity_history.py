"""Temporal's own record of a saga's activities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle


@dataclass(frozen=True)
class Activity:
    """One scheduled activity of the history, and its recorded end; ``end`` is open while there is none."""

    id: str
    name: str
    end: str
    scheduled: int
    ended: int | None


_ENDS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: ("done", "activity_task_completed_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("failed", "activity_task_failed_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: ("timed out", "activity_task_timed_out_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: ("cancelled", "activity_task_canceled_event_attributes"),
}


async def activities_of(handle: WorkflowHandle[Any, Any]) -> tuple[Activity, ...]:
    """The activities of the saga's history, in the order they were scheduled."""
    collected: dict[int, Activity] = {}
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            output = event.activity_task_scheduled_event_attributes
            collected[event.event_id] = Activity(
                output.activity_id, output.activity_type.name, "open", event.event_id, None
            )
        elif event.event_type in _ENDS:
            end, attributes = _ENDS[event.event_type]
            at = getattr(event, attributes).scheduled_event_id
            activity = collected[at]
            collected[at] = Activity(activity.id, activity.name, end, activity.scheduled, event.event_id)
    return tuple(collected.values())
