"""Every event goes to the part of the machine that it concerns."""

from __future__ import annotations

from typing import Any

from sagas.machine import (
    backward,
    budget,
    by_hand,
    calls,
    commit,
    compensate,
    decisions,
    forward,
    nested,
    notify,
    parked,
    permission,
    resolve,
    waits,
)
from sagas.machine.events import (
    CallEnded,
    CancelRequested,
    ChildParked,
    DecisionMade,
    Event,
    SagaEnded,
    SignalReceived,
    Started,
    TimerFired,
    UndoRequested,
)
from sagas.machine.facts import Begin, Decide, GoBack
from sagas.machine.run import Run


def take(run: Run, event: Event) -> None:
    """Note what the event says. Events that no longer matter change nothing."""
    match event:
        case Started():
            _started(run)
        case CallEnded():
            _call_ended(run, event)
        case SagaEnded():
            _saga_ended(run, event)
        case ChildParked():
            parked.reported(run, event)
        case TimerFired():
            _timer_fired(run, event)
        case CancelRequested():
            _cancel(run, event)
        case SignalReceived():
            _signal(run, event)
        case DecisionMade():
            _decision(run, event)
        case UndoRequested():
            _undo(run, event)


def _started(run: Run) -> None:
    if run.started_at is not None:
        return
    run.started_at = run.now
    run.kept_bytes = budget.size(run.input)
    if run.plan.forward_only:
        run.phase, run.state, run.committed_at = "committed", "COMMITTED", run.now
    elif run.definition.deadline is not None:
        run.deadline_at = run.now + run.definition.deadline
        run.start_timer("deadline", run.definition.deadline, "deadline")
    if run.definition.warn_after is not None:
        run.start_timer("warn_after", run.definition.warn_after, "warn when overdue")


def _call_ended(run: Run, event: CallEnded) -> None:
    flight = run.flights.get(event.id)
    entry = run.entry(flight.entry) if flight is not None else None
    if flight is None or entry is None or flight.kind != "call":
        return  # a duplicate, or the end of something that no longer matters
    run.land(flight)
    outcome = event.outcome
    match flight.ask:
        case "do":
            forward.attempt_ended(run, entry, outcome, event.attempts)
        case "probe":
            resolve.probed(run, entry, outcome, flight)
        case "seal":
            resolve.sealed(run, entry, outcome, flight.purpose)
        case "write":
            by_hand.written(run, entry, outcome, flight.purpose, event.attempts)
        case "undo-mark":
            compensate.marked(run, entry, outcome)
        case "undo":
            compensate.ended(run, entry, outcome, event.attempts)
        case "confirm" | "confirm-mark":
            commit.ended(run, entry, outcome, event.attempts, mark=flight.ask == "confirm-mark")
    if entry.decision is not None and entry.id in run.parked:
        run.post(Decide(entry, entry.decision))


def _saga_ended(run: Run, event: SagaEnded) -> None:
    flight = run.flights.get(event.id)
    entry = run.entry(flight.entry) if flight is not None else None
    if flight is None or entry is None or flight.kind != "saga":
        return
    run.land(flight)
    outcome = nested.ended(run, entry, event, flight)
    if flight.ask == "undo":
        compensate.ended(run, entry, outcome, 1)
    else:
        forward.attempt_ended(run, entry, outcome, 1)


def _timer_fired(run: Run, event: TimerFired) -> None:
    if event.id in run.timers:
        del run.timers[event.id]
        if event.id == "warn_after":
            run.overdue = True
            notify.reached(run, "overdue")
        else:
            run.post(GoBack(_cause("deadline", "Deadline", "the deadline has passed", {})))
        return
    flight = run.flights.get(event.id)
    entry = run.entry(flight.entry) if flight is not None else None
    if flight is None or entry is None or flight.fires_at is None:
        return
    run.land(flight)
    if flight.kind == "wait":
        forward.attempt_ended(run, entry, waits.fired(run, entry), 1)
    elif flight.ask == "do":
        run.post(Begin(entry))
    elif flight.ask in ("seal", "probe"):
        resolve.timer_fired(run, entry, flight)
    elif flight.ask == "write":
        calls.send(run, entry, "write", flight.purpose)
    elif flight.ask == "confirm":
        commit.begin(run, entry)
    else:
        compensate.again(run, entry)


def _cancel(run: Run, event: CancelRequested) -> None:
    if event.kind == "parent":
        run.reported = None  # the parent takes it that nothing blocks it now, and hears when that is not so
    if run.finished or run.committed or run.cancel_requested:
        return
    run.cancel_requested = True
    message = event.message or "somebody asked for it"
    run.post(GoBack(_cause(event.kind, "Cancelled", message, {"who": event.who} if event.who else {})))


def _signal(run: Run, event: SignalReceived) -> None:
    if run.finished:
        return
    for entry in waits.signalled(run, event):
        forward.attempt_ended(run, entry, waits.answer(run.signals[event.name]), 1)


def _decision(run: Run, event: DecisionMade) -> None:
    if permission.refusal(run, event) is None:
        decisions.receive(run, event)


def _undo(run: Run, event: UndoRequested) -> None:
    if permission.can_undo(run):
        run.ended_at = None
        run.undoing_finished = True
        backward.start(run, _cause("undone", "Undone", event.reason, {"who": event.who}))


def _cause(kind: str, type: str, message: str, details: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "step": None, "type": type, "message": message, "details": details}
