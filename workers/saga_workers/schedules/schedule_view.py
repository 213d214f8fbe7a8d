"""The views of schedules that `saga schedule` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from temporalio.client import Client as Temporal

from saga_workers.location.locator import Locator
from saga_workers.schedules.schedule_status import Need, ScheduleStatus, describe, read_status, read_statuses
from saga_workers.schedules.slot_starts import SlotStart, last_starts
from sagas.errors import UsageError
from sagas.project import Project
from sagas.protocol.schedule_order import ScheduleTimes, schedule_id, slot_text

ScheduleState = Literal["active", "paused", "missing", "removed"]


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """One schedule. ``counts``: starts, those that were skipped because an earlier saga ran, and those missed.
    ``waiting``: starts that wait for the end of an earlier saga.

    ``need`` and ``why``: what differs from the definition, see :class:`ScheduleStatus`. ``next``: the next starts, with
    their jitter.
    """

    id: str
    saga: str
    state: ScheduleState
    need: Need | None
    why: str | None
    note: str | None
    times: ScheduleTimes | None
    next: Sequence[str]
    counts: tuple[int, int, int] | None
    last: Sequence[SlotStart] = ()
    waiting: int = 0

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `saga schedule show`; in a list without the last starts."""
        started, skipped, missed = self.counts or (0, 0, 0)
        return {
            "id": self.id,
            "saga": self.saga,
            "state": self.state,
            "need": self.need,
            "why": self.why,
            "note": self.note,
            **(self.times.to_json() if self.times is not None else dict.fromkeys(("cron", "timezone"))),
            "next": list(self.next),
            "started": started,
            "skipped": skipped,
            "missed": missed,
            "waiting": self.waiting,
            "last": [start.to_json() for start in self.last],
        }


async def list_views(temporal: Temporal, project: Project) -> list[ScheduleView]:
    """All schedules of the project, without their last starts. Raises RPCError."""
    return [_view(status) for status in await read_statuses(temporal, project)]


async def read_view(locator: Locator, project: Project, saga: str) -> ScheduleView:
    """One schedule with its last starts. Raises UsageError if the saga has none, neither there nor in the files."""
    status = await status_of(locator.temporal, project, saga)
    return _view(status, () if status.current is None else await last_starts(locator, status.current))


async def status_of(temporal: Temporal, project: Project, saga: str) -> ScheduleStatus:
    """The schedule of a saga, also of one whose trigger was removed. Raises UsageError if there is none."""
    definition = project.definitions.get(saga)
    if definition is not None and definition.schedule is not None:
        return await read_status(temporal, project, definition)
    id = schedule_id(project.settings.temporal.task_queue, saga)
    if (current := await describe(temporal, id)) is not None:
        return ScheduleStatus(id, saga, None, None, current, "remove", f"the saga {saga} has no schedule any more")
    project.definition(saga)
    raise UsageError(f"the saga {saga} has no schedule", help="saga schedule list    lists the schedules")


def _view(status: ScheduleStatus, last: Sequence[SlotStart] = ()) -> ScheduleView:
    current = status.current
    trigger = None if status.definition is None else status.definition.schedule
    state: ScheduleState = "paused" if status.paused else "active"
    if current is None:
        state = "missing"
    elif status.definition is None:
        state = "removed"
    return ScheduleView(
        id=status.id,
        saga=status.saga,
        state=state,
        need=status.need,
        why=status.why,
        note=None if current is None else current.schedule.state.note,
        times=None if trigger is None else ScheduleTimes.of(trigger),
        # Temporal goes on with the schedule of a removed trigger, whose starts are all refused.
        next=()
        if current is None or status.paused or status.definition is None
        else [slot_text(time) for time in current.info.next_action_times],
        counts=None
        if current is None
        else (
            current.info.num_actions,
            current.info.num_actions_skipped_overlap,
            current.info.num_actions_missed_catchup_window,
        ),
        last=last,
        waiting=0 if current is None else current.raw_description.info.buffer_size,
    )
