"""Every single fault of a compensation, and every decision about a step that a single fault leaves stuck."""

from __future__ import annotations

import pytest

from sagas.definition.model import Definition
from tests.helpers.sampling import every_nth
from tests.unit.engine.machine_properties.environment.environment import Fate
from tests.unit.engine.machine_properties.inputs import typical_sagas
from tests.unit.engine.machine_properties.inputs.scenarios import SingleFaultScenario
from tests.unit.engine.machine_properties.inputs.single_faults import HALF_OF_THE_SAGAS, faults, simulate

UNDO_FAULTS: tuple[Fate, ...] = ("rejected", "failed", "lost_after", "lost_before", "infrastructure", "zombie")
PREFERRED = ("retry", "skip", "done", "compensate")


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param(((1, "retry"), (20, "done")), id="one answer"),
        pytest.param(
            ((1, "retry"), (20, "retry"), (20, "skip"), (20, "done")), id="every answer", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize("definition", HALF_OF_THE_SAGAS)
def test_every_fault_of_a_compensation(definition: Definition, answers: tuple[tuple[int, str], ...]) -> None:
    """The last effectful step is cancelled away; each compensation on the way back fails in every manner."""
    for number, step in enumerate(definition.steps):
        for fault in every_nth(3, UNDO_FAULTS, turn=number):
            for at in every_nth(2, range(1, 6), turn=number):
                for times, preferred in answers:
                    scenario = SingleFaultScenario(step.id, "undo", fault, times, cancel_at=at, preferred=preferred)
                    simulate(definition, scenario)
                    if scenario.times == times:
                        break  # nothing of this step was undone: no other fault would strike either


@pytest.mark.parametrize("definition", HALF_OF_THE_SAGAS)
@pytest.mark.parametrize("preferred", PREFERRED)
def test_every_decision_about_a_stuck_step(definition: Definition, preferred: str) -> None:
    for step, op, fault, times in every_nth(4, faults(definition), turn=PREFERRED.index(preferred)):
        simulate(definition, SingleFaultScenario(step, op, fault, times * 10, preferred=preferred))


@pytest.mark.parametrize("fault", ["lost_before", "lost_after"])
def test_a_rollback_after_an_unknown_step_was_skipped(fault: Fate) -> None:
    """An operator skips a step without a guard, whose outcome is unknown, and the saga is cancelled later."""
    step, saga = typical_sagas.step, typical_sagas.saga
    unguarded = step("b", connection=None, needs=("a",), on_failure="park")
    definition = saga(step("a"), unguarded, step("c", needs=("b",)), step("d", needs=("c",)))
    undone = 0
    for at in range(1, 16):
        scenario = SingleFaultScenario("b", "do", fault, 20, cancel_at=at, preferred="skip")
        story = simulate(definition, scenario).story
        was_skipped = any(row["decision"] == "skip" for row in story["operator"])
        undone += was_skipped and any(row["id"] == "b" and row["state"] == "COMPENSATED" for row in story["steps"])
    assert undone
