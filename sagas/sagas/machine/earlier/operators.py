"""Decisions of operators about single operations in earlier runs: they stand.

No participant knows of them. An operator has made an effect by hand, or taken over the responsibility for one that is
missing: a call under the old key would make it once more. Nor does Temporal know that a terminated nested saga counts.
"""

from __future__ import annotations

from sagas.definition.model import has_effect, is_nested
from sagas.machine.earlier import effects
from sagas.machine.earlier.doubts import doubt
from sagas.machine.state import Entry, OperationState, SagaRun


def decided_entry(run: SagaRun, entry: Entry) -> Entry | None:
    """The entry as an earlier run has left it, if an operator has decided there that it is done or skipped; else None.

    A guarded step that is done is not decided here: its guard has the row that the decision has written.
    """
    left = _left_entry(run, entry)
    if left is None or (left.undo is not None and left.undo.state in ("DONE", "SKIPPED")):
        return None
    step, decisions = run.step(entry), _decisions_about(run, entry)
    if left.state == "SKIPPED":
        return left if "skip" in decisions else None
    is_told_by_guard = step.do.guarded and not is_nested(step)
    return left if left.outcome == "done" and "done" in decisions and not is_told_by_guard else None


def asks_again(run: SagaRun, entry: Entry) -> bool:
    """Park once an entry about which an operator was asked in a run that is deleted: only a guard keeps decisions."""
    if entry.id not in run.earlier.undecided:
        return False
    run.earlier.undecided.remove(entry.id)
    step = run.step(entry)
    if step.do.guarded or not has_effect(step) or is_nested(step):
        return False
    doubt(run, entry)
    run.park(
        entry,
        "do",
        "it waited for an operator in an earlier run of the saga, which is deleted, and so is what was decided: decide "
        "`done` if its effect is there, `skip` if it was left out, or `retry` to call it",
    )
    return True


def are_about(run: SagaRun, step: str) -> bool:
    """True if an operator has decided in an earlier run that the step itself, not an item of it, is done or skipped."""
    return (
        decided_entry(run, Entry(step, step, generation=run.earlier.generations.get(step, run.generation))) is not None
    )


def repeat_decision(run: SagaRun, entry: Entry, told: Entry) -> None:
    """Let the entry be as an operator has decided in an earlier run, but for its end if it is done."""
    entry.arguments, entry.override, entry.error = told.arguments, told.override, told.error
    entry.attempts, entry.min_attempts = told.attempts, told.min_attempts
    if entry.id in run.earlier.children:
        run.children[entry.id] = dict(run.earlier.children[entry.id])
    if told.state == "SKIPPED":
        entry.outcome, entry.resolved, entry.failure_kind = told.outcome, told.resolved, told.failure_kind
        entry.state, entry.ended_at, entry.failure_ignored = "SKIPPED", run.now, True
        take_residue(run, entry)


def decided_confirm(run: SagaRun, entry: Entry) -> OperationState | None:
    """The confirm of the entry, if an operator has decided in an earlier run that it is done or skipped; else None."""
    left = _left_entry(run, entry)
    return None if left is None else _decided_operation(run, entry, left.confirm)


def decided_undo(run: SagaRun, entry: Entry) -> OperationState | None:
    """The undo of the entry, if an operator has decided in an earlier run that it is done or skipped; else None."""
    left = _left_entry(run, entry)
    return None if left is None else _decided_operation(run, entry, left.undo)


def take_residue(run: SagaRun, entry: Entry) -> None:
    """Take over what stays after a decision to skip an operation of this entry."""
    rows = [row for row in run.earlier.residue if row["step"] == entry.id]
    run.residue += [row for row in rows if row not in run.residue]
    run.earlier.residue = [row for row in run.earlier.residue if row["step"] != entry.id]


def _decided_operation(run: SagaRun, entry: Entry, left: OperationState | None) -> OperationState | None:
    is_decided = bool({"done", "skip"} & _decisions_about(run, entry))
    return left if left is not None and left.state in ("DONE", "SKIPPED") and is_decided else None


def _left_entry(run: SagaRun, entry: Entry) -> Entry | None:
    record = effects.left_record(run, entry.step)
    entries = () if record is None else record.entries
    return next((left for left in entries if (left.id, left.generation) == (entry.id, entry.generation)), None)


def _decisions_about(run: SagaRun, entry: Entry) -> set[str]:
    return {row["decision"] for row in run.operator if row["step"] == entry.id}
