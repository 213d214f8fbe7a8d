"""Notifications: one command for each milestone of the view, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sagas.definition.model import Definition, Milestone, Notification
from sagas.machine.machine import Machine
from sagas.protocol.messages import Command, Finish, Notify, RecordState
from tests.unit.engine.machine_properties.inputs import definition_faults
from tests.unit.engine.machine_properties.oracle.ledger import Ledger, Violation

ENDS: Mapping[str, Milestone] = {"COMPLETED": "completed", "COMPENSATED": "compensated", "RESIDUE": "residue"}


def check(ledger: Ledger, before: Mapping[str, Any], commands: Sequence[Command]) -> None:
    """After each event exactly the subscribed notifications are sent."""
    reported = [command for command in commands if isinstance(command, Notify)]
    expected = [
        (number, moment)
        for moment in _moments(before, ledger.story, commands)
        for number, notification in enumerate(ledger.definition.notify)
        if moment in notification.when
    ]
    earlier_ids = [row["id"] for row in before["notifications"]] if before else []
    names = []
    for number, moment in expected:
        name = f"notify-{number}-{moment}"
        earlier = sum(id == name or id.startswith(f"{name}-") for id in earlier_ids)
        names.append(name if earlier == 0 else f"{name}-{earlier + 1}")
    if [report.id for report in reported] != names:
        raise Violation("notify", f"told {[report.id for report in reported]}, to be told {names}")
    if [row["id"] for row in ledger.story["notifications"]] != earlier_ids + names:
        raise Violation("notify", "the story does not name exactly those who were told")
    for (number, _), command in zip(expected, reported, strict=True):
        _check_one(ledger.definition.notify[number], command)
    ends = [at for at, command in enumerate(commands) if isinstance(command, Finish)]
    if ends and any(isinstance(command, Notify) for command in commands[ends[0] :]):
        raise Violation("notify", "told after the end, when nobody listens any more")


def _moments(before: Mapping[str, Any], story: Mapping[str, Any], commands: Sequence[Command]) -> list[Milestone]:
    was = before["state"] if before else "RUNNING"
    collected: list[Milestone] = []
    if story["overdue"] and not (before and before["overdue"]):
        collected.append("overdue")
    # It may continue and park again within one event: the search attributes show it.
    parks = [command for command in commands if isinstance(command, RecordState) and command.state == "PARKED"]
    collected.extend("parked" for _ in parks)
    if story["state"] == "PARKED" != was and "parked" not in collected:
        raise Violation("notify", "parked, but nobody can find it")
    if story["state"] in ENDS and was != story["state"]:
        collected.append(ENDS[story["state"]])
    return collected


def _check_one(notification: Notification, reported: Notify) -> None:
    if definition_faults.broken(dict(notification.do.with_ or {})) != (reported.call is None):
        raise Violation("notify", f"{reported.id} can be made, or it cannot: {reported.problem}")
    if reported.call is None and not reported.problem:
        raise Violation("notify", f"{reported.id} cannot be made, and nothing says why")
    if reported.call is not None and (
        not reported.call.key.startswith(reported.workflow_id.split("~")[0]) or reported.call.op != "do"
    ):
        raise Violation("notify", f"{reported.id} is told under the key {reported.call.key}")


def silenced(machine: Machine) -> Machine:
    """The machine without notifications: it has to behave the same."""
    run = machine._run  # pyright: ignore[reportPrivateUsage]
    run.definition = without(run.definition)
    return machine


def without(definition: Definition) -> Definition:
    return replace(definition, notify=())


def received(commands: Sequence[Command]) -> list[Command]:
    """The commands that may change something."""
    return [command for command in commands if not isinstance(command, Notify)]


def without_notifications(story: Mapping[str, Any]) -> dict[str, Any]:
    """The view without notifications and without the digest, which covers them."""
    return {name: value for name, value in story.items() if name not in ("notifications", "digest")}
