"""Replacing the definition of a running saga (`saga resolve --definition`, rule 10).

Calls made under the old definition must stay valid under the new one: where each effect is, which database guards it,
and how many alternates can undo it. Expressions, arguments and timeouts may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.automatic import RESTORE
from sagas.definition.model import ENGINE_ACTIONS, Definition, Operation, StepDefinition
from sagas.definition.snapshot import from_snapshot


def replacement_refusal(running: Definition, snapshot: Mapping[str, Any]) -> str | None:
    """Why the running saga cannot continue with this definition, as one sentence; None if it can."""
    try:
        corrected = from_snapshot(snapshot)
        needs = [(step.id, step.needs) for step in corrected.steps]
    except (KeyError, TypeError, ValueError, AttributeError):
        return "the definition does not have the form that a run carries: read it from a file with --definition"
    if corrected.saga != running.saga or needs != [(step.id, step.needs) for step in running.steps]:
        return "the definition has other steps than the running saga; only their contents may change"
    if corrected.recovery != running.recovery:
        return f"the running saga has `recovery: {running.recovery}`, which must not change"
    if corrected.locks != running.locks:
        return "`locks` must not change while the saga runs"
    for old, new in zip(running.steps, corrected.steps, strict=True):
        what = _changed_aspect(old, new)
        if what is not None:
            return (
                f"{what} of {old.id} must not change while the saga runs; only expressions, arguments, timeouts "
                "and retries may"
            )
    return None


def _changed_aspect(old: StepDefinition, new: StepDefinition) -> str | None:
    undo, other = old.compensate, new.compensate
    facts = {
        "the kind": (old.kind, new.kind),
        "the location of the effect": (_effect_location(old.do), _effect_location(new.do)),
        "`two_phase`": (old.do.two_phase, new.do.two_phase),
        "`for_each`": (old.for_each is None, new.for_each is None),
        "`savepoint`": (old.savepoint is None, new.savepoint is None),
        "`confirm`": (_effect_location(old.confirm), _effect_location(new.confirm)),
        "`probe`": (old.probe is None or new.probe is not None, True),
        "`compensate`": (
            undo and [_effect_location(alternate) for alternate in undo.alternates],
            other and _leading_locations(other.alternates, undo),
        ),
        "`compensate.always`": (undo is not None and undo.always, other is not None and other.always),
        "`compensate.confirmed`": (
            undo and _effect_location(undo.confirmed),
            other and _effect_location(other.confirmed),
        ),
    }
    return next((name for name, (before, now) in facts.items() if before != now), None)


def _leading_locations(alternates: tuple[Operation, ...], undo: Any) -> list[Any]:
    """The locations of the first alternates, as many as the old definition has; additional ones are allowed."""
    return [_effect_location(alternate) for alternate in alternates[: len(undo.alternates) if undo else None]]


def _effect_location(action: Operation | None) -> tuple[str | None, str | None] | None:
    """The place of an action's effect: its connection, and its name if the state machine performs it.

    It is also the name of an automatic compensation: those of other steps may have left rows to it.
    """
    if action is None:
        return None
    own = action.uses if action.uses in (*ENGINE_ACTIONS, RESTORE) else None
    return action.connection, own
