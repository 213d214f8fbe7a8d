"""The pause of a saga by an operator, which the machine knows only because waits for other sagas do not count it.

A paused saga is not rejected for a lock or a row that it could not take meanwhile: its waits go on after the pause.
"""

from __future__ import annotations

from typing import Literal

from sagas.machine.locking import locks
from sagas.machine.operator_record import note_intervention
from sagas.machine.state import SagaRun
from sagas.protocol.messages import Command


def note(run: SagaRun, what: Literal["pause", "resume"], at: float, who: str, reason: str) -> list[Command]:
    """Record a pause or its end for the view; returns the timers of the waits that go on."""
    note_intervention(run, what, at, who, reason)
    run.now, run.commands = at, []
    if what == "pause":
        run.operator_pause_at = at
    elif run.operator_pause_at is not None:
        _leave_out(run, run.operator_pause_at)
        run.operator_pause_at = None
        locks.continue_wait(run)
    commands, run.commands = run.commands, []
    return commands


def _leave_out(run: SagaRun, since: float) -> None:
    """Leave the time since then out of all waits."""
    for record in run.steps.values():
        for entry in record.entries:
            if entry.row_locked_at is not None:
                entry.row_locked_at += run.now - max(entry.row_locked_at, since)
    if locks.waits(run) and run.locks is not None:
        run.locks.paused_seconds += run.now - max(run.locks.requested_at, since)
