"""Going backward: what leads there, in which order steps are undone, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.machine import forward, nested, notify
from sagas.machine.commands import CancelCall, Finish, Record
from sagas.machine.facts import Decide, Resolve, Roll, Undo, Undone
from sagas.machine.plan import is_nested
from sagas.machine.run import FORWARD_ASKS, Run
from sagas.machine.state import Entry, Flight


def request(run: Run, cause: Mapping[str, Any], entry: Entry | None = None) -> None:
    """Something leads backward. While the pivot is undecided it is only recorded (rule 5)."""
    if run.finished or run.phase == "backward":
        return
    if run.committed:
        if entry is not None:
            run.park(entry, "do", forward.why(entry))
        return
    pivot = undecided_pivot(run)
    if pivot is None:
        start(run, cause)
        return
    if run.recorded is None:
        run.recorded = dict(cause)
    if entry is not None:
        run.recorded_entries.append(entry.id)
    _hold_pivot(run, pivot)


def undecided_pivot(run: Run) -> Entry | None:
    """The pivot, if it was begun and nobody knows yet how it ended."""
    if run.plan.pivot is None or run.committed:
        return None
    entries = run.steps[run.plan.pivot.id].entries
    if not entries:
        return None
    entry = entries[0]
    if entry.state == "PENDING" or entry.resolved or entry.outcome == "late":
        return None
    return entry


def must_wait(run: Run) -> bool:
    """True when a cancel would only be recorded, because the pivot decides."""
    entry = undecided_pivot(run)
    return entry is not None and (entry.flight is not None or entry.made > 0)


def _hold_pivot(run: Run, entry: Entry) -> None:
    """No new attempt of a guarded pivot; an unguarded one may be asked again, to learn the truth."""
    guarded = run.step(entry).do.guarded
    flight = run.flights.get(entry.flight) if entry.flight else None
    never = entry.made == 0 and entry.outcome in (None, "rejected", "failed")
    if flight is None:
        if entry.id in run.parked and (guarded or never):
            run.unpark(entry)
            run.post(Resolve(entry, "pivot"))
    elif flight.kind == "call" and flight.ask == "do":
        if guarded and not flight.cancelled:
            flight.cancelled = True
            run.emit(CancelCall(flight.id))
    elif flight.kind == "timer" and flight.ask == "do" and (guarded or never):
        run.drop_timer(flight)
        entry.resolved = never
        run.post(Resolve(entry, "pivot"))


def pivot_failed(run: Run, entry: Entry, cause: Mapping[str, Any]) -> None:
    """The pivot never will happen: the first recorded cause leads backward."""
    entry.ended_at = entry.ended_at or run.now
    if entry.state in ("RUNNING", "PARKED"):
        forward.settle_backward(run, entry)
    entry.resolved = True
    first, run.recorded = run.recorded or cause, None
    start(run, first)


def start(run: Run, cause: Mapping[str, Any]) -> None:
    """Turn round. Compensations wait until every attempt in flight has settled (rule 2)."""
    run.phase = "backward"
    run.reason = dict(cause)
    run.recorded = None
    run.change("COMPENSATING", cause.get("step"))
    run.cancel_timer("deadline")
    run.deadline_at = None
    for parked in list(run.parked.values()):
        if parked.op == "do":
            entry = run.entry(parked.step)
            del run.parked[parked.step]
            if entry is not None:
                forward.settle_backward(run, entry)
    for flight in list(run.flights.values()):
        if flight.ask in FORWARD_ASKS:
            _stop(run, flight)


def _stop(run: Run, flight: Flight) -> None:
    entry = run.entry(flight.entry)
    if entry is None:
        return
    if flight.kind == "call":
        if flight.ask == "do" and not flight.cancelled:
            flight.cancelled = True
            run.emit(CancelCall(flight.id))
    elif flight.kind == "saga":
        if not flight.cancelled:
            flight.cancelled = True
            message = str((run.reason or {}).get("message") or "the parent saga goes backward")
            run.emit(nested.cancel(run, entry, message))
    elif flight.ask == "write":
        return  # a person says that the effect is there: it is undone once the guard knows of it
    else:
        run.drop_timer(flight)
        if flight.kind == "wait":
            entry.outcome, entry.word = "failed", "failed"
            entry.error = {"type": "Cancelled", "message": "the saga went backward", "details": {}}
        forward.settle_backward(run, entry)


def roll_when_settled(run: Run) -> None:
    """Start undoing once nothing forward is in flight."""
    if run.phase != "backward" or run.rolling or run.forward_busy or run.finished:
        return
    run.rolling = True
    run.undo_open = len(run.steps)
    for id in reversed(run.plan.steps):
        record = run.steps[id]
        record.dependants_open = len(run.plan.dependants[id])
    for id in reversed(run.plan.steps):
        if run.steps[id].dependants_open == 0:
            run.post(Roll(id))


def roll(run: Run, id: str) -> None:
    """Undo the entries of a step whose dependants are all closed, the last item first; then free what it needed."""
    record = run.steps[id]
    if record.undo_closed:
        return
    if record.undo_cursor is None:
        record.undo_cursor = len(record.entries) - 1
    while record.undo_cursor >= 0:
        entry = record.entries[record.undo_cursor]
        if _open(entry):
            return  # undone alone already, and still at it
        if needs_undo(run, entry):
            if entry.outcome == "unknown" and not entry.asked:
                entry.asked = True
                run.post(Resolve(entry, "backward"))
            else:
                run.post(Undo(entry))
            return
        if entry.resolved and entry.state == "DONE" and entry.undo is not None:
            entry.state = entry.undo.state = "NOTHING_TO_UNDO"  # an empty for_each
        record.undo_cursor -= 1
    record.undo_closed = True
    run.undo_open -= 1
    for need in reversed(run.plan.steps[id].needs):
        other = run.steps[need]
        other.dependants_open -= 1
        if other.dependants_open == 0:
            run.post(Roll(need))


def _open(entry: Entry) -> bool:
    return entry.undo is not None and entry.undo.state in ("RUNNING", "PARKED")


def needs_undo(run: Run, entry: Entry) -> bool:
    """DONE and unresolved UNKNOWN entries are compensated, each once."""
    if entry.resolved or entry.outcome not in ("done", "unknown"):
        return False
    if entry.undo is not None and entry.undo.state in ("DONE", "NOTHING_TO_UNDO", "SKIPPED"):
        return False
    step = run.step(entry)
    return step.compensate is not None or is_nested(step)


def resolved(run: Run, entry: Entry, verdict: str) -> None:
    """The answer about an UNKNOWN entry whose turn it is."""
    if verdict in ("done", "unknown"):
        # A person has perhaps decided meanwhile how it shall be undone.
        run.post(Undo(entry) if entry.decision is None else Decide(entry, entry.decision))
    else:
        run.post(Undone(entry))


def finish(run: Run) -> None:
    """Everything is undone, or closed by a person."""
    run.ended_at = run.now
    run.cancel_timer("warn_after")
    run.state = "RESIDUE" if run.residue else "COMPENSATED"
    run.emit(Record(run.state, None, run.reason["kind"] if run.reason else None))
    notify.reached(run, "residue" if run.residue else "compensated")
    run.emit(Finish(run.state, False, None, run.reason))
