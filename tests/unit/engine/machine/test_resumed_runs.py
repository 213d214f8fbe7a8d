"""A terminated run is resumed from its snapshot: calls in flight may have had their effect or not."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Definition
from sagas.machine.machine import Machine
from sagas.protocol.messages import CancelRequested
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine.driver import MachineDriver, saga, step

LINE = saga(step("a"), step("b"), step("c"))
PIVOT = saga(step("a"), step("b", kind="pivot"), step("c", kind="retriable"))

CASES: dict[str, tuple[Definition, str, dict[str, Any], str, list[str]]] = {
    "a step was in flight and had no effect": (LINE, "b", {}, "COMPENSATED", ["b~seal", "a~undo"]),
    "a step was in flight and had its effect": (
        LINE, "b", {"b~seal": "done"}, "COMPENSATED", ["b~seal", "b~undo", "a~undo"],
    ),
    "the pivot had not happened": (PIVOT, "b", {}, "COMPENSATED", ["b~seal", "a~undo"]),
    "the pivot had happened": (PIVOT, "b", {"b~seal": "done"}, "COMPLETED", ["b~seal", "c"]),
    "after the commit point": (PIVOT, "c", {}, "COMPLETED", ["c"]),
    "while it was going backward": (LINE, "b~undo", {"c": "rejected"}, "COMPENSATED", ["b~undo", "a~undo"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_terminated_run_is_resumed(name: str) -> None:
    definition, held, answers, state, log = CASES[name]
    driver = MachineDriver(definition, answers=answers, hold=[held]).run(until=0.0)
    assert list(driver.flights) == [held]
    machine = driver.machine = Machine.restore(decode_json(encode_json(driver.machine.snapshot())))
    driver.hold, driver.flights = set(), {}
    driver.log.clear()
    lost = machine.lost_calls(driver.now)
    assert [row.id for row in lost] == [held]
    driver.feed(CancelRequested(driver.now, kind="terminated", who="kim", message="somebody ended it"))
    for event in lost:
        driver.feed(event)
    driver.run()
    assert (driver.state, driver.log) == (state, log)
    if state == "COMPENSATED" and "rejected" not in answers.values():
        assert driver.story["reason"]["kind"] == "terminated"
