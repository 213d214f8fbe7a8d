"""After a restore: what was in flight is asked again, under the same ids and keys, or counts as lost."""

from __future__ import annotations

from sagas.machine import calls, nested
from sagas.machine.commands import CancelCall, CancelSaga, Command, StartTimer
from sagas.machine.events import CallEnded
from sagas.machine.run import Run
from sagas.outcomes import Failure, Outcome


def outstanding(run: Run, at: float) -> list[Command]:
    """The commands of everything in flight, in the order in which it was asked first."""
    commands: list[Command] = []
    for id, (fires_at, summary) in run.timers.items():
        commands.append(StartTimer(id, max(0.0, fires_at - at), summary))
    for flight in run.flights.values():
        entry = run.entry(flight.entry)
        if entry is None:
            continue
        if flight.kind == "call":
            commands.append(calls.call_of(run, entry, flight))
            if flight.cancelled:
                commands.append(CancelCall(flight.id))
        elif flight.kind == "saga":
            if flight.ask == "undo":
                commands.append(nested.undo_of(run, entry))
                continue
            commands.append(nested.start_of(run, entry))
            if flight.cancelled:
                commands.append(CancelSaga(flight.id, nested.child_id(run, entry), "the parent saga goes backward"))
        elif flight.fires_at is not None:
            commands.append(StartTimer(flight.id, max(0.0, flight.fires_at - at), flight.summary))
    return commands


def lost(run: Run, at: float) -> list[CallEnded]:
    """The ends of the calls in flight whose answers nobody will ever hear: each may have had its effect or not."""
    failure = Failure("Infrastructure", "the run was terminated while this was in flight")
    outcome = Outcome("unknown", failure=failure, infrastructure=True)
    return [CallEnded(flight.id, outcome, at) for flight in run.flights.values() if flight.kind == "call"]
