"""The steps of a parked saga that are done or undone, and those that remain."""

from __future__ import annotations

from sagas.presentation.parked_outputs import partly_undone
from sagas.presentation.parked_rows import rows_left_to
from sagas.protocol.saga_view import SagaView

_UNDER_WAY = ("RUNNING", "UNKNOWN", "PARKED", "COMPENSATING", "CONFIRMING")


def undone_steps(view: SagaView) -> tuple[list[str], list[str]]:
    """The steps whose effect is undone, and those whose effect is still to be undone.

    A rollback that stops at a savepoint leaves out the steps before it.
    """
    undone, remaining = [], []
    covered = None if view.repeated_from is None else view.repeated_from.undoing
    for step in view.steps:
        if covered is not None and step.step not in covered:
            continue
        undo = step.compensation and step.compensation.state
        is_over = undo in ("DONE", "NOTHING_TO_UNDO")
        if (names := partly_undone(view, step.id)) is not None:
            undone += [f"{step.id} ({', '.join(names.reverted)})"] if names.reverted else []
            remaining.append(f"{step.id} ({', '.join(names.remaining)})")
            continue
        if is_over and not rows_left_to(view, step.id):
            undone.append(step.id)
        # The undo of a nested saga is not an operation of the parent before it begins.
        elif is_over or (
            step.state in ("DONE", "CONFIRMED", *_UNDER_WAY) and (step.uses == "saga" or undo not in (None, "SKIPPED"))
        ):
            remaining.append(step.id)
    return undone, remaining


def done_steps(view: SagaView) -> tuple[list[str], list[str]]:
    """The steps that are done, and those that are still to be done."""
    parked = {operation.step for operation in view.parked}
    done = [s.id for s in view.steps if s.state in ("DONE", "CONFIRMED", "SKIPPED") and s.id not in parked]
    remaining = [step.id for step in view.steps if step.state in ("PENDING", *_UNDER_WAY) or step.id in parked]
    return done, remaining
