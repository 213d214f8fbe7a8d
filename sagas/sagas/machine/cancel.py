"""Requests to cancel and to undo the saga, and the causes of a rollback that come from outside (rules 5 and 6)."""

from __future__ import annotations

from typing import Any, Literal

from sagas.machine import commit
from sagas.machine.earlier import unknown_steps
from sagas.machine.internal_events import RequestRollback
from sagas.machine.locking import locks
from sagas.machine.operator_record import masked_words, note_intervention
from sagas.machine.state import SagaRun
from sagas.machine.undo import rollback
from sagas.protocol.messages import CancelRequested, UndoRequested

CancelResponse = Literal[
    "accepted", "recorded", "already", "past the point of no return", "point of no return unknown", "finished"
]


def cancel_response(run: SagaRun) -> CancelResponse:
    """The response to a cancel request received now (rule 6)."""
    if run.finished:
        return "finished"
    if run.earlier.commit_is_unknown:
        return "point of no return unknown"
    if run.is_irrevocable or (run.started_at is None and run.plan.forward_only and run.definition.locks is None):
        return "past the point of no return"
    if (run.phase == "backward" and run.savepoint is None) or run.cancel_requested:
        return "already"
    return "recorded" if _waits_for_pivot(run) or unknown_steps.must_find_pivot(run) else "accepted"


def _waits_for_pivot(run: SagaRun) -> bool:
    """True when a cancel would only be recorded, because the pivot decides (rule 5)."""
    pivot = commit.undecided_pivot(run)
    return pivot is not None and (pivot.flight is not None or pivot.min_attempts > 0)


def cancel_requested(run: SagaRun, event: CancelRequested) -> None:
    """Request a rollback, unless the saga has ended, is past its commit point or is being cancelled."""
    if event.kind == "parent":
        run.reported = None  # the parent assumes that nothing is blocked any more, so a report must follow if it is
    if event.kind == "terminated":
        locks.doubt_release(run)
        run.operator_pause_at = None  # it ended with the run
    if run.finished or run.is_irrevocable or run.cancel_requested:
        return
    run.cancel_requested = True
    if event.who and event.kind != "parent":
        what = "cancel" if event.kind == "cancelled" else "resume"
        note_intervention(run, what, event.at, event.who, event.message)
    message = masked_words(run, event.closed or event.message) or "a cancel was requested"
    details = {"who": event.who} if event.who and not event.closed else {}
    cause = external_cause(event.kind, "Cancelled", message, details)
    if event.kind == "terminated" and run.earlier.reason is not None:
        cause = run.earlier.reason  # the rollback has begun in an earlier run
    run.post(RequestRollback(cause))


def undo_requested(run: SagaRun, event: UndoRequested) -> None:
    """Undo a completed saga, if that is still possible (rule 15)."""
    if rollback.undo_refusal(run) is None:
        run.ended_at = None
        run.undoing_finished = True
        note_intervention(run, "undo", event.at, event.who, event.reason)
        cause = external_cause("undone", "Undone", masked_words(run, event.reason), {"who": event.who})
        rollback.start_rollback(run, cause)


def external_cause(kind: str, type: str, message: str, details: dict[str, Any]) -> dict[str, Any]:
    """A cause of rollback that is not a step: a cancel, the deadline, an undo."""
    return {"kind": kind, "step": None, "type": type, "message": message, "details": details}
