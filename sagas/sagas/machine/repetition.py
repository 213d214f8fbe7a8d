"""Makes a call of an entry again: after the wait of a retry, or with the key of a later generation."""

from __future__ import annotations

from sagas.machine import calls, commit
from sagas.machine.entry_ends import leave_to_rollback
from sagas.machine.internal_events import LookUpEffect, StartAttempt
from sagas.machine.state import Entry, Flight, SagaRun
from sagas.machine.undo import effect_lookup, rollback


def repeat(run: SagaRun, entry: Entry, flight: Flight) -> None:
    """Make the call that has ended with ``flight``, or for which its timer has waited."""
    was_made = flight.kind == "call"
    match flight.call_kind:
        case "do" if was_made and run.phase == "backward":
            entry.outcome = "unknown"  # whatever the call has said, it was about an earlier generation
            leave_to_rollback(run, entry)
        case "do" if was_made and commit.pivot_is_blocked(run, entry):
            run.post(LookUpEffect(entry, "pivot"))
        case "do":
            run.post(StartAttempt(entry))
        case "seal" | "probe":
            effect_lookup.lookup_timer_fired(run, entry, flight)
        case "write" | "skip":
            calls.send_call(run, entry, flight.call_kind, flight.purpose)
        case "confirm" | "confirm-mark":
            commit.confirm_entry(run, entry)
        case _:
            rollback.retry_undo(run, entry)
