"""What follows when a person says that an operation is done, leaves it out or gives it up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.machine import calls, forward, joining
from sagas.machine.facts import Closed, ConfirmClosed, PivotFailed, Undone
from sagas.machine.keys import step_key
from sagas.machine.run import Run
from sagas.machine.state import Entry, EntryOp, Purpose
from sagas.outcomes import Outcome


def skipped(run: Run, entry: Entry) -> None:
    """A person leaves the step out; past the commit point its effect is missing, and the saga says so."""
    entry.state, entry.result, entry.ended_at, entry.decision = "SKIPPED", None, run.now, None
    entry.continued = True
    if run.committed:
        residue(run, entry, "effect_missing", "do")
    run.post(Closed(entry, True))


def pivot_given_up(run: Run, entry: Entry) -> None:
    """The pivot is sealed, or a person vouches that it did not happen."""
    cause = operator_cause(entry, entry.decision or {})
    entry.decision = None
    run.post(PivotFailed(entry, cause))


def operator_cause(entry: Entry, decision: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "operator",
        "step": entry.id,
        "type": "Operator",
        "message": decision.get("reason") or "a person decided to go backward",
        "details": {"who": decision.get("who")},
    }


def undone(run: Run, entry: Entry) -> None:
    undo = entry.undo
    assert undo is not None
    entry.state, undo.state, undo.ended_at, undo.error = "COMPENSATED", "DONE", run.now, None
    entry.decision = None
    run.post(Undone(entry))


def confirmed(run: Run, entry: Entry) -> None:
    confirm = entry.confirm
    assert confirm is not None
    entry.state, confirm.state, confirm.ended_at, confirm.error = "CONFIRMED", "DONE", run.now, None
    entry.decision = None
    run.post(ConfirmClosed(entry))


def written(run: Run, entry: Entry, outcome: Outcome, purpose: Purpose, attempts: int | None) -> None:
    """The guard has taken a person's `done`, or had a row that wins; a guard in trouble is asked again."""
    op: EntryOp = "undo" if purpose == "backward" else "confirm" if purpose == "not_done" else "do"
    step = run.step(entry)
    counted = {"do": entry, "undo": entry.undo, "confirm": entry.confirm}[op]
    assert counted is not None
    counts = joining.counted(counted.made, attempts, counted.attempts, outcome, step.do.retry)
    counted.made, counted.attempts = counts
    if outcome.kind == "done" and outcome.marker not in ("unknown_effect", "confirmed"):
        if op == "do":
            entry.last_end = run.now
            forward.done(run, entry, outcome.result)
        elif op == "confirm":
            confirmed(run, entry)
        else:
            if outcome.marker == "nothing_to_undo":
                entry.resolved = True
            undone(run, entry)
    elif outcome.kind in ("unknown", "failed") and outcome.retryable and outcome.parks is None:
        summary = f"retry ✎ {step.name}: done, says a person"
        wait = step.do.retry.max_interval
        run.depart(f"{entry.id}~write-retry", "timer", entry, "write", purpose, seconds=wait, summary=summary)
    elif op == "do" and run.phase == "backward":
        entry.decision = None
        forward.settle_backward(run, entry)
    else:
        entry.decision = None
        said = outcome.parks or (outcome.failure.message if outcome.failure else outcome.marker or outcome.kind)
        run.park(entry, op, f"the guard did not take the decision: {said}")


def residue(run: Run, entry: Entry, kind: str, op: EntryOp) -> None:
    """Name what stays or is missing, where, under which key, and what would mend it."""
    step = run.step(entry)
    action = step.do
    given: Mapping[str, Any] = entry.arguments or {}
    if op == "undo" and step.compensate is not None and entry.undo is not None:
        action, given = calls.alternate(step, entry.undo), entry.undo.arguments or {}
    elif op == "confirm" and step.confirm is not None and entry.confirm is not None:
        action, given = step.confirm, entry.confirm.arguments or {}
    key = step_key(run.saga_id, entry.id, entry.generation, "" if op == "do" else op)
    run.residue.append(
        {
            "step": entry.id,
            "kind": kind,
            "system": action.connection or action.task_queue or action.uses,
            "key": key,
            "command": f"{action.uses} {calls.compact(given)}",
        }
    )
