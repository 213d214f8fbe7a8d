"""A straight list: forward to COMPLETED, and backward to COMPENSATED."""

from __future__ import annotations

import pytest

from tests.unit.engine.machine.driver import MachineDriver, saga, step

PLAIN = saga(step("a"), step("b"), step("c"))


def test_a_plain_saga_completes_without_a_record() -> None:
    driver = MachineDriver(PLAIN).run()
    assert driver.state == "COMPLETED"
    assert driver.log == ["a", "b", "c"]
    assert driver.records == []
    assert [finish.state for finish in driver.finishes] == ["COMPLETED"]


@pytest.mark.parametrize(
    ("fails", "undone"),
    [("a", []), ("b", ["a"]), ("c", ["b", "a"])],
)
def test_a_rejection_undoes_what_was_done_in_reverse_order(fails: str, undone: list[str]) -> None:
    driver = MachineDriver(PLAIN, answers={fails: "rejected"}).run()
    assert driver.state == "COMPENSATED"
    assert driver.undone == undone
    assert driver.story["reason"] == {
        "kind": "rejected",
        "step": fails,
        "type": "Rejected",
        "message": "no",
        "details": {},
    }
    assert [record.state for record in driver.records] == ["COMPENSATING", "COMPENSATED"]


def test_every_snapshot_restores_to_the_same_saga() -> None:
    plain = MachineDriver(PLAIN, answers={"c": "unknown"}).run()
    restored = MachineDriver(PLAIN, answers={"c": "unknown"}, restore=True).run()
    assert restored.log == plain.log
    assert restored.story == plain.story
