"""`compensate: {always: true}`: the compensation also runs after a rejection or a failure of an attempted step."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Savepoint, StepDefinition
from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo

NOTHING = {"b~undo": ["nothing_to_undo", "done"]}
"""The guard of a step that has no effect: first it closes the key, then the action runs under its own row."""


def always(id: str, *uses: str, on: str | None = "shop", at: str | None = "shop", **more: Any) -> StepDefinition:
    return step(id, on=on, compensate=undo(*(uses or (f"un.{id}",)), on=at, always=True), **more)


@pytest.mark.parametrize("word", ["rejected", ("failed", 1), "unknown"])
def test_a_guarded_step_without_effect_is_undone_in_its_own_row(word: Any) -> None:
    driver = MachineDriver(saga(step("a"), always("b")), answers={"b": word, **NOTHING}, restore=True).run()
    seal = ["b~seal"] if word == "unknown" else []
    assert driver.log == ["a", "b", *seal, "b~undo", "b~undo", "a~undo"]
    modes = [call.guard.mode for call in driver.calls if call.id == "b~undo" and call.guard]
    assert modes == ["decide", "own"]
    assert driver.call("b~undo").earlier_attempts == 0
    row = driver.row("b")
    assert (row["state"], row["compensation"]["state"], driver.state) == ("COMPENSATED", "DONE", "COMPENSATED")
    assert row["outcome"] == ("rejected" if word == "rejected" else "failed")


def test_another_database_runs_it_after_the_step_s_guard_has_closed_the_key() -> None:
    answers = {"b": "rejected", "b~undo-mark": "nothing_to_undo"}
    driver = MachineDriver(saga(always("b", at="bank")), answers=answers, restore=True).run()
    assert driver.log == ["b", "b~undo-mark", "b~undo"]
    assert driver.call("b~undo").guard.mode == "own"  # pyright: ignore[reportOptionalMemberAccess]


def test_an_effect_that_a_late_attempt_made_is_undone_once() -> None:
    driver = MachineDriver(saga(always("b")), answers={"b": "rejected", "b~undo": "done"}, restore=True).run()
    assert driver.log == ["b", "b~undo"]


def test_an_unguarded_step_is_undone_with_a_null_result() -> None:
    compensate = undo(op("tell", {"id": "${{ steps.b.result }}"}), always=True)
    definition = saga(step("b", on=None, compensate=compensate))
    driver = MachineDriver(definition, answers={"b": "rejected"}).run()
    assert driver.call("b~undo").arguments == {"id": None}


def test_a_step_that_was_never_attempted_is_not_undone() -> None:
    broken = always("b", with_={"n": "${{ input.nothing }}"})
    driver = MachineDriver(saga(step("a"), broken, always("c"))).run()
    assert (driver.log, driver.states()["b"]) == (["a", "a~undo"], "FAILED")


def test_a_rejection_of_the_compensation_tries_the_next_alternate() -> None:
    answers = {"b": "rejected", "b~undo": ["nothing_to_undo", "rejected"]}
    driver = MachineDriver(saga(always("b", "x", "y")), answers=answers, restore=True).run()
    assert driver.log == ["b", "b~undo", "b~undo", "b~undo.1"]
    assert driver.state == "COMPENSATED"


@pytest.mark.parametrize("word", ["rejected", "unknown"])
def test_a_continued_step_is_undone_alone(word: str) -> None:
    definition = saga(step("a"), always("b", on_failure="continue"), step("c"))
    driver = MachineDriver(definition, answers={"b": word, **NOTHING}, restore=True).run()
    seal = ["b~seal"] if word == "unknown" else []
    assert driver.log == ["a", "b", *seal, "b~undo", "b~undo", "c"]
    assert (driver.state, driver.row("b")["state"]) == ("COMPLETED", "COMPENSATED")


def test_each_run_after_a_savepoint_has_its_own_compensation() -> None:
    definition = saga(step("a", savepoint=Savepoint(2)), always("b"))
    driver = MachineDriver(definition, answers={"b": "rejected", "b~undo": ["nothing_to_undo", "done"] * 2}).run()
    assert driver.log == ["a", "b", "b~undo", "b~undo", "b", "b~undo", "b~undo", "a~undo"]
    keys = [call.key for call in driver.calls if call.id == "b~undo"]
    assert keys == ["s1/b/undo"] * 2 + ["s1/b@2/undo"] * 2


def test_an_operator_s_skip_of_the_step_leaves_it_out() -> None:
    definition = saga(always("b", on_failure="park"), step("c"))
    driver = MachineDriver(definition, answers={"b": "rejected", "c": "rejected"}).run()
    driver.decide("b", "skip")
    assert driver.log == ["b", "b~seal", "c"]


def test_a_skipped_compensation_leaves_the_step_as_it_ended() -> None:
    answers = {"b": "rejected", "b~undo": ["nothing_to_undo", Outcome("failed", retryable=False)]}
    driver = MachineDriver(saga(always("b")), answers=answers).run()
    driver.decide("b", "skip", evidence="seen")
    assert (driver.row("b")["state"], driver.state) == ("REJECTED", "RESIDUE")
