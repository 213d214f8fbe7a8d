"""The actions of an operator on a schedule: pause it, resume it, start a saga now."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import ScheduleDescription

from saga_activities.concurrency import Backoff
from saga_workers.location.locator import Locator
from saga_workers.schedules.schedule_status import ScheduleStatus, describe
from saga_workers.schedules.schedule_view import status_of
from saga_workers.schedules.slot_starts import last_starts
from sagas.errors import RefusedError, UsageError
from sagas.project import Project
from sagas.text.shell import saga_command

_POLLS = Backoff(0.1, 1.0)
_LONGEST_WAIT = 15.0
"""Seconds that a command waits for the start that it has asked for."""

MAX_NOTE = 500
"""Characters of the note that is kept with a schedule."""


async def set_paused(
    temporal: Temporal, project: Project, saga: str, *, paused: bool, reason: str, who: str | None
) -> str:
    """Pause or resume a schedule; returns `paused` or `active`. Raises UsageError if there is none in Temporal."""
    status = await _existing(temporal, project, saga)
    note = f"{'paused' if paused else 'resumed'} by {who or temporal.identity}{f': {reason}' if reason else ''}"
    handle = temporal.get_schedule_handle(status.id)
    await (handle.pause(note=note[:MAX_NOTE]) if paused else handle.unpause(note=note[:MAX_NOTE]))
    return "paused" if paused else "active"


async def run_now(locator: Locator, project: Project, saga: str) -> dict[str, Any]:
    """Ask Temporal for a start now, and wait until it is known what has become of it, for a while.

    Raises UsageError if there is no schedule in Temporal, RefusedError if its trigger was removed.
    """
    temporal = locator.temporal
    status = await _existing(temporal, project, saga)
    if status.definition is None:
        raise RefusedError(f"the saga {saga} has no schedule any more", help="saga setup    removes it from Temporal")
    before = status.current
    assert before is not None
    await temporal.get_schedule_handle(status.id).trigger()
    unknown = {"saga": saga, "id": None, "scheduled_at": None, "refused": False}
    deadline = time.monotonic() + _LONGEST_WAIT
    for interval in _POLLS:
        current = await describe(temporal, status.id)
        if current is None:
            raise RefusedError(f"the schedule of {saga} has just been deleted", help="saga setup    makes it again")
        if _has_new_start(before, current):
            start = (await last_starts(locator, current))[0]
            if start.id is not None or start.failed or time.monotonic() > deadline:
                answer = {"saga": saga, "id": start.id, "scheduled_at": start.scheduled_at, "refused": start.failed}
                return {**answer, "outcome": f"{start.id or start.scheduled_at} {start.outcome}"}
        elif current.info.num_actions_skipped_overlap > before.info.num_actions_skipped_overlap:
            return {**unknown, "outcome": "skipped, because the saga of an earlier start has not ended"}
        elif time.monotonic() > deadline:
            return {**unknown, "outcome": "requested; it begins when the saga of an earlier start has ended"}
        await asyncio.sleep(interval)
    raise AssertionError("unreachable")


def _has_new_start(before: ScheduleDescription, current: ScheduleDescription) -> bool:
    return current.info.num_actions > before.info.num_actions


async def _existing(temporal: Temporal, project: Project, saga: str) -> ScheduleStatus:
    status = await status_of(temporal, project, saga)
    if status.current is None:
        raise UsageError(
            f"Temporal has no schedule of {saga} yet", help=f"{saga_command('setup')}    makes it from the definition"
        )
    return status
