"""The order that a schedule gives the workers of its project: which saga it starts, and by which trigger it was set up.

It is signed, so that nobody who reaches Temporal makes a schedule that starts sagas of the project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sagas.definition.model import ScheduleTrigger
from sagas.protocol.payloads import SCHEDULE_PREFIX

SLOT_LABEL = "scheduled_at"
"""The label of a saga that a schedule or a backfill has started: the time of its slot."""


def schedule_id(task_queue: str, saga: str) -> str:
    """The id of the schedule of a saga: of the project with this task queue, as others share its namespace."""
    return f"{SCHEDULE_PREFIX}{task_queue}~{saga}"


def saga_of_schedule(id: str, task_queue: str) -> str | None:
    """The saga of the schedule with this id; None if it is not a schedule of this task queue."""
    prefix = schedule_id(task_queue, "")
    saga = id.removeprefix(prefix)
    return saga if id.startswith(prefix) and "~" not in saga else None


def slot_text(scheduled_at: datetime) -> str:
    """A time of a schedule, to the second, as in the ids of the runs of Temporal's schedules."""
    return scheduled_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class ScheduleTimes:
    """The times of a trigger and the overlap of its starts; the rest is read when a saga is started."""

    cron: str
    timezone: str
    overlap: str
    catchup_window: float
    jitter: float

    @classmethod
    def of(cls, trigger: ScheduleTrigger) -> ScheduleTimes:
        return cls(trigger.cron, trigger.timezone, trigger.overlap, trigger.catchup_window, trigger.jitter)

    def to_json(self) -> dict[str, Any]:
        return {
            "cron": self.cron,
            "timezone": self.timezone,
            "overlap": self.overlap,
            "catchup_window": self.catchup_window,
            "jitter": self.jitter,
        }


def schedule_order(id: str, saga: str, trigger: ScheduleTrigger) -> Mapping[str, Any]:
    """The order of a schedule, without its signature."""
    return {"schedule": id, "saga": saga, "times": ScheduleTimes.of(trigger).to_json()}
