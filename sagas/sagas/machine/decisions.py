"""What a person may decide about a stuck operation, and how it is carried out (the table in cli.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.snapshot import from_snapshot
from sagas.machine import arguments, by_hand, calls, commit, forward, scheduling, waits
from sagas.machine.arguments import DefinitionFault
from sagas.machine.commands import CancelCall
from sagas.machine.events import DecisionMade
from sagas.machine.facts import (
    Begin,
    Closed,
    Confirm,
    ConfirmClosed,
    Decide,
    GoBack,
    PivotFailed,
    Resolve,
    Undo,
    Undone,
)
from sagas.machine.moments import iso
from sagas.machine.plan import is_nested, is_read
from sagas.machine.run import OUTPUT, Run
from sagas.machine.state import Entry, EntryOp


def receive(run: Run, event: DecisionMade) -> None:
    """Note an accepted decision, and carry it out as soon as nothing of the operation is in flight."""
    row = {name: getattr(event, name) for name in ("who", "step", "decision", "reason", "evidence")}
    run.operator.append({"at": iso(event.at), **row})
    if event.definition is not None:
        run.adopt(from_snapshot(event.definition))
    if event.step == OUTPUT:
        del run.parked[OUTPUT]
        if event.decision == "done":
            run.output = event.result
            commit.close(run)
        return
    entry = run.entry(event.step)
    if entry is None:
        return
    decision = {**row, "arguments": event.arguments, "result": event.result}
    flight = run.flights.get(entry.flight) if entry.flight else None
    if flight is not None and flight.kind == "call":
        # The attempt in flight may still succeed, and then that wins.
        entry.decision = decision
        if flight.background:
            # The probe of a parked pivot: from now on the decision waits for it, so it is waited for.
            run.foreground(flight)
            run.unpark(entry)
        if not flight.cancelled:
            flight.cancelled = True
            run.emit(CancelCall(flight.id))
        return
    if flight is not None:
        run.drop_timer(flight)
    run.post(Decide(entry, decision))


def decide(run: Run, entry: Entry, decision: Mapping[str, Any]) -> None:
    """Carry out a decision about an entry that is not in flight any more."""
    parked = run.unpark(entry)
    op: EntryOp = parked.op if parked else op_of(run, entry)
    entry.decision = dict(decision)
    if op == "do":
        _forward(run, entry, decision)
    elif op == "confirm":
        _confirm(run, entry, decision)
    else:
        _undo(run, entry, decision)


def op_of(run: Run, entry: Entry) -> EntryOp:
    """Which operation of the entry is going on. Asking whether it happened belongs to its undo on the way back."""
    if entry.undo is not None and (entry.undo.state in ("RUNNING", "PARKED") or run.rolling):
        return "undo"
    if entry.confirm is not None and entry.confirm.state in ("RUNNING", "PARKED"):
        return "confirm"
    return "do"


def _forward(run: Run, entry: Entry, decision: Mapping[str, Any]) -> None:
    step = run.step(entry)
    guarded = step.do.guarded and not is_read(step) and not is_nested(step)
    match decision["decision"]:
        case "retry":
            _retry(run, entry, decision, guarded)
        case "done" if guarded:
            calls.send(run, entry, "write")
        case "done":
            forward.done(run, entry, decision.get("result"))
        case "skip" if guarded:
            entry.resolved = False
            run.post(Resolve(entry, "skip"))
        case "skip":
            by_hand.skipped(run, entry)
        case "compensate" if step.pivot and guarded:
            run.post(Resolve(entry, "compensate"))
        case "compensate" if step.pivot:
            by_hand.pivot_given_up(run, entry)
        case _:
            forward.settle_backward(run, entry)
            run.record(entry).stopped = True
            entry.decision = None
            run.post(Closed(entry, False))
            run.post(GoBack(by_hand.operator_cause(entry, decision), entry))


def _retry(run: Run, entry: Entry, decision: Mapping[str, Any], guarded: bool) -> None:
    corrected = decision.get("arguments")
    if corrected is not None:
        entry.override = dict(corrected)
    record = run.record(entry)
    step = run.step(entry)
    if entry.index is None and (step.for_each is not None or not entry.started_at):
        entry.decision = None
        scheduling.restart(run, record)
        return
    if step.do.uses == "wait":
        waits.forget_refusal(run, entry)
    never = entry.made == 0
    same_key = never or (entry.outcome == "unknown" and not entry.resolved and corrected is None)
    if same_key:
        if never or corrected is not None:
            entry.arguments = None
        entry.decision = None
        entry.rounds, entry.tries_from, entry.tries_since = 0, entry.made, run.now
        if guarded and step.pivot and run.recorded is not None:
            # Rule 5: a cancel or the deadline was recorded, so nothing starts any more; only its row decides.
            run.post(Resolve(entry, "pivot"))
        elif not never and calls.asked_once(step):
            # The participant does not honour the key: a probe has to say absent before it is asked again.
            run.post(Resolve(entry, "pivot" if step.pivot and run.phase == "forward" else "retry"))
        else:
            run.post(Begin(entry))
    elif guarded and not entry.resolved:
        run.post(Resolve(entry, "again"))
    else:
        next_generation(run, entry)


def next_generation(run: Run, entry: Entry) -> None:
    """Run the entry again under a new key: the old one is rejected, failed or sealed for good."""
    if run.recorded is not None and run.step(entry).pivot:
        # A cancel or the deadline came while the seal decided. Nothing starts any more.
        entry.decision = None
        run.post(PivotFailed(entry, arguments.cause_of(entry)))
        return
    entry.generation += 1
    entry.outcome = entry.word = entry.error = entry.arguments = None
    entry.result, entry.resolved, entry.asked, entry.made, entry.rounds = None, False, False, 0, 0
    entry.ended_at, entry.decision = None, None
    entry.undo = entry.confirm = None
    run.post(Begin(entry))


def _undo(run: Run, entry: Entry, decision: Mapping[str, Any]) -> None:
    undo, step = entry.undo, run.step(entry)
    if undo is None:
        return
    match decision["decision"]:
        case "retry":
            if decision.get("arguments") is not None:
                undo.override, undo.arguments = dict(decision["arguments"]), None
            elif undo.override is None:
                undo.arguments = None
            undo.tries_from, entry.decision = undo.made, None
            if entry.outcome == "unknown" and not entry.resolved and entry.asked and undo.started_at is None:
                run.post(Resolve(entry, "backward"))
            else:
                run.post(Undo(entry))
        case "done":
            own = step.compensate is not None and calls.alternate(step, undo).guarded
            if own or (step.do.guarded and not undo.marked):
                calls.send(run, entry, "write", "backward")
            else:
                by_hand.undone(run, entry)
        case _:
            undo.state, undo.ended_at = "SKIPPED", run.now
            entry.state = "DONE" if entry.outcome == "done" else "UNKNOWN"
            entry.decision = None
            by_hand.residue(run, entry, "effect_stays", "undo")
            run.post(Undone(entry))


def _confirm(run: Run, entry: Entry, decision: Mapping[str, Any]) -> None:
    confirm, step = entry.confirm, run.step(entry)
    if confirm is None or step.confirm is None:
        return
    match decision["decision"]:
        case "retry":
            if decision.get("arguments") is not None:
                confirm.override, confirm.arguments = dict(decision["arguments"]), None
            elif confirm.override is None:
                confirm.arguments = None
            entry.decision = None
            run.post(Confirm(entry))
        case "done" if step.confirm.guarded or (step.do.guarded and not confirm.marked):
            calls.send(run, entry, "write", "not_done")
        case "done":
            by_hand.confirmed(run, entry)
        case _:
            confirm.state, confirm.ended_at = "SKIPPED", run.now
            entry.state, entry.decision = "DONE", None
            by_hand.residue(run, entry, "effect_missing", "confirm")
            run.post(ConfirmClosed(entry))


def catch(run: Run, entry: Entry, error: DefinitionFault) -> None:
    """A decision that cannot be formulated leaves the operation where it was."""
    op = op_of(run, entry)
    entry.decision = None
    run.park(entry, op, str(error))
