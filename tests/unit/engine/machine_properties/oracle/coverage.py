"""Coverage labels of a run: the properties must not pass because faults have become too rare."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sagas.protocol.messages import (
    Call,
    CallEnded,
    Command,
    DecisionMade,
    MachineEvent,
    Notify,
    SagaEnded,
    SignalReceived,
    TimerFired,
)
from tests.unit.engine.machine_properties.oracle.ledger import Ledger

_PLACE = re.compile(r"^\w+\.(with|if|for_each|compensate|confirm|probe|fairness_key)\b")


def of_event(ledger: Ledger, call: Call | None, event: MachineEvent) -> set[str]:
    """Labels of this event; the ledger still has the view before it."""
    match event:
        case SagaEnded():
            return {f"child {event.state}"}
        case SignalReceived():
            running = {e["step"] for e in ledger.story["steps"] if e["state"] == "RUNNING"}
            early = event.name.removeprefix("go_") not in running
            again = event.name in ledger.signals
            word = "again" if again else "early" if early else "in time"
            return {f"signal {word}" + (" that refuses" if event.reject is not None and not again else "")}
        case DecisionMade():
            return _decision(ledger, event)
        case CallEnded() if call is not None:
            return _call(ledger, call, event)
        case _:
            return set()


def _decision(ledger: Ledger, event: DecisionMade) -> set[str]:
    if event.step == "output":
        return {f"decided {event.decision} output"}
    op, entry = ledger.op_of(event.step), ledger.entry(event.step)
    situations = {f"decided {event.decision} {op}"}
    if all(p["step"] != event.step for p in ledger.story["parked"]):
        situations.add(f"decided {event.decision} of what is not parked")
    if entry["outcome"] == "late" and op == "do":
        situations.add(f"decided {event.decision} late")
    if event.arguments is not None:
        situations.add(f"corrected arguments {op}")
        if op == "do" and entry["outcome"] == "unknown":
            situations.add("corrected arguments after unknown")
    if event.definition is not None:
        situations.add(f"corrected definition {op}")
    return situations


def _call(ledger: Ledger, call: Call, event: CallEnded) -> set[str]:
    step, outcome = ledger.step(call.entry), event.outcome
    situations: set[str] = set()
    if call.op == "do" and call.guard is None and step.kind != "read":
        keyed = "keyed" if step.do.idempotent else "keyless"
        situations.add(f"{keyed} {outcome.kind}")
        if not call.local:
            situations.add(f"foreign {keyed} {outcome.kind}")
    if call.op == "do" and outcome.kind == "late":
        situations.add("late")
    if call.op == "probe" and outcome.kind == "done" and step.probe is not None and step.probe.done is not None:
        situations.add(f"probe read by expressions: {outcome.result['status']}")
    return situations


def of_story(ledger: Ledger, before: Mapping[str, Any], event: MachineEvent) -> set[str]:
    """Situations that the story after the event shows for the first time."""
    story = ledger.story
    situations = {story["state"]} | ({"finished early"} if ledger.finished_by is not None else set())
    old = {e["id"]: e["state"] for e in before["steps"]} if before else {}
    for e in story["steps"]:
        if e["state"] == old.get(e["id"], "PENDING"):
            continue
        step = ledger.step(e["id"])
        if e["uses"] == "wait" and isinstance(event, TimerFired) and e["state"] in ("DONE", "REJECTED", "PARKED"):
            with_ = step.do.with_ or {}
            situations.add(f"wait over, {with_.get('on_timeout') or next(iter(with_))}")
        if e["uses"] in ("require", "pass", "finish"):
            situations.add(f"{e['uses']} {e['state']}")
        if e["state"] == "COMPENSATED" and e["outcome"] in ("rejected", "failed"):
            situations.add("undone without an effect")
        without_effect = e["state"] in ("REJECTED", "FAILED", "NOTHING_TO_UNDO", "COMPENSATED")
        if without_effect and "#" in e["id"] and step.on_failure == "continue" and story["phase"] != "backward":
            situations.add("continued item")
        if e["error"] is not None and e["error"]["type"] == "definition":
            situations |= _place(e["error"]["message"])
    was = {p["step"] for p in before["parked"]} if before else set()
    for item in story["parked"]:
        if item["step"] not in was:
            situations |= (
                {"definition output"} if item["step"] == "output" else _place(item["why"].partition("definition: ")[2])
            )
            situations |= _place(item["why"])
    return situations


def of_commands(commands: Sequence[Command]) -> set[str]:
    """Labels of notifications, sent and failed."""
    reported = [command for command in commands if isinstance(command, Notify)]
    return {f"told {report.milestone}" for report in reported} | {
        "told nothing" for report in reported if report.call is None
    }


def _place(message: str) -> set[str]:
    match = _PLACE.match(message)
    return {f"definition {match.group(1)}"} if match else set()
