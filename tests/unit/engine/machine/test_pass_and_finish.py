"""`pass`, a step without effect whose undo has its place in the order, and `finish`, an early successful end."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Locks, StepDefinition
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo


def passing(id: str, result: Any = None, **more: Any) -> StepDefinition:
    return step(id, kind="read", do=op("pass", {"result": result}), **more)


def undoable(id: str, **more: Any) -> StepDefinition:
    return step(id, do=op("pass", {}), compensate=undo(op("tell", {"why": "${{ saga.reason.kind }}"})), **more)


def ending(id: str, when: str = "${{ true }}", output: Any = None, **more: Any) -> StepDefinition:
    return step(id, kind="read", do=op("finish", {"when": when, "output": output}), **more)


def test_a_pass_calls_nothing_and_has_its_result() -> None:
    definition = saga(passing("a", {"n": "${{ input.n + 1 }}"}), step("b"), output="${{ steps.a.result.n }}")
    driver = MachineDriver(definition, {"n": 1}, restore=True).run()
    assert driver.log == ["b"]
    assert driver.story["output"] == 2


def test_the_undo_of_a_pass_runs_in_its_place() -> None:
    definition = saga(undoable("told"), step("a"), step("b"))
    driver = MachineDriver(definition, answers={"b": "rejected"}, restore=True).run()
    assert driver.log == ["a", "b", "a~undo", "told~undo"]
    assert driver.call("told~undo").arguments == {"why": "rejected"}
    assert driver.states() == {"told": "COMPENSATED", "a": "COMPENSATED", "b": "REJECTED"}


def test_a_pass_that_was_never_reached_is_not_undone() -> None:
    driver = MachineDriver(saga(step("a"), undoable("told"), step("b")), answers={"a": "rejected"}).run()
    assert driver.log == ["a"]
    assert driver.states()["told"] == "PENDING"


def test_a_pass_with_an_undo_can_be_undone_later() -> None:
    driver = MachineDriver(saga(undoable("told"), step("a"))).run()
    assert driver.view.can_undo


def test_a_pass_whose_expression_fails_follows_on_failure() -> None:
    definition = saga(step("a"), passing("b", "${{ input.nothing }}"))
    driver = MachineDriver(definition).run()
    assert (driver.state, driver.story["reason"]["kind"]) == ("COMPENSATED", "definition")


def test_finish_skips_what_is_below_and_completes_with_its_output() -> None:
    definition = saga(
        step("a"), ending("end", output={"a": "${{ steps.a.result.ok }}"}), step("b"), output={"b": "${{ true }}"}
    )
    driver = MachineDriver(definition, restore=True).run()
    assert driver.log == ["a"]
    assert (driver.state, driver.story["output"]) == ("COMPLETED", {"a": True})
    assert driver.states() == {"a": "DONE", "end": "DONE", "b": "SKIPPED"}
    assert (driver.row("end")["result"], driver.view.can_undo) == (True, True)


def test_a_false_finish_changes_nothing_and_its_output_is_not_evaluated() -> None:
    definition = saga(ending("end", "${{ input.n > 5 }}", "${{ input.nothing }}"), step("b"), output={"n": 1})
    driver = MachineDriver(definition, {"n": 1}).run()
    assert (driver.log, driver.story["output"], driver.row("end")["result"]) == (["b"], {"n": 1}, False)


def test_without_an_output_the_early_end_has_none() -> None:
    driver = MachineDriver(saga(ending("end"), step("b"), output={"n": 1})).run()
    assert (driver.state, driver.story["output"]) == ("COMPLETED", None)


def test_finish_confirms_what_was_done_and_skips_the_pivot_and_what_follows() -> None:
    definition = saga(
        step("a", confirm=op("yes", {}, on="shop"), compensate=undo("un.a", confirmed=op("back", {}, on="shop"))),
        ending("end"),
        step("pay", kind="pivot"),
        step("ship", kind="retriable"),
    )
    driver = MachineDriver(definition, restore=True).run()
    assert driver.log == ["a", "a~confirm"]
    assert driver.states() == {"a": "CONFIRMED", "end": "DONE", "pay": "SKIPPED", "ship": "SKIPPED"}
    assert driver.state == "COMPLETED"
    assert driver.view.can_undo  # its point of no return was never passed


@pytest.mark.parametrize("pivot", [True, False])
def test_a_cancel_after_finish_and_before_the_commit_point_rolls_back(pivot: bool) -> None:
    look = step("look", kind="read", compensate=None)
    last = step("pay", kind="pivot" if pivot else "compensatable", needs=("end", "look"))
    definition = saga(step("a"), ending("end", needs=("a",), output={"early": True}), look, last, line=False)
    driver = MachineDriver(definition, hold=["look"], restore=True).run()
    assert driver.story["output"] == {"early": True}
    driver.cancel().end("look")
    assert (driver.state, driver.undone, driver.story["output"]) == ("COMPENSATED", ["a"], None)


def test_a_parallel_read_is_awaited_and_what_needs_both_is_skipped() -> None:
    look = step("look", kind="read", compensate=None)
    definition = saga(ending("end"), look, step("b", needs=("end", "look")), line=False)
    driver = MachineDriver(definition, hold=["look"], restore=True).run()
    assert driver.state == "RUNNING"
    driver.end("look")
    assert (driver.state, driver.log) == ("COMPLETED", ["look"])


def test_of_two_parallel_ends_the_first_counts() -> None:
    definition = saga(ending("x", output=1), ending("y", output=2), step("b", needs=("x", "y")), line=False)
    driver = MachineDriver(definition, restore=True).run()
    assert (driver.story["output"], driver.states()["b"]) == (1, "SKIPPED")


def test_a_step_below_takes_no_locks() -> None:
    definition = saga(ending("end"), step("b"), locks=Locks(["k"], "shop", from_="b"))
    driver = MachineDriver(definition).run()
    assert (driver.state, driver.lock_requests, driver.released) == ("COMPLETED", [], [])


def test_finish_ends_a_saga_that_only_goes_forward() -> None:
    definition = saga(
        step("a", kind="retriable"), ending("end", output=1), step("b", kind="retriable"), recovery="forward"
    )
    driver = MachineDriver(definition, restore=True).run()
    assert (driver.state, driver.log, driver.story["output"]) == ("COMPLETED", ["a"], 1)


def test_a_parked_finish_is_decided_by_an_operator() -> None:
    broken = ending("end", "${{ input.nothing }}", on_failure="park")
    driver = MachineDriver(saga(step("a"), broken, step("b")), restore=True).run()
    assert driver.state == "PARKED"
    driver.decide("end", "retry", arguments={"when": True, "output": {"by": "kim"}})
    assert (driver.state, driver.log, driver.story["output"]) == ("COMPLETED", ["a"], {"by": "kim"})
