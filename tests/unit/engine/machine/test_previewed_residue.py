"""The preview of a decision says of an effect that stays or is missing what the saga says of it afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from saga_workers.decision_preview import consequences
from sagas.presentation.web_ui_text import effect_state
from sagas.protocol.messages import DecisionMade
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo

PIVOT = step("place", kind="pivot")


def forward(**more: Any) -> Any:
    return replace(step("charge", on=None, on_failure="park", settle=0.0), **more)


CELLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a call without an answer": (
        saga(PIVOT, forward(kind="retriable")),
        {"charge": ["unknown", "rejected"]},
        "may be missing",
    ),
    "a rejected call": (saga(PIVOT, forward(kind="retriable")), {"charge": "rejected"}, "is missing"),
    "an undo": (
        saga(forward(compensate=undo("credit")), step("later")),
        {"later": "rejected", "charge~undo": "rejected"},
        "stays",
    ),
    "an undo without an answer": (
        saga(forward(compensate=undo("credit")), step("later")),
        {"later": "rejected", "charge~undo": "unknown"},
        "stays",
    ),
    "a confirm": (saga(forward(confirm=op("settle"))), {"charge~confirm": "rejected"}, "is missing"),
}


@pytest.mark.parametrize("cell", CELLS)
def test_the_preview_of_a_skip_says_what_the_saga_says_afterwards(cell: str) -> None:
    definition, answers, words = CELLS[cell]
    driver = MachineDriver(definition, answers=answers).run()
    assert driver.state == "PARKED"
    skip = DecisionMade("charge", "skip", "because", "ada", driver.now)
    assert driver.machine.check_decision(skip) is None
    said = [line for line in consequences(driver.machine, skip) if "the effect of charge" in line]
    after = MachineDriver(definition, answers=answers).run().decide("charge", "skip").run()
    assert after.state == "RESIDUE"
    view = after.machine.view()
    assert [effect_state(view, row) for row in view.residue] == [words]
    assert len(said) == 1
    assert f", {words}: the saga will end RESIDUE" in said[0]
    assert said[0].startswith("not undone: ") == (words == "stays")
    assert ("if you do not find it" in said[0]) == (words == "may be missing")
