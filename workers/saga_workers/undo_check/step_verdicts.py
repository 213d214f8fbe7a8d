"""The verdict on each step: its undo was verified, it leaves something, or it was not verified."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from saga_workers.undo_check.planned_orders import OrderPlan
from saga_workers.undo_check.real_participants import EVALUATED, RealActions, undoes_confirmed_by_another_action
from saga_workers.undo_check.step_names import step_of
from saga_workers.undo_check.undo_report import (
    DIFFERS,
    NOT_VERIFIED,
    VERIFIED,
    HiddenTable,
    StepVerdict,
    UndoneOrder,
    blamed_entries,
    hidden_entries,
)
from sagas.builtins.messaging import EMIT
from sagas.definition.model import Definition, StepDefinition, is_nested

_MAX_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Evidence:
    """The orders of a saga: ``planned``, those of them that were ``run``, and what the comparison could not see.

    ``unchanged``: the steps whose effects changed nothing that is compared when the saga completed. ``no_undo``: why
    `saga undo` would be refused, as the end of a sentence.
    """

    planned: Sequence[OrderPlan]
    run: Sequence[UndoneOrder]
    hidden: Mapping[str, Sequence[HiddenTable]]
    unchanged: Collection[str] = ()
    no_undo: str | None = None

    @property
    def is_limited(self) -> bool:
        return len(self.run) < len(self.planned)


def step_verdicts(
    definition: Definition, definitions: Mapping[str, Definition], real: RealActions, evidence: Evidence
) -> list[StepVerdict]:
    """The steps with an undo, and those that were not run, in the order of the definition.

    A step of a nested saga is written ``buy/charge``.
    """
    orders = evidence.run
    blamed = {step_of(entry) for entries in blamed_entries(orders).values() for entry in entries}
    hidden = {step_of(entry): others for entry, others in hidden_entries(orders).items()}
    stuck = {step_of(row["step"]) for order in orders for row in order.parked}
    verdicts = []
    for path, step in _steps(definition, definitions, "", _MAX_DEPTH):
        name = path + step.id
        if name in blamed | stuck:
            verdicts.append(StepVerdict(name, DIFFERS))
        elif (why := real.why_step_is_not_run(step)) is not None:
            verdicts.append(StepVerdict(name, NOT_VERIFIED, why, can_run=False))
        elif name in hidden:
            verdicts.append(StepVerdict(name, NOT_VERIFIED, f"not told apart from {', '.join(sorted(hidden[name]))}"))
        elif step.compensate is None or step.do.uses in EVALUATED:
            continue  # nothing to undo, or the undo belongs to no effect of its own
        elif (why := _why_not_verified(name, step, evidence)) is not None:
            verdicts.append(StepVerdict(name, NOT_VERIFIED, why))
        else:
            verdicts.append(StepVerdict(name, VERIFIED))
    return verdicts


def _why_not_verified(name: str, step: StepDefinition, evidence: Evidence) -> str | None:
    """The reason why not all that undoes a step was run and compared; None if it was."""
    actions = {action for order in evidence.run for entry, action in order.verified if step_of(entry) == name}
    if not actions:
        return _why_never_undone(name, evidence)
    within = " within the limit" if evidence.is_limited else ""
    compensation = step.compensate
    for number in range(len(compensation.alternates) if compensation is not None else 0):
        if number not in actions:
            return f"no order{within} undoes it with action {number + 1} of its compensate"
    if undoes_confirmed_by_another_action(step) and "confirmed" not in actions:
        refusal = f": {evidence.no_undo}" if evidence.no_undo is not None and "/" not in name else ""
        return f"no order{within} runs its compensate.confirmed{refusal}"
    for connection in dict.fromkeys(operation.connection for operation in step.operations):
        for table in evidence.hidden.get(connection or "", ()):
            if table.name not in step.undo_leaves:
                return f"{table.connection} · {table.name} is not compared: {table.why}"
    if name in evidence.unchanged and step.do.uses != EMIT:
        return "with this input its effect changes nothing that is compared"
    return None


def _why_never_undone(name: str, evidence: Evidence) -> str:
    if not any(_undoes(order.undone, name) for order in evidence.planned):
        return "no order undoes it with this input"
    orders = [order for order in evidence.run if _undoes(order.simulated, name)]
    if not orders:
        return "no order within the limit undoes it"
    if all(order.deviation is not None for order in orders):
        return "no order that undoes it has run as in `saga simulate`"
    return "no order undoes an effect of it"


def _undoes(undone: Sequence[str], name: str) -> bool:
    return any(step_of(entry) == name for entry in undone)


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
