"""Compares the schedules that the definitions of a project want with those that Temporal has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from temporalio.api.common.v1 import Payload
from temporalio.client import Client as Temporal
from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleDescription
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.schedules.temporal_schedule import differences, is_signed, make_schedule, order_of, order_payload
from saga_workers.temporal.payload_codec import EncryptingCodec, decrypted, is_encrypted_as, missing_key_id
from sagas.definition.model import Definition, ScheduleTrigger
from sagas.errors import UsageError
from sagas.project import Project
from sagas.protocol.schedule_order import ScheduleTimes, saga_of_schedule, schedule_id
from sagas.text.printable import printable_line
from sagas.text.shortening import join_names, shorten

UNSIGNED = "no key of this project has signed it"

Need = Literal["create", "update", "remove", "look"]
"""The action that a schedule needs; `look`: at one that may belong to another project, so `saga setup` leaves it."""


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """One schedule: as the project wants it, and as Temporal has it. ``why`` says what is wrong, if ``need`` is set."""

    id: str
    saga: str
    definition: Definition | None
    wanted: Schedule | None
    current: ScheduleDescription | None
    need: Need | None = None
    why: str | None = None

    @property
    def paused(self) -> bool:
        return self.current is not None and self.current.schedule.state.paused


async def read_statuses(temporal: Temporal, project: Project, *, makes_key: bool = False) -> list[ScheduleStatus]:
    """All schedules of the project, by saga. ``makes_key``: see :func:`read_status`.

    Schedules of sagas without one are those of removed triggers; while a definition has errors, nobody knows which.
    """
    settings = project.settings
    queue, keys = settings.temporal.task_queue, settings.signing_keys(create=makes_key)
    statuses = []
    for definition in scheduled(project):
        statuses.append(await read_status(temporal, project, definition, makes_key=makes_key))
    if not any(diagnostic.severity == "error" for diagnostic in project.diagnostics):
        wanted_ids = {status.id for status in statuses}
        try:
            ids = await _list_ids(temporal, queue)
        except RPCError:
            if statuses:
                raise
            ids = []  # a project without schedules needs no right to list them
        for id in ids:
            current = None if id in wanted_ids else await describe(temporal, id)
            if current is None:
                continue
            saga = saga_of_schedule(id, queue) or ""
            need: Need = "remove" if is_signed(order_of(current.schedule), keys) else "look"
            why = f"the saga {saga} has no schedule any more"
            if need == "look":
                why = f"{why}, and {_unreadable(current.schedule, temporal) or UNSIGNED}"
            statuses.append(ScheduleStatus(id, saga, None, None, current, need, why))
    return sorted(statuses, key=lambda status: status.saga)


def uses_schedules(project: Project) -> bool:
    return bool(scheduled(project))


def scheduled(project: Project) -> Sequence[Definition]:
    """The definitions with a schedule."""
    return [definition for definition in project.definitions.values() if definition.schedule is not None]


async def paused_notes(temporal: Temporal, project: Project) -> dict[str, str]:
    """The sagas whose schedule is paused, with the note that says by whom and why. Raises RPCError."""
    notes = {}
    for definition in scheduled(project):
        current = await describe(temporal, schedule_id(project.settings.temporal.task_queue, definition.saga))
        if current is not None and current.schedule.state.paused:
            notes[definition.saga] = current.schedule.state.note or "paused"
    return notes


async def read_status(
    temporal: Temporal, project: Project, definition: Definition, *, makes_key: bool = True
) -> ScheduleStatus:
    """The schedule of one saga. ``makes_key``: the schedule as it should be will be stored, so it must be signed.

    Raises UsageError if it has none.
    """
    trigger, settings = trigger_of(definition), project.settings
    queue, keys = settings.temporal.task_queue, settings.signing_keys(create=makes_key)
    id = schedule_id(queue, definition.saga)
    wanted = make_schedule(definition, trigger, id=id, task_queue=queue, keys=keys)
    current = await _describe_stored(temporal, id)
    if current is None:
        return ScheduleStatus(id, definition.saga, definition, wanted, None, "create", "it does not exist")
    is_encrypted = _is_encrypted(current.schedule, temporal)
    await _decrypt(current.schedule, temporal)
    why = None
    order = order_of(current.schedule)
    signature = order.get("signature")
    differing = differences(wanted, current.schedule)
    unreadable = _unreadable(current.schedule, temporal)
    if unreadable is not None or (keys.keys and not is_signed(order, keys)):
        why = f"{unreadable or UNSIGNED}, so its starts are refused"
    elif order.get("times") != ScheduleTimes.of(trigger).to_json() or order.get("saga") != definition.saga:
        why = "the definition has changed since it was set up"
    elif differing:
        why = f"{join_names(differing, 5)} {'was' if len(differing) == 1 else 'were'} changed outside of the definition"
    elif keys.keys and (not isinstance(signature, dict) or signature.get("key") != keys.ids[0]):
        why = "it is signed with an older key of this project"
    elif not is_encrypted:
        why = "its order is not stored as the first key of [codec] would encrypt it"
    return ScheduleStatus(id, definition.saga, definition, wanted, current, None if why is None else "update", why)


def _unreadable(schedule: Schedule, temporal: Temporal) -> str | None:
    """Why the order of a schedule cannot be read, as a clause; None if its key is here."""
    codec = temporal.data_converter.payload_codec
    given = codec if isinstance(codec, EncryptingCodec) else None
    payload = order_payload(schedule)
    key = None if payload is None else missing_key_id(payload, given)
    if key is None:
        return None
    return f"its order is encrypted with the key {printable_line(shorten(key))}, which [codec] key does not have"


def trigger_of(definition: Definition) -> ScheduleTrigger:
    """The schedule of a definition. Raises UsageError if it has none."""
    if definition.schedule is None:
        raise UsageError(
            f"the saga {definition.saga} has no schedule", help="add `schedule` under `triggers` of its definition"
        )
    return definition.schedule


async def describe(temporal: Temporal, id: str) -> ScheduleDescription | None:
    """The schedule as Temporal has it, with its order decrypted if possible; None if there is none. Raises RPCError."""
    described = await _describe_stored(temporal, id)
    if described is not None:
        await _decrypt(described.schedule, temporal)
    return described


async def _describe_stored(temporal: Temporal, id: str) -> ScheduleDescription | None:
    """The schedule with its order as it is stored."""
    try:
        return await temporal.get_schedule_handle(id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def _decrypt(schedule: Schedule, temporal: Temporal) -> None:
    action, codec = schedule.action, temporal.data_converter.payload_codec
    if isinstance(action, ScheduleActionStartWorkflow):  # the client leaves its arguments as they are stored
        action.args = [await decrypted(each, codec) if isinstance(each, Payload) else each for each in action.args]


def _is_encrypted(schedule: Schedule, temporal: Temporal) -> bool:
    """True if the order is stored as this process would store it."""
    codec, payload = temporal.data_converter.payload_codec, order_payload(schedule)
    if payload is None or not (codec is None or isinstance(codec, EncryptingCodec)):
        return True  # nobody can tell of a codec of the client's own
    return is_encrypted_as(payload, codec)


async def _list_ids(temporal: Temporal, task_queue: str) -> list[str]:
    """The ids of the schedules of this task queue."""
    listed = await temporal.list_schedules()
    return [each.id async for each in listed if saga_of_schedule(each.id, task_queue) is not None]
