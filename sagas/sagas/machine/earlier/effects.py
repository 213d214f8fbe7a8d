"""Effects of earlier runs, in steps to which this run has not come, or which it has left out.

A run that repeats another one may decide otherwise: a read answers differently now, so the condition of a step is
false, its list is shorter, or a `finish` ends the saga. The earlier decision stands for a step that has left an effect:
the step is called again, under its key. Where that is impossible, the saga does not complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sagas.definition.model import has_effect
from sagas.machine.state import Entry, SagaRun, StepRecord
from sagas.protocol.outcomes import Failure, Outcome
from sagas.text.records import restore_record


def left_record(run: SagaRun, id: str) -> StepRecord | None:
    """The step as a run before has left it; None if none is known that has begun it."""
    packed = run.earlier.records.get(id)
    return None if packed is None else restore_record(StepRecord, packed)


def exist(run: SagaRun, id: str) -> bool:
    """True if an earlier run has left effects of the step."""
    step = run.plan.steps[id]
    if not run.earlier.exist or not has_effect(step):
        return False
    if _recorded_items(run, id) or (step.pivot and run.earlier.pivot_in_place):
        return True
    return are_in_state(run, id)


def are_in_state(run: SagaRun, id: str) -> bool:
    """True if the state of an earlier run tells of effects of the step, or of calls whose outcome is unknown."""
    record = left_record(run, id)
    return record is not None and any(_is_in_place(entry) for entry in record.entries)


def earlier_items(run: SagaRun, id: str) -> list[Any] | None:
    """The list of a `for_each` with which a run before has begun, also an empty one; None if it is not known."""
    record = left_record(run, id)
    return None if record is None else record.items


def recorded_entries(run: SagaRun, id: str) -> int:
    """The number of entries of the step up to the last one whose effect is open in a guard."""
    return max(_recorded_items(run, id), default=-1) + 1


def left_out(run: SagaRun) -> list[str]:
    """The entries whose effects are in place although this run has left them out."""
    ids = list(run.earlier.open_effects)
    for id in run.earlier.records:
        record = left_record(run, id)
        ids += [entry.id for entry in record.entries if _is_in_place(entry)] if record is not None else []
    return [id for id in dict.fromkeys(ids) if _is_left_out(run, id)]


def outcome_of_undone(run: SagaRun, entry: Entry) -> Outcome | None:
    """The outcome of an entry whose undo an earlier run has made; None for any other entry.

    Its participant may not remember the undo, which another database or service may have made: it is not asked.
    """
    if run.earlier.undone.get(entry.id, 0) < entry.generation:
        return None
    failure = Failure("AlreadyCompensated", "an earlier run of the saga has undone this step")
    return Outcome("late", failure=failure, retryable=False)


def was_left_out_undone(run: SagaRun, entry: Entry) -> bool:
    """True if an earlier run has undone the entry, and gone on without it (`on_failure: continue`): its state tells,
    or else the effect of a step behind, which a rollback undoes before.
    """
    if outcome_of_undone(run, entry) is None or run.step(entry).on_failure != "continue":
        return False
    record = left_record(run, entry.step)
    entries = () if record is None else record.entries
    for earlier in entries:
        if earlier.id == entry.id:
            return earlier.failure_ignored
    behind = run.plan.descendants(entry.step)
    return run.earlier.pivot_in_place or any(id.partition("#")[0] in behind for id in run.earlier.open_effects)


def must_be_undone_again(run: SagaRun, entry: Entry) -> bool:
    """Leave an entry of which its guard says `late` to the rollback, if nobody knows whether its undo in another
    database or service was made: the rollback makes it, under its key. Returns False for any other entry.

    The rollback seals the entry first, because its undo may use the result, which the guard has.
    """
    if not is_undo_undecided(run, entry):
        return False
    entry.outcome, entry.state, entry.resolved, entry.looked_up = "unknown", "UNKNOWN", False, False
    entry.ended_at = run.now
    return True


def is_undo_undecided(run: SagaRun, entry: Entry) -> bool:
    """True if a guard has decided the undo for another database or service, and no run has told its end."""
    return entry.undo is not None and run.earlier.undecided_undos.get(entry.id) == entry.generation


def forget(run: SagaRun, step: str) -> None:
    """The effects of the step are undone, and it runs again with another generation."""
    for id in [id for id in run.earlier.open_effects if id.partition("#")[0] == step]:
        del run.earlier.open_effects[id]
    run.earlier.decisions.pop(step, None)
    if step in run.earlier.asked:
        run.earlier.asked.remove(step)


def item_numbers(entries: Iterable[str], id: str) -> list[int]:
    """The numbers of the items of the step among these entries; 0 for the step itself."""
    split = [entry.partition("#") for entry in entries]
    return [int(index or 0) for step, _, index in split if step == id]


def _recorded_items(run: SagaRun, id: str) -> list[int]:
    return item_numbers(run.earlier.open_effects, id)


def _is_in_place(entry: Entry) -> bool:
    is_undone = entry.undo is not None and entry.undo.state in ("DONE", "SKIPPED")
    is_left_out = entry.state == "SKIPPED"  # an operator takes the responsibility for what may be there
    return entry.outcome in ("done", "unknown") and not entry.resolved and not is_undone and not is_left_out


def _is_left_out(run: SagaRun, id: str) -> bool:
    step, entry = run.plan.steps.get(id.partition("#")[0]), run.entry(id)
    return step is not None and has_effect(step) and (entry is None or entry.state in ("PENDING", "SKIPPED"))
