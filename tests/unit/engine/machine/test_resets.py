"""A run that Temporal has reset: what the guards know of the saga counts, and not what its earlier state says."""

from __future__ import annotations

import pytest

from sagas.definition.model import Locks
from sagas.protocol.messages import CancelRequested, RunWasReset
from tests.unit.engine.machine.driver import MachineDriver, outcome, saga, step

PAYS = saga(step("hold"), step("pay", kind="pivot"))


def reset(driver: MachineDriver, *, pivot_done: bool = True, **generations: int) -> MachineDriver:
    return driver.feed(RunWasReset(driver.now, generations, pivot_done))


def test_a_pivot_that_is_behind_goes_on_with_its_highest_generation() -> None:
    driver = MachineDriver(PAYS, hold=["pay"]).start()
    reset(driver, pay=2)
    driver.end("pay", "late")  # the first generation was sealed before the second one began
    assert driver.call("pay").generation == 2
    assert driver.state == "COMPLETED"


def test_a_step_that_has_not_begun_begins_with_its_highest_generation() -> None:
    driver = MachineDriver(PAYS, hold=["hold"]).start()
    reset(driver, pay=3).end("hold")
    assert driver.call("pay").generation == 3


@pytest.mark.parametrize("restore", [False, True])
def test_nothing_is_undone_while_the_effect_of_the_pivot_is_in_place(restore: bool) -> None:
    driver = MachineDriver(saga(step("hold"), step("pay", kind="pivot"), deadline=60.0), hold=["hold"], restore=restore)
    reset(driver.start())
    assert driver.machine.cancel_response() == "past the point of no return"
    driver.cancel().wait(120)
    driver.end("hold", "rejected")
    assert (driver.state, driver.undone) == ("PARKED", [])
    assert driver.refusal("hold", "compensate")
    driver.decide("hold", "skip")
    assert (driver.state, driver.undone, driver.log[-1]) == ("COMPLETED", [], "pay")


@pytest.mark.parametrize("locks", [None, Locks(["k"], "shop")])
def test_an_undone_saga_that_learns_it_before_its_start_does_nothing(locks: Locks | None) -> None:
    driver = MachineDriver(saga(step("a"), step("b"), locks=locks))
    reset(driver, pivot_done=False, a=2)
    driver.feed(CancelRequested(driver.now, kind="terminated", message="undone before")).start().run()
    assert (driver.state, driver.log, driver.undone) == ("COMPENSATED", [], [])


def test_a_pivot_whose_effect_is_in_place_parks_whatever_its_call_says() -> None:
    driver = MachineDriver(PAYS, answers={"pay": "late"}, hold=["hold"]).start()
    reset(driver).end("hold")
    assert (driver.state, driver.undone) == ("PARKED", [])


def test_a_cancel_finds_the_later_effect_of_a_pivot_that_was_rejected_first() -> None:
    rejected = step("pay", kind="pivot", on_failure="park")
    driver = MachineDriver(saga(step("hold"), rejected), answers={"pay": "rejected", "pay~seal": "done"}).run()
    assert driver.state == "PARKED"
    reset(driver, pivot_done=False, pay=2).decide("pay", "compensate")
    assert (driver.state, driver.undone) == ("COMPLETED", [])
    assert [call.generation for call in driver.calls if call.op == "seal"] == [2]


def test_a_rollback_undoes_the_highest_generation_of_a_step() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), hold=["b"]).start()
    reset(driver, pivot_done=False, a=2).end("b", "rejected")
    assert (driver.state, driver.undone, driver.call("a~undo").generation) == ("COMPENSATED", ["a"], 2)


def test_a_rollback_seals_the_highest_generation_of_a_step_that_failed_first() -> None:
    failed = step("b", on_failure="park")
    driver = MachineDriver(saga(step("a"), failed), answers={"b": "rejected"}).run()
    reset(driver, pivot_done=False, b=2)
    driver.answers["b~seal"] = outcome("done")
    driver.cancel().run()
    assert (driver.state, driver.undone) == ("COMPENSATED", ["b", "a"])
