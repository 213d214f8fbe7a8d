"""The verdict on each step: its undo was verified, it leaves something, or it was not verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from saga_workers.undo_check.real_participants import EVALUATED, RealActions
from saga_workers.undo_check.undo_report import (
    DIFFERS,
    NOT_VERIFIED,
    VERIFIED,
    StepVerdict,
    UndoneOrder,
    blamed_entries,
)
from sagas.definition.model import Definition, StepDefinition, is_nested

_MAX_DEPTH = 10


def step_verdicts(
    definition: Definition,
    definitions: Mapping[str, Definition],
    real: RealActions,
    orders: Sequence[UndoneOrder],
    limited: bool,
) -> list[StepVerdict]:
    """The steps with an undo, and those that were not run, in the order of the definition.

    A step of a nested saga is written ``buy/charge``. ``limited``: not all orders were run.
    """
    verified = {_step_of(entry) for order in orders for entry in order.verified}
    blamed = {_step_of(entry) for entries in blamed_entries(orders).values() for entry in entries}
    stuck = {_step_of(row["step"]) for order in orders for row in order.parked}
    verdicts = []
    for path, step in _steps(definition, definitions, "", _MAX_DEPTH):
        name = path + step.id
        if name in blamed | stuck:
            verdicts.append(StepVerdict(name, DIFFERS))
        elif (why := real.why_step_is_not_run(step)) is not None:
            verdicts.append(StepVerdict(name, NOT_VERIFIED, why, can_run=False))
        elif step.compensate is None or step.do.uses in EVALUATED:
            continue  # nothing to undo, or the undo belongs to no effect of its own
        elif name in verified:
            verdicts.append(StepVerdict(name, VERIFIED))
        else:
            reason = "no order within the limit undoes it" if limited else "no order undoes it with this input"
            verdicts.append(StepVerdict(name, NOT_VERIFIED, reason))
    return verdicts


def _steps(
    definition: Definition, definitions: Mapping[str, Definition], path: str, depth: int
) -> Iterator[tuple[str, StepDefinition]]:
    """The steps, with those of nested sagas in place of the step that runs them."""
    for step in definition.steps:
        name = (step.do.with_ or {}).get("name") if is_nested(step) else None
        nested = definitions.get(name) if isinstance(name, str) else None
        if nested is None or depth == 0:
            yield path, step
        else:
            yield from _steps(nested, definitions, f"{path}{step.id}/", depth - 1)


def _step_of(entry: str) -> str:
    """``buy/charge`` of the entry ``buy#0/charge#1``."""
    return "/".join(part.partition("#")[0] for part in entry.split("/"))
