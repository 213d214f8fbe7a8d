"""The commands of Temporal's own command line for the schedules of a project, for an administrator."""

from __future__ import annotations

from collections.abc import Sequence

from saga_workers.schedules.schedule_status import ScheduleStatus, trigger_of
from saga_workers.schedules.temporal_schedule import cron_text, signed_order
from sagas.definition.model import Definition, ScheduleTrigger
from sagas.project import Project
from sagas.protocol.payloads import SCHEDULE_WORKFLOW
from sagas.protocol.schedule_order import schedule_id
from sagas.schedules.cron import parse_cron
from sagas.settings.temporal import DEFAULT_NAMESPACE
from sagas.text.exact_json import encode_json
from sagas.text.shell import shell_command

_OVERLAPS = {
    "skip": "Skip",
    "buffer_one": "BufferOne",
    "buffer_all": "BufferAll",
    "allow_all": "AllowAll",
    "cancel_other": "CancelOther",
}


def create_command(project: Project, definition: Definition) -> str:
    """The command that creates the schedule of a definition. Raises UsageError if it has none."""
    settings, trigger = project.settings, trigger_of(definition)
    id = schedule_id(settings.temporal.task_queue, definition.saga)
    order = signed_order(id, definition.saga, trigger, settings.signing_keys())
    return shell_command("temporal", "schedule", "create", *_words(project, id, trigger, encode_json(order).decode()))


def needed_commands(project: Project, statuses: Sequence[ScheduleStatus]) -> list[str]:
    """The commands that `saga setup` would carry out with these statuses."""
    commands = []
    for status in statuses:
        if status.definition is not None and status.need == "create":
            commands.append(create_command(project, status.definition))
        elif status.definition is not None and status.need == "update":
            command = create_command(project, status.definition).replace("schedule create", "schedule update", 1)
            commands.append(f"{command} --paused" if status.paused else command)
        elif status.need == "remove":
            address = _address(project)
            commands.append(shell_command("temporal", "schedule", "delete", *address, "--schedule-id", status.id))
    return commands


def _address(project: Project) -> list[str]:
    return ["--namespace", project.settings.temporal.namespace or DEFAULT_NAMESPACE]


def _words(project: Project, id: str, trigger: ScheduleTrigger, order: str) -> list[str]:
    words = [*_address(project), "--schedule-id", id, "--cron", cron_text(parse_cron(trigger.cron))]
    words += ["--time-zone", trigger.timezone, "--overlap-policy", _OVERLAPS[trigger.overlap]]
    words += ["--catchup-window", _seconds(trigger.catchup_window)]
    words += ["--jitter", _seconds(trigger.jitter)] if trigger.jitter else []
    words += ["--workflow-id", id, "--type", SCHEDULE_WORKFLOW, "--task-queue", project.settings.temporal.task_queue]
    return [*words, "--input", order]


def _seconds(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"
