"""How far a saga is: what is done, what remains, and what an undo would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sagas.presentation.remaining_steps import done_steps, undone_steps
from sagas.presentation.step_text import is_held_back
from sagas.presentation.unproven_effects import undecided_steps
from sagas.protocol.saga_view import SagaView
from sagas.text.shortening import join_names

_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class SagaProgress:
    """Three lists of steps with their titles. ``undo_note`` says when the third happens, or why it cannot."""

    finished_title: str
    finished: Sequence[str]
    remaining_title: str
    remaining: Sequence[str]
    undo_note: str
    would_undo: Sequence[str]


def progress_of(view: SagaView) -> SagaProgress:
    """The progress of a saga whose steps are known."""
    if view.phase == "backward":
        undone, still = undone_steps(view)
        title = "Still to be undone" if view.repeated_from is None else "Undone next, then run again"
        return SagaProgress("Undone", undone, title, list(reversed(still)), _repetition_note(view), ())
    done, remaining = done_steps(view)
    held = {step.id for step in view.steps if is_held_back(view, step)}
    undoable = [step for step in undone_steps(view)[1] if step not in held]
    note, undoable = _undo_note(view), list(reversed(undoable))
    return SagaProgress("Done", done, "Remains to be done", remaining, note, undoable if note.endswith(":") else ())


def _repetition_note(view: SagaView) -> str:
    savepoint = view.repeated_from
    if savepoint is None:
        return ""
    run = f"run {savepoint.runs + 1} of {savepoint.attempts}"
    return f"Then what follows the savepoint {savepoint.step} runs again ({run}). A cancel would undo all steps."


def _undo_note(view: SagaView) -> str:
    if view.state == "COMPLETED":
        if view.can_undo:
            return "An undo of this saga would undo, in this order:"
        return f"It cannot be undone: {view.undo_refusal or 'the state from which an undo starts is not kept'}."
    if view.ended_at is not None:
        return "It has ended: nothing more is undone."
    if view.phase == "committed":
        return "It is past the point of no return: nothing can be undone any more."
    if (doubt := cancel_doubt(view)) is not None:
        return f"If it were cancelled now, {doubt}; if it has not, this is undone, in this order:"
    return "If it were cancelled now, this would be undone, in this order:"


def cancel_doubt(view: SagaView) -> str | None:
    """Why a cancel would only be recorded, as a clause; None if the saga would go back at once."""
    undecided = [step.name or step.id for step in undecided_steps(view)]
    if not undecided:
        return None
    steps = join_names(undecided, _MAX_NAMES)
    return f"that is only recorded until it is known whether {steps} took effect: if it has, nothing is undone"
