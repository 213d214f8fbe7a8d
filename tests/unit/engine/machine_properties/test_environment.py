"""The simulated environment is correct: its guard keeps its guarantees in every order of delivery."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from sagas.definition.model import Retry
from sagas.protocol.messages import Call, CallOperation, GuardSpec
from tests.unit.engine.machine_properties.environment.effects import Effect, EffectLog
from tests.unit.engine.machine_properties.environment.guard_model import Database
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence


def call(op: CallOperation, *, mode: Any = "decide") -> Call:
    suffix = {"undo": "/undo", "confirm": "/confirm"}.get(op, "")
    return Call(
        id=f"a~{op}",
        entry="a",
        step="a",
        op=op,
        key=f"s/a{suffix}",
        generation=1,
        action=f"{op}.a",
        arguments={},
        summary="",
        timeout=1.0,
        retry=Retry(),
        guard=GuardSpec("shop", mode=mode, confirmed=("undo_confirmed.a", {})),
    )


def effect_of(log: EffectLog, op: CallOperation) -> Callable[[str], Any]:
    def make(action: str) -> Any:
        assert op in ("do", "undo", "confirm")
        log.add(Effect("a", 1, op, action))
        return {"op": op}

    return make


ORDERS = sorted(set(permutations(("do", "do", "undo", "undo", "confirm", "seal"))))


@pytest.mark.parametrize("first", sorted({order[0] for order in ORDERS}))
def test_no_delivery_order_leaks_or_duplicates(first: CallOperation) -> None:
    for order in ORDERS:
        if order[0] != first:
            continue
        log, base = EffectLog(), Database("shop")
        for op in order:
            base.run(call(op), effect_of(log, op))
        made, undone = log.count("a", 1, "do"), log.count("a", 1, "undo")
        assert (made, undone) in {(0, 0), (1, 1)}, order
        assert log.count("a", 1, "confirm") <= made, order
        if log.confirmed("a"):
            assert [e.action for e in log.effects if e.kind == "undo"] == ["undo_confirmed.a"], order


def test_marks_decide_without_an_effect() -> None:
    log, base = EffectLog(), Database("shop")
    base.run(call("do"), effect_of(log, "do"))
    assert base.run(call("undo", mode="mark"), effect_of(log, "undo")).marker == "elsewhere"
    assert log.net("a") == 1, "the action lives elsewhere and has not run yet"
    assert base.run(call("undo", mode="mark"), effect_of(log, "undo")).marker == "elsewhere"
    assert base.run(call("do"), effect_of(log, "do")).kind == "late"


def test_an_empty_choice_sequence_has_no_faults() -> None:
    choices = ChoiceSequence(b"")
    assert choices.pick(("calm", "wild")) == "calm"
    assert not choices.chance(99)
    assert choices.exhausted
