"""Rule 15, the undo of a finished saga; rule 16, a late answer on a live step."""

from __future__ import annotations

import json

import pytest

from sagas.definition.model import Definition
from sagas.machine.machine import Machine
from sagas.protocol.messages import UndoRequested
from tests.unit.engine.machine.driver import World, op, saga, step, undo


def _undone(definition: Definition, **answers: object) -> World:
    """Run to the end, restore from the snapshot as `saga undo` does, and undo."""
    world = World(definition, answers=answers).run()
    world.machine = Machine.restore(json.loads(json.dumps(world.machine.snapshot())))
    world.log.clear()
    world.calls.clear()
    world.feed(UndoRequested(world.now, "wrong customer", "kim"))
    return world.run()


def test_rule_15_a_completed_saga_is_undone_in_reverse() -> None:
    world = _undone(saga(step("a"), step("r", kind="read"), step("b", for_each="${{ [1, 2] }}")))
    assert world.log == ["b#1~undo", "b#0~undo", "a~undo"]
    assert world.state == "COMPENSATED"
    assert world.story["reason"] == {
        "kind": "undone",
        "step": None,
        "type": "Undone",
        "message": "wrong customer",
        "details": {"who": "kim"},
    }
    assert not world.machine.can_undo


def test_rule_15_guard_and_confirmed_decide_about_a_confirmed_step() -> None:
    compensate = undo("un.a", confirmed=op("un.confirmed", {"x": 1}, on="shop"))
    world = _undone(saga(step("a", confirm=op("ok", on="shop"), compensate=compensate)))
    guard = world.call("a~undo").guard
    assert guard is not None
    assert guard.confirmed == ("un.confirmed", {"x": 1})


def test_rule_15_a_confirmed_action_that_lives_elsewhere_runs_after_the_mark() -> None:
    compensate = undo("un.a", confirmed=op("un.confirmed", {}, on=None))
    definition = saga(step("a", confirm=op("ok", on="shop"), compensate=compensate))
    world = _undone(definition, **{"a~undo": "confirmed"})
    # The same database decides in one transaction; it has nothing that undoes a confirmed effect, so it says so.
    assert world.log == ["a~undo", "a~undo"]
    assert world.call("a~undo").action == "un.confirmed"


def test_rule_15_an_unguarded_confirmed_step_is_undone_by_confirmed() -> None:
    compensate = undo("un.a", confirmed=op("un.confirmed", {}), on=None)
    world = _undone(saga(step("a", on=None, confirm=op("ok"), compensate=compensate)))
    assert [call.action for call in world.calls] == ["un.confirmed"]


@pytest.mark.parametrize(
    "definition",
    [
        saga(step("a"), step("p", kind="pivot")),
        saga(step("a", confirm=op("ok", on="shop"))),  # confirmed, and nothing undoes a confirmed effect
        saga(step("a", kind="retriable"), recovery="forward"),
    ],
)
def test_rule_15_refused(definition: Definition) -> None:
    world = World(definition).run()
    assert world.state == "COMPLETED"
    assert not world.machine.can_undo
    assert world.machine.next(UndoRequested(world.now, "x", "kim")) == []
    assert world.state == "COMPLETED"


@pytest.mark.parametrize("word", ["rejected", "unknown"])
def test_rule_15_only_a_completed_saga_can_be_undone(word: str) -> None:
    world = World(saga(step("a"), step("b")), answers={"b": word}).run()
    assert not world.machine.can_undo


def test_rule_15_nested_sagas_are_undone_too() -> None:
    definition = saga(step("c", uses="saga", on=None, compensate=None, with_={"name": "child"}))
    world = _undone(definition)
    assert world.log == ["c~undo"]
    assert world.state == "COMPENSATED"


def test_rule_16_late_on_a_live_step_leads_backward_and_counts_as_compensated() -> None:
    world = World(saga(step("a"), step("b")), answers={"b": "late"}).run()
    assert world.state == "COMPENSATED"
    assert world.undone == ["a"]
    assert world.story["reason"]["kind"] == "late"
    assert (world.row("b")["state"], world.row("b")["outcome"]) == ("COMPENSATED", "late")


def test_rule_16_a_late_pivot_leads_backward() -> None:
    world = World(saga(step("a"), step("p", kind="pivot")), answers={"p": "late"}).run()
    assert world.state == "COMPENSATED"
    assert world.story["reason"]["kind"] == "late"


def test_rule_16_past_the_commit_point_it_parks() -> None:
    world = World(saga(step("p", kind="pivot"), step("n", kind="retriable")), answers={"n": "late"}).run()
    assert world.state == "PARKED"
    assert world.row("n")["outcome"] == "late"


def test_rule_16_a_late_confirm_parks() -> None:
    world = World(saga(step("a", confirm=op("ok", on="shop"))), answers={"a~confirm": "late"}).run()
    assert world.state == "PARKED"
