"""The order of the next start of a compensated saga, for its event."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Definition
from sagas.protocol.messages import Redeliver, UndoRequested
from tests.unit.engine.machine.driver import MachineDriver, saga, step

TWO = saga(step("a"), step("b"))


def driven(definition: Definition = TWO, *, passed: int = 0, generation: int = 1, **options: Any) -> MachineDriver:
    redelivery = {"intervals": [1.0, 60.0], "passed": passed}
    return MachineDriver(definition, generation=generation, redelivery=redelivery, restore=True, **options).run()


def test_a_compensated_saga_orders_its_next_start() -> None:
    driver = driven(passed=1, generation=4, answers={"b": "rejected"})
    assert driver.redelivered == [Redeliver("s1~redelivery@4", 4, [1.0, 60.0], 1)]
    shown = driver.view.redelivery
    assert shown is not None
    assert (shown.number, shown.of, shown.run) == (2, 2, "s1~redelivery@4")
    assert shown.text.startswith("its event is offered again at 2023-11-1")


def test_after_the_last_one_it_says_so() -> None:
    driver = driven(passed=2, answers={"b": "failed"})
    assert driver.redelivered == [Redeliver("s1~redelivery@1", 1, [1.0, 60.0], 2)], "a run that fails, and is listed"
    shown = driver.view.redelivery
    assert shown is not None
    assert (shown.is_due, shown.run) == (False, "s1~redelivery@1")
    assert shown.text == "its event has been offered again 2 of 2 times; nothing more is started"


@pytest.mark.parametrize("answers", [{}, {"b": "rejected", "a~undo": "rejected"}])
def test_no_other_end_orders_one(answers: dict[str, str]) -> None:
    driver = driven(answers=answers)
    if answers:
        driver.decide("a", "skip")
        assert driver.state == "RESIDUE"
    assert driver.redelivered == []
    assert driver.view.redelivery is None


def test_what_a_person_has_led_back_is_not_started_again() -> None:
    cancelled = driven(hold={"b"})
    cancelled.cancel()
    cancelled.end("b", "done").run()
    assert (cancelled.state, cancelled.redelivered) == ("COMPENSATED", [])

    undone = driven()
    undone.feed(UndoRequested(undone.now, "a mistake", "ada")).run()
    assert (undone.state, undone.redelivered) == ("COMPENSATED", [])

    decided = driven(saga(step("a"), step("b", on_failure="park")), answers={"b": "rejected"})
    decided.decide("b", "compensate")
    assert (decided.state, decided.redelivered) == ("COMPENSATED", [])
