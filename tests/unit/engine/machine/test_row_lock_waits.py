"""A step that meets a row of another saga (`compensate: auto`): short retries, then a rejection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sagas.builtins.automatic import RESTORE
from sagas.definition.model import Compensation, Locks
from sagas.protocol.messages import CallEnded
from sagas.protocol.outcomes import ROW_LOCKED, Failure, Outcome
from tests.unit.engine.machine.driver import START, MachineDriver, op, saga, step

AUTO = replace(
    step("b", do=replace(op("sql", {}, on="shop"), images=True)),
    compensate=Compensation((op(RESTORE, {}, on="shop"),)),
)


def meet_row(driver: MachineDriver) -> MachineDriver:
    failure = Failure(ROW_LOCKED, "the row sku=A of stock is locked by the saga other", {"owner": "other"})
    driver.flights.pop("b")
    outcome = Outcome("failed", failure=failure, attempt=1, infrastructure=True, counted=False)
    return driver.feed(CallEnded("b", outcome, driver.now, 0))


@pytest.fixture(params=[False, True], ids=["", "restored"])
def restore(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.mark.parametrize(("locks", "wait"), [(None, 30), (5.0, 5), (0.0, 0)])
def test_it_waits_and_is_rejected(locks: float | None, wait: float, restore: bool) -> None:
    definition = saga(step("a"), AUTO)
    if locks is not None:
        definition = replace(definition, locks=Locks([], "shop", wait=locks))
    driver = MachineDriver(definition, hold=["b"], restore=restore).start()
    times = 0
    while "b" in driver.flights:
        meet_row(driver)
        times += 1
        if "b~retry" in driver.timers:
            driver.fire("b~retry")
    assert wait <= driver.now - START < wait + 1
    assert times < 30
    row = driver.story["steps"][1]
    assert (row["outcome"], row["error"]["type"], row["attempts"]) == ("rejected", ROW_LOCKED, 1)
    assert (driver.state, driver.undone) == ("COMPENSATED", ["a"])
    assert driver.story["reason"]["kind"] == "rejected"


def test_a_pause_does_not_count(restore: bool) -> None:
    """Neither for the attempt that ends while it lasts, nor for the next one after it."""
    driver = MachineDriver(saga(step("a"), AUTO), hold=["b"], restore=restore).start()
    meet_row(driver).fire("b~retry")
    before = driver.now - START
    driver.pause().wait(3600)
    meet_row(driver)
    assert driver.state == "RUNNING"
    driver.wait(3600).resume()
    began = driver.now
    while "b" in driver.flights:
        meet_row(driver)
        if "b~retry" in driver.timers:
            driver.fire("b~retry")
    assert 30 <= before + driver.now - began < 31
    assert driver.story["reason"]["type"] == ROW_LOCKED


def test_a_pause_that_begins_before_the_wait_does_not_count() -> None:
    driver = MachineDriver(saga(step("a"), AUTO), hold=["b"]).start().pause()
    meet_row(driver).wait(3600).resume()
    meet_row(driver)
    assert driver.state == "RUNNING"


def test_it_goes_on_when_the_row_is_free() -> None:
    driver = MachineDriver(saga(step("a"), AUTO), hold=["b"]).start()
    meet_row(driver).fire("b~retry")
    driver.end("b", ("done", 1))
    assert (driver.state, driver.story["steps"][1]["attempts"]) == ("COMPLETED", 1)


def test_the_end_of_the_saga_releases_its_rows() -> None:
    driver = MachineDriver(saga(step("a"), AUTO)).start()
    assert driver.state == "COMPLETED"
    assert driver.view.row_locks == ("shop",)
    assert [event.row_locks for event in driver.released] == [("shop",)]


def test_a_saga_whose_step_never_ran_has_no_rows() -> None:
    driver = MachineDriver(saga(step("a"), AUTO), answers={"a": "rejected"}).start()
    assert driver.state == "COMPENSATED"
    assert driver.released == []


def test_the_rows_of_a_nested_saga_stay_locked_until_its_root_is_final() -> None:
    driver = MachineDriver(saga(AUTO), parent="root").start()
    assert driver.state == "COMPLETED"
    assert driver.released == []
    assert driver.view.row_locks == ("shop",)
