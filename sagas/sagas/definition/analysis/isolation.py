"""The effects of an undecided saga that other sagas can see, and which counter-measures the definition has against it.

A saga has no isolation (ACD without I): each effect is visible when its step is done, although a later failure undoes
it. Anomalies and counter-measures are those of Frank and Zahle, "Semantic ACID properties in multidatabases using
remote procedure calls and update propagations" (1998), as sagas use them. Pure; only the definition is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sagas.builtins.messaging import EMITTERS
from sagas.builtins.spark import SPARK
from sagas.definition.analysis.exposure import locked_steps, may_be_undone, used_steps
from sagas.definition.analysis.sql_anomalies import checks_version
from sagas.definition.model import ENGINE_ACTIONS, Definition, StepDefinition, has_effect, is_read

Anomaly = Literal["dirty read", "lost update", "fuzzy read"]
"""dirty read: somebody reads an effect that is undone later. lost update: an update is overwritten by a value that was
computed before it, also by an undo. fuzzy read: what a step has read has changed when a later step relies on it."""

Measure = Literal["lock", "tcc", "row lock", "commutative", "version check"]


@dataclass(frozen=True, slots=True)
class Risk:
    """An anomaly that a step can cause or suffer. ``covered_by`` is empty if nothing prevents it.

    ``steps`` are the later steps that rely on a fuzzy read.
    """

    anomaly: Anomaly
    covered_by: tuple[Measure, ...]
    steps: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"anomaly": self.anomaly, "covered_by": list(self.covered_by), "steps": list(self.steps)}


@dataclass(frozen=True, slots=True)
class StepIsolation:
    """The isolation of one step.

    ``visible``: its effect is visible while it may still be undone, from its own end until the commit point.
    ``hidden`` says why it is not, although it may be undone.
    """

    step: str
    visible: bool = False
    hidden: Literal["staged", "held", "prepared"] | None = None
    risks: tuple[Risk, ...] = ()

    def to_json(self, until: str | None) -> dict[str, Any]:
        """``until`` is the pivot; None: the commit point is the end of the last step."""
        return {
            "id": self.step,
            "visible": {"from": self.step, "until": until} if self.visible else None,
            "hidden": self.hidden,
            "risks": [risk.to_json() for risk in self.risks],
        }


def isolation_of(definition: Definition) -> tuple[StepIsolation, ...]:
    """The isolation of every step, in the order of the definition."""
    covered = locked_steps(definition)
    return tuple(_isolation(definition, step, covered) for step in definition.steps)


def _isolation(definition: Definition, step: StepDefinition, locked: frozenset[str]) -> StepIsolation:
    if is_read(step):
        users = tuple(_effects_from(definition, step))
        checked = users and all(checks_version(step, definition.step(user)) for user in users)
        measures = (*_locks(step, locked), "version check") if checked else _locks(step, locked)
        risk = Risk("fuzzy read", measures, users)
        return StepIsolation(step.id, risks=(risk,) if users else ())
    if not has_effect(step) or not may_be_undone(definition, step):
        return StepIsolation(step.id)
    if step.do.uses == SPARK:
        return StepIsolation(step.id, hidden="staged")
    if step.do.uses in EMITTERS and step.do.holds:
        return StepIsolation(step.id, hidden="held")
    if step.do.two_phase:
        return StepIsolation(step.id, hidden="prepared")
    base = _locks(step, locked)
    if step.confirm is not None:
        base = (*base, "tcc")
    lost = base
    if step.do.images:
        lost = (*lost, "row lock")
    if step.commutative:
        lost = (*lost, "commutative")
    return StepIsolation(step.id, visible=True, risks=(Risk("dirty read", base), Risk("lost update", lost)))


def _locks(step: StepDefinition, locked: frozenset[str]) -> tuple[Measure, ...]:
    return ("lock",) if step.id in locked else ()


def _effects_from(definition: Definition, read: StepDefinition) -> Iterator[str]:
    """The steps with an effect whose arguments or conditions use the result of ``read``, or follow such a condition."""
    if read.do.uses in ENGINE_ACTIONS:
        return
    carriers = {read.id}
    for step in definition.steps:  # in topological order
        if step.do.uses == "pass" and carriers & used_steps(step):
            carriers.add(step.id)
    conditions = (step for step in definition.steps if step.do.uses in ("require", "finish"))
    deciding = {read.id} | {step.id for step in conditions if carriers & used_steps(step)}
    for step in definition.steps:
        if has_effect(step) and (carriers & used_steps(step) or (len(deciding) > 1 and deciding & set(step.needs))):
            yield step.id
