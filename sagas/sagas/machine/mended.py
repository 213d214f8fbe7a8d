"""Whether a running saga can go on with a corrected definition (`saga resolve --definition`, rule 10).

What was asked under the old definition has to stay answerable under the new one: where each effect was made, in which
database it is guarded, and how many ways there are to undo it. Expressions, arguments and patience may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import Definition, Operation, Step
from sagas.definition.snapshot import from_snapshot


def refusal(running: Definition, snapshot: Mapping[str, Any]) -> str | None:
    """Why the saga cannot go on with this definition, in one sentence; None when it can."""
    try:
        mended = from_snapshot(snapshot)
        found = [(step.id, step.needs) for step in mended.steps]
    except (KeyError, TypeError, ValueError, AttributeError):
        return "the definition is none that a run could carry: take it from a file with --definition"
    if mended.saga != running.saga or found != [(step.id, step.needs) for step in running.steps]:
        return "the definition has other steps than the running saga: only their contents may change"
    if mended.recovery != running.recovery:
        return f"the running saga has `recovery: {running.recovery}`, and that may not change"
    for old, new in zip(running.steps, mended.steps, strict=True):
        what = _changed(old, new)
        if what is not None:
            return (
                f"{what} of {old.id} may not change while the saga runs: only expressions, arguments and patience may"
            )
    return None


def _changed(old: Step, new: Step) -> str | None:
    undo, other = old.compensate, new.compensate
    facts = {
        "the kind": (old.kind, new.kind),
        "the place of the action": (_place(old.do), _place(new.do)),
        "`for_each`": (old.for_each is None, new.for_each is None),
        "`confirm`": (_place(old.confirm), _place(new.confirm)),
        "`probe`": (old.probe is None or new.probe is not None, True),
        "`compensate`": (undo and [_place(one) for one in undo.alternates], other and _first(other.alternates, undo)),
        "`compensate.confirmed`": (undo and _place(undo.confirmed), other and _place(other.confirmed)),
    }
    return next((name for name, (before, now) in facts.items() if before != now), None)


def _first(alternates: tuple[Operation, ...], undo: Any) -> list[Any]:
    """As many alternates as there were; more may follow."""
    return [_place(one) for one in alternates[: len(undo.alternates) if undo else None]]


def _place(action: Operation | None) -> tuple[str | None, str | None] | None:
    """Where an action has its effect: its database, and whether the engine itself performs it."""
    if action is None:
        return None
    own = action.uses if action.uses in ("saga", "wait", "require") else None
    return action.connection, own
