"""The checks of `saga doctor` for scheduled starts: what is missing, differs, is paused, or was refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from temporalio.client import Client as Temporal

from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.location.locator import using_locator
from saga_workers.schedules.schedule_status import ScheduleStatus, read_statuses
from saga_workers.schedules.slot_starts import SlotStart, last_starts
from sagas.errors import SagaError
from sagas.project import Project
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command, shell_command


async def check_schedules(temporal: Temporal, project: Project) -> list[DoctorResult]:
    """Results for each schedule of the project; nothing if it has none, neither in its definitions nor in Temporal."""
    try:
        statuses = await read_statuses(temporal, project)
    except SagaError as error:
        return [DoctorResult("schedules", False, error.message, error.help)]
    results: list[DoctorResult] = []
    async with using_locator(temporal, project.settings) as locator:
        for status in statuses:
            starts = () if status.current is None else await last_starts(locator, status.current)
            results += _results(status, starts)
    return results


def _results(status: ScheduleStatus, starts: Sequence[SlotStart]) -> Iterator[DoctorResult]:
    check, current = f"schedule of {status.saga}", status.current
    show = saga_command("schedule", "show", status.saga)
    if status.need == "look":
        delete = shell_command("temporal", "schedule", "delete", "--schedule-id", status.id)
        yield DoctorResult(check, None, status.why or "", f"{delete}    if no other project needs it")
        return
    if status.need is not None:
        yield DoctorResult(check, False, status.why or "", saga_command("setup"))
    if current is None:
        return
    if status.paused:
        note = current.schedule.state.note
        why = f"it is paused{f': {printable_line(note)}' if note else ''}"
        yield DoctorResult(check, None, why, saga_command("schedule", "resume", status.saga))
    if starts and starts[0].failed:
        failed = [start for start in starts if start.failed]
        last = f"{starts[0].scheduled_at} {starts[0].id or ''}".strip()
        what = f"its last start has failed, {last}: {printable_line(starts[0].outcome)}"
        more = f"; {len(failed)} of the last {len(starts)} have" if len(failed) > 1 else ""
        yield DoctorResult(check, False, what + more, show)
    if missed := current.info.num_actions_missed_catchup_window:
        yield DoctorResult(check, None, f"{missed} starts were missed while Temporal was unavailable", show)
    if status.need is None and not status.paused and not (starts and starts[0].failed):
        following = (
            f", next {current.info.next_action_times[0]:%Y-%m-%d %H:%M:%S}Z" if current.info.next_action_times else ""
        )
        yield DoctorResult(check, True, f"as its definition says{following}")
