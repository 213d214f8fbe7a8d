"""Every single fault in every step of a dozen typical sagas."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from sagas.definition.model import Definition
from tests.unit.engine.machine_properties.environment.environment import Fate
from tests.unit.engine.machine_properties.inputs.scenarios import SingleFaultScenario
from tests.unit.engine.machine_properties.inputs.typical_sagas import INPUT, TYPICAL
from tests.unit.engine.machine_properties.runner import Runner

DO_FAULTS: tuple[Fate, ...] = ("rejected", "failed", "failed_final", "lost_before", "lost_after", "zombie")
CONFIRM_FAULTS: tuple[Fate, ...] = ("rejected", "lost_after", "infrastructure", "zombie")
SAGAS = [pytest.param(definition, id=name) for name, definition in TYPICAL.items()]
HALF_OF_THE_SAGAS = [
    pytest.param(definition, id=name, marks=pytest.mark.slow if place % 2 else [])
    for place, (name, definition) in enumerate(TYPICAL.items())
]
"""Every second one is slow."""


class Fault(NamedTuple):
    """A fault of the first ``times`` attempts of one operation of one step."""

    step: str | None = None
    op: str = "do"
    fault: Fate = "ok"
    times: int = 0


def faults(definition: Definition) -> list[Fault]:
    """Every single fault; the first is none at all."""
    faults_of_step = [Fault()]
    for step in definition.steps:
        faults_of_step += [Fault(step.id, "do", fault, times) for fault in DO_FAULTS for times in (1, 2)]
        if step.confirm is not None:
            faults_of_step += [Fault(step.id, "confirm", fault, 1) for fault in CONFIRM_FAULTS]
        if step.do.guarded:
            faults_of_step.append(Fault(step.id, "seal", "lost_after", 1))
    return faults_of_step


def simulate(definition: Definition, scenario: SingleFaultScenario) -> Runner:
    runner = Runner(definition, INPUT, scenario)
    runner.run()
    return runner
