"""Steps whose traces in the guards tell whether a saga is past its commit point, for one whose run nobody has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, StepDefinition, has_effect


@dataclass(frozen=True, slots=True)
class CommitEvidence:
    """The steps of a definition that tell of its commit point.

    ``steps``: all of them; an effect of any other step is of another saga under the same id. ``decisive``: their
    effects are made by the commit point, or past it. ``needed``: each of them has a row in its guard before a commit
    point without a pivot, whether it was done or an operator has skipped it. ``untold``: without a pivot, those with a
    confirm of which no guard tells. A pivot tells itself, because it is looked up.
    """

    steps: tuple[str, ...]
    decisive: tuple[str, ...]
    needed: tuple[str, ...]
    untold: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> CommitEvidence:
        return CommitEvidence(*(tuple(value[name]) for name in ("steps", "decisive", "needed", "untold")))


def commit_evidence(definition: Definition) -> CommitEvidence:
    plan = ExecutionPlan(definition)
    below_a_finish = {id for cut_off in plan.finishes.values() for id in cut_off}
    steps = definition.steps
    return CommitEvidence(
        tuple(s.id for s in steps),
        tuple(s.id for s in steps if s.pivot or s.kind == "retriable" or s.id in plan.after_pivot),
        tuple(s.id for s in steps if s.id not in below_a_finish and _has_a_row_at_the_commit(s)),
        ()
        if plan.pivot is not None
        else tuple(id for id in plan.to_confirm if not _has_a_row_of_its_confirm(plan.steps[id])),
    )


def _has_a_row_of_its_confirm(step: StepDefinition) -> bool:
    return step.do.guarded or (step.confirm is not None and step.confirm.guarded)


def _has_a_row_at_the_commit(step: StepDefinition) -> bool:
    may_be_left_out = step.on_failure == "continue" or step.if_ is not None or step.for_each is not None
    return has_effect(step) and step.do.guarded and not may_be_left_out
