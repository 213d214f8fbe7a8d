"""Makes, updates and removes the schedules of a project in Temporal."""

from __future__ import annotations

from collections.abc import Callable

from temporalio.client import Client as Temporal
from temporalio.client import Schedule, ScheduleAlreadyRunningError, ScheduleUpdate, ScheduleUpdateInput
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.schedules.schedule_status import ScheduleStatus, read_status, scheduled
from sagas.definition.model import Definition
from sagas.project import Project


async def set_up_schedule(temporal: Temporal, status: ScheduleStatus) -> None:
    """Create or update the schedule as its definition wants it. One that is paused stays paused. Raises RPCError."""
    wanted = status.wanted
    assert wanted is not None
    if status.current is None:
        try:
            await temporal.create_schedule(status.id, wanted)
        except ScheduleAlreadyRunningError:
            pass  # another process has just created it
        else:
            return

    def update(current: ScheduleUpdateInput) -> ScheduleUpdate:
        state = current.description.schedule.state
        state.limited_actions, state.remaining_actions = False, 0
        return ScheduleUpdate(Schedule(wanted.action, wanted.spec, wanted.policy, state))

    await temporal.get_schedule_handle(status.id).update(update)


async def remove_schedule(temporal: Temporal, id: str) -> None:
    """Delete a schedule; its sagas go on. Raises RPCError."""
    try:
        await temporal.get_schedule_handle(id).delete()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


async def set_up_schedules(
    temporal: Temporal, project: Project, *, done: Callable[[str, str], object], failed: Callable[[str, str], object]
) -> None:
    """Create and update the schedules of the definitions. ``done`` gets the name of each saga whose schedule was not as
    its definition wants it, with "created", or "updated" and why; ``failed`` that of one which Temporal has refused,
    with its words.
    """
    for definition in scheduled(project):
        try:
            if (change := await _set_up_if_needed(temporal, project, definition)) is not None:
                done(definition.saga, change)
        except RPCError as error:
            failed(definition.saga, error.message)


async def _set_up_if_needed(temporal: Temporal, project: Project, definition: Definition) -> str | None:
    """The change of the schedule, in words; None if nothing was wrong. Raises RPCError."""
    status = await read_status(temporal, project, definition)
    if status.need is None:
        return None
    await set_up_schedule(temporal, status)
    return "created" if status.need == "create" else f"updated: {status.why}"
