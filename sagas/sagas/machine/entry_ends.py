"""The beginning and the end of an entry's forward attempts, as far as its own state goes."""

from __future__ import annotations

from sagas.definition.model import StepState
from sagas.machine.state import Entry, OperationState, SagaRun
from sagas.protocol.outcomes import OutcomeKind

STATE_BY_OUTCOME: dict[OutcomeKind, StepState] = {
    "done": "DONE",
    "rejected": "REJECTED",
    "failed": "FAILED",
    "unknown": "UNKNOWN",
    "late": "COMPENSATED",
}
"""The state of an entry whose forward attempts have ended with this outcome."""


def register_operations(run: SagaRun, entry: Entry) -> None:
    """Register the compensation and the confirm of an entry, before its first attempt."""
    step = run.step(entry)
    if step.compensate is not None and entry.undo is None:
        entry.undo = OperationState()
    if step.confirm is not None and entry.confirm is None:
        entry.confirm = OperationState()


def mark_nothing_to_undo(entry: Entry) -> None:
    """The entry has no effect and will have none, which also closes its compensation.

    An outcome that was unknown is known now: the last attempt's own word, or failed.
    """
    entry.state = "NOTHING_TO_UNDO"
    if entry.outcome in ("unknown", None):
        entry.outcome = "rejected" if entry.failure_kind == "rejected" else "failed"
    if entry.undo is not None:
        entry.undo.state = "NOTHING_TO_UNDO"


def leave_to_rollback(run: SagaRun, entry: Entry) -> None:
    """During a rollback: finish the attempts of an entry and leave it to :mod:`sagas.machine.undo.rollback`."""
    if entry.state in ("RUNNING", "PARKED"):
        closed = entry.undo is not None and entry.undo.state == "NOTHING_TO_UNDO"
        if entry.resolved and (closed or entry.outcome == "unknown"):
            mark_nothing_to_undo(entry)
        else:
            entry.state = STATE_BY_OUTCOME[entry.outcome or "failed"]
    if entry.outcome is None:
        entry.outcome = "failed"
    entry.decision = None
    entry.ended_at = entry.ended_at or run.now
