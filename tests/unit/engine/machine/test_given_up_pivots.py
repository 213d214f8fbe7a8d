"""A pivot without a guard that an operator gives up with evidence, and a probe that finds its effect after all."""

from __future__ import annotations

import pytest

from tests.unit.engine.machine.driver import MachineDriver, probe, saga, step

ASKED = saga(step("a"), step("p", kind="pivot", on=None, probe=probe(), settle=0.0))
EVIDENCE = "the shop says no"


def parked(*answers: str) -> MachineDriver:
    """The pivot is parked; the next probes give these answers."""
    driver = MachineDriver(ASKED, answers={"p": "unknown", "p~probe": "unknown"}, restore=True).run()
    assert driver.state == "PARKED"
    driver.answers["p~probe"] = list(answers)
    driver.asked.clear()
    driver.log.clear()
    return driver


def test_it_is_asked_when_the_operator_decides_and_before_the_saga_ends() -> None:
    driver = parked("unknown", "unknown").decide("p", "compensate", evidence=EVIDENCE)
    assert driver.log == ["p~probe", "a~undo", "p~probe"]
    assert driver.state == "COMPENSATED"
    assert driver.story["residue"] == []


def test_what_it_finds_at_the_decision_overrides_the_decision() -> None:
    driver = parked("found").decide("p", "compensate", evidence=EVIDENCE)
    assert (driver.state, driver.undone) == ("COMPLETED", [])


def test_what_it_finds_while_the_saga_is_rolled_back_is_a_residue() -> None:
    driver = parked("unknown", "found").decide("p", "compensate", evidence=EVIDENCE)
    assert (driver.state, driver.undone, driver.row("p")["outcome"]) == ("RESIDUE", ["a"], "done")
    assert [(row["step"], row["kind"], row["key"], row["command"]) for row in driver.story["residue"]] == [
        ("p", "effect_stays", "s1/p", "undo what act.p {} has done")
    ]


@pytest.mark.parametrize("answer", ["absent", "failed", "definition", "rejected"])
def test_every_other_answer_leaves_the_decision_as_it_is(answer: str) -> None:
    driver = parked(answer).decide("p", "compensate", evidence=EVIDENCE)
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])
