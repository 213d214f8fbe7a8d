"""Nested sagas (rule 14): a step that runs as a child saga, whose id is the step's key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.machine import arguments
from sagas.machine.state import Flight, LedgerEntry, SagaRun
from sagas.protocol.messages import CancelSaga, SagaEnded, StartSaga, UndoSaga
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import idempotency_key


def start_child(run: SagaRun, entry: LedgerEntry) -> None:
    """Start the nested saga. Raises DefinitionError when its name or input cannot be evaluated."""
    if entry.arguments is None:
        entry.arguments = arguments.forward_arguments(run, entry)
    command = start_command(run, entry)
    run.children[entry.id] = {
        "id": command.saga_id,
        "step": entry.id,
        "saga": command.saga,
        "state": "RUNNING",
    }
    run.start_flight(entry.id, "saga", entry, "do")
    run.emit(command)


def start_command(run: SagaRun, entry: LedgerEntry) -> StartSaga:
    given = entry.arguments or {}
    name = given.get("name")
    if not isinstance(name, str):
        raise arguments.DefinitionError(f"{entry.id}: the name of the nested saga is not a string")
    return StartSaga(entry.id, entry.id, name, child_saga_id(run, entry), given.get("input"), run.generation)


def child_saga_id(run: SagaRun, entry: LedgerEntry) -> str:
    return idempotency_key(run.saga_id, entry.id, entry.generation)


def forget_report(child: dict[str, Any]) -> None:
    """Drop the report of a nested saga that has no parked operations any more; see :mod:`sagas.machine.parked`."""
    child.pop("waits", None)
    child.pop("blocked", None)


def cancel_command(run: SagaRun, entry: LedgerEntry, message: str) -> CancelSaga:
    run.children[entry.id].pop("blocked", None)  # the cancel may unblock it; if not, it reports again
    return CancelSaga(entry.id, child_saga_id(run, entry), message)


def undo_command(run: SagaRun, entry: LedgerEntry) -> UndoSaga:
    reason = (run.reason or {}).get("message") or "the parent saga is rolled back"
    saga = str(run.children[entry.id]["saga"])
    return UndoSaga(f"{entry.id}~undo", entry.id, saga, child_saga_id(run, entry), str(reason))


def child_ended(run: SagaRun, entry: LedgerEntry, event: SagaEnded, flight: Flight) -> Outcome:
    """The outcome of the step after the end of the nested saga or of its undo."""
    story = event.view or {}
    child = run.children.get(entry.id)
    if child is not None:
        child["state"] = event.state
        forget_report(child)
    if event.state == "RESIDUE":
        run.residue += [dict(row) for row in story.get("residue") or ()]
    if flight.call_kind == "undo":
        return _undo_outcome(event)
    return _forward_outcome(event, story)


def _forward_outcome(event: SagaEnded, story: Mapping[str, Any]) -> Outcome:
    reason = story.get("reason") or {}
    match event.state:
        case "COMPLETED":
            return Outcome.done(story.get("output"))
        case "COMPENSATED":
            kind = "rejected" if reason.get("kind") == "rejected" else "failed"
            failure = Failure(
                str(reason.get("type") or "SagaCompensated"),
                str(reason.get("message") or "the nested saga was compensated"),
                reason.get("details") or {},
            )
            return Outcome(kind, failure=failure, attempt=1, retryable=False)
        case "RESIDUE":
            if story.get("committed_at") is not None or story.get("phase") == "committed":
                return Outcome.done(story.get("output"))
            sentence = "the nested saga was closed with a residue"
            return Outcome("failed", failure=Failure("SagaResidue", sentence), attempt=1, retryable=False)
        case "REFUSED":
            sentence = str(reason.get("message") or "the nested saga was refused; none of its steps has run")
            return Outcome("failed", failure=Failure("SagaRefused", sentence), attempt=1, retryable=False)
        case "TERMINATED":
            sentence = "the nested saga was terminated or no longer exists: check what it left"
            return Outcome("unknown", failure=Failure("Terminated", sentence), retryable=False, park_reason=sentence)


def _undo_outcome(event: SagaEnded) -> Outcome:
    if event.state in ("COMPENSATED", "RESIDUE"):
        return Outcome.done(None)
    sentence = {
        "REFUSED": "the nested saga refuses to be undone",
        "TERMINATED": "the undo of the nested saga was terminated or no longer exists",
    }.get(event.state, f"the undo of the nested saga ended {event.state}")
    return Outcome("failed", failure=Failure(event.state, sentence), retryable=False, park_reason=sentence)
