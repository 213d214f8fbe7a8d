"""The calls that a saga may still make, which a new version of the actions must be able to perform."""

from __future__ import annotations

import pytest

from tests.unit.engine.machine.driver import MachineDriver, probe, saga, step


@pytest.mark.parametrize(
    ("answer", "expected"), [("unknown", {"ask", "un.a"}), ("rejected", set[str]())], ids=["unknown", "rejected"]
)
def test_a_skipped_step_is_only_undone_if_it_may_have_an_effect(answer: str, expected: set[str]) -> None:
    definition = saga(step("a", on=None, on_failure="park", probe=probe()), step("b"))
    driver = MachineDriver(definition, answers={"a": answer, "a~probe": "unsure"}, hold=["b"]).run()
    driver.decide("a", "skip")
    remaining = {call.operation.uses for call in driver.machine.remaining_calls() if call.step == "a"}
    assert remaining == expected
    driver.cancel().end("b", "rejected").run()
    assert {call.action for call in driver.calls if call.op != "do"} == ({"ask", "un.a"} if expected else set())
