"""Rule 15, the undo of a finished saga; rule 16, a late answer on a live step."""

from __future__ import annotations

import pytest

from sagas.definition.model import Definition
from sagas.machine.machine import Machine
from sagas.protocol.messages import UndoRequested
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo


def _undone(definition: Definition, **answers: object) -> MachineDriver:
    """Run to the end, restore from the snapshot as `saga undo` does, and undo."""
    driver = MachineDriver(definition, answers=answers).run()
    driver.machine = Machine.restore(decode_json(encode_json(driver.machine.snapshot())))
    driver.log.clear()
    driver.calls.clear()
    driver.feed(UndoRequested(driver.now, "wrong customer", "kim"))
    return driver.run()


def test_rule_15_a_completed_saga_is_undone_in_reverse() -> None:
    driver = _undone(saga(step("a"), step("r", kind="read"), step("b", for_each="${{ [1, 2] }}")))
    assert driver.log == ["b#1~undo", "b#0~undo", "a~undo"]
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"] == {
        "kind": "undone",
        "step": None,
        "type": "Undone",
        "message": "wrong customer",
        "details": {"who": "kim"},
    }
    assert driver.machine.undo_refusal


def test_rule_15_guard_and_confirmed_decide_about_a_confirmed_step() -> None:
    compensate = undo("un.a", confirmed=op("un.confirmed", {"x": 1}, on="shop"))
    driver = _undone(saga(step("a", confirm=op("ok", on="shop"), compensate=compensate)))
    guard = driver.call("a~undo").guard
    assert guard is not None
    assert guard.confirmed == ("un.confirmed", {"x": 1})


def test_rule_15_a_remote_confirmed_action_runs_after_the_mark() -> None:
    compensate = undo("un.a", confirmed=op("un.confirmed", {}, on=None))
    definition = saga(step("a", confirm=op("ok", on="shop"), compensate=compensate))
    driver = _undone(definition, **{"a~undo": "confirmed"})
    # The same database decides in one transaction; it has no confirmed compensation and reports that.
    assert driver.log == ["a~undo", "a~undo"]
    assert driver.call("a~undo").action == "un.confirmed"


def test_rule_15_an_unguarded_confirmed_step_is_undone_by_confirmed() -> None:
    compensate = undo("un.a", confirmed=op("un.confirmed", {}), on=None)
    driver = _undone(saga(step("a", on=None, confirm=op("ok"), compensate=compensate)))
    assert [call.action for call in driver.calls] == ["un.confirmed"]


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (saga(step("a"), step("p", kind="pivot")), "its pivot p is done, which is its point of no return"),
        (
            saga(step("a", confirm=op("ok", on="shop"))),
            "a is confirmed and has no `compensate.confirmed`",
        ),
        (saga(step("a", compensate=None)), "a is done and has no `compensate`"),
        (
            saga(step("a", kind="retriable"), recovery="forward"),
            "it has `recovery: forward`, so no step has a compensation",
        ),
    ],
)
def test_rule_15_refused(definition: Definition, why: str) -> None:
    driver = MachineDriver(definition).run()
    assert driver.state == "COMPLETED"
    assert (driver.machine.undo_refusal, driver.view.undo_refusal, driver.view.can_undo) == (why, why, False)
    assert driver.machine.next(UndoRequested(driver.now, "x", "kim")) == []
    assert driver.state == "COMPLETED"


@pytest.mark.parametrize("outcome", ["rejected", "unknown"])
def test_rule_15_only_a_completed_saga_can_be_undone(outcome: str) -> None:
    driver = MachineDriver(saga(step("a"), step("b")), answers={"b": outcome}).run()
    assert driver.machine.undo_refusal


def test_rule_15_nested_sagas_are_undone_too() -> None:
    definition = saga(step("c", uses="saga", on=None, compensate=None, with_={"name": "child"}))
    driver = _undone(definition)
    assert driver.log == ["c~undo"]
    assert driver.state == "COMPENSATED"


def test_rule_16_late_on_a_live_step_leads_backward_and_counts_as_compensated() -> None:
    driver = MachineDriver(saga(step("a"), step("b")), answers={"b": "late"}).run()
    assert driver.state == "COMPENSATED"
    assert driver.undone == ["a"]
    assert driver.story["reason"]["kind"] == "late"
    assert (driver.row("b")["state"], driver.row("b")["outcome"]) == ("COMPENSATED", "late")


def test_rule_16_a_late_pivot_leads_backward() -> None:
    driver = MachineDriver(saga(step("a"), step("p", kind="pivot")), answers={"p": "late"}).run()
    assert driver.state == "COMPENSATED"
    assert driver.story["reason"]["kind"] == "late"


def test_rule_16_past_the_commit_point_it_parks() -> None:
    driver = MachineDriver(saga(step("p", kind="pivot"), step("n", kind="retriable")), answers={"n": "late"}).run()
    assert driver.state == "PARKED"
    assert driver.row("n")["outcome"] == "late"


def test_rule_16_a_late_confirm_parks() -> None:
    driver = MachineDriver(saga(step("a", confirm=op("ok", on="shop"))), answers={"a~confirm": "late"}).run()
    assert driver.state == "PARKED"
