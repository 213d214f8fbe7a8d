"""Nested sagas (rule 14): a step that is a saga of its own, with the step's key as its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.machine import arguments
from sagas.machine.commands import CancelSaga, StartSaga, UndoSaga
from sagas.machine.events import SagaEnded
from sagas.machine.keys import step_key
from sagas.machine.run import Run
from sagas.machine.state import Entry, Flight
from sagas.outcomes import Failure, Outcome


def begin(run: Run, entry: Entry) -> None:
    """Start the child. Raises DefinitionFault when its name or input cannot be evaluated."""
    if entry.arguments is None:
        entry.arguments = arguments.forward(run, entry)
    command = start_of(run, entry)
    run.children[entry.id] = {
        "id": command.saga_id,
        "step": entry.id,
        "saga": command.saga,
        "state": "RUNNING",
    }
    run.depart(entry.id, "saga", entry, "do")
    run.emit(command)


def start_of(run: Run, entry: Entry) -> StartSaga:
    given = entry.arguments or {}
    name = given.get("name")
    if not isinstance(name, str):
        raise arguments.DefinitionFault(f"{entry.id}: the name of the nested saga is not a string")
    return StartSaga(entry.id, entry.id, name, child_id(run, entry), given.get("input"), run.generation)


def child_id(run: Run, entry: Entry) -> str:
    return step_key(run.saga_id, entry.id, entry.generation)


def forget_report(child: dict[str, Any]) -> None:
    """Nothing in the nested saga waits for a person any more; see :mod:`sagas.machine.parked`."""
    child.pop("waits", None)
    child.pop("blocked", None)


def cancel(run: Run, entry: Entry, message: str) -> CancelSaga:
    run.children[entry.id].pop("blocked", None)  # it may go on now; if it cannot, it reports once more
    return CancelSaga(entry.id, child_id(run, entry), message)


def undo_of(run: Run, entry: Entry) -> UndoSaga:
    reason = (run.reason or {}).get("message") or "the parent saga goes backward"
    saga = str(run.children[entry.id]["saga"])
    return UndoSaga(f"{entry.id}~undo", entry.id, saga, child_id(run, entry), str(reason))


def ended(run: Run, entry: Entry, event: SagaEnded, flight: Flight) -> Outcome:
    """What the end of the child, or of its undo, means for the step."""
    story = event.story or {}
    child = run.children.get(entry.id)
    if child is not None:
        child["state"] = event.state
        forget_report(child)
    if event.state == "RESIDUE":
        run.residue += [dict(row) for row in story.get("residue") or ()]
    if flight.ask == "undo":
        return _undone(event)
    return _done(event, story)


def _done(event: SagaEnded, story: Mapping[str, Any]) -> Outcome:
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
            sentence = str(reason.get("message") or "the nested saga was refused: nothing of it has run")
            return Outcome("failed", failure=Failure("SagaRefused", sentence), attempt=1, retryable=False)
        case "TERMINATED":
            sentence = "the nested saga was terminated or has vanished: look at what it left"
            return Outcome("unknown", failure=Failure("Terminated", sentence), retryable=False, parks=sentence)


def _undone(event: SagaEnded) -> Outcome:
    if event.state in ("COMPENSATED", "RESIDUE"):
        return Outcome.done(None)
    sentence = {
        "REFUSED": "the nested saga refuses to be undone",
        "TERMINATED": "the undo of the nested saga was terminated or has vanished",
    }.get(event.state, f"the undo of the nested saga ended {event.state}")
    return Outcome("failed", failure=Failure(event.state, sentence), retryable=False, parks=sentence)
