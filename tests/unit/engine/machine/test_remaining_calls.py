"""The calls that a saga may still make, which a new version of the actions must be able to perform."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.model import Probe
from sagas.definition.snapshot import to_snapshot
from tests.unit.engine.machine.driver import MachineDriver, op, probe, saga, step


@pytest.mark.parametrize(
    ("answer", "expected"), [("unknown", {"ask", "un.a"}), ("rejected", set[str]())], ids=["unknown", "rejected"]
)
def test_a_skipped_step_is_only_undone_if_it_may_have_an_effect(answer: str, expected: set[str]) -> None:
    definition = saga(step("a", on=None, on_failure="park", probe=probe()), step("b"))
    driver = MachineDriver(definition, answers={"a": answer, "a~probe": "unsure"}, hold=["b"]).run()
    driver.decide("a", "skip")
    assert used(driver, "a") == expected
    driver.cancel().end("b", "rejected").run()
    assert {call.action for call in driver.calls if call.op != "do"} == ({"ask", "un.a"} if expected else set())


def test_the_probe_before_an_undo_that_is_retried_is_named_until_the_undo_begins() -> None:
    broken = Probe(op("ask", {"n": "${{ input.lost.n }}"}))
    definitions = [saga(step("a", on=None, probe=step_probe), step("b")) for step_probe in (broken, probe())]
    driver = MachineDriver(definitions[0], answers={"a": "unknown"}, hold=["a~probe", "a~undo"]).run().cancel()
    driver.decide("a", "retry", definition=to_snapshot(definitions[1]))
    assert driver.log[-1] == "a~probe"
    assert used(driver, "a") == {"ask", "un.a"}
    driver.end("a~probe", "unsure").run()
    assert driver.log[-1] == "a~undo"
    assert used(driver, "a") == {"un.a"}


MIXED = [{"kind": "a"}] * 100 + [{"kind": "b"}]
MANY = [{"kind": f"k{number}"} for number in range(2_000)]


@pytest.mark.parametrize(
    ("name", "items", "expected"),
    [
        ("child", [{}], {"child"}),
        ("${{ item.kind }}", MIXED, {"a", "b"}),
        ("x-${{ item.kind + '-' + item.kind }}", MIXED, {"x-a-a", "x-a-b", "x-b-a", "x-b-b"}),
        ("${{ item.kind == 'a' ? 'first' : item.kind }}", MIXED, {"first", "a", "b"}),
        ("${{ {'eu': 'north', 'us': 'west'}[item.kind] }}", MIXED, {"north", "west"}),
        ("${{ string(index) }}", [{}] * 2, {"0", "1"}),
        ("${{ item.kind }}", [], set[str]()),
        ("${{ steps.first.result.kind }}", [{}], {None}),
        ("${{ item.kind.lower() }}", MIXED, {None}),
    ],
)
def test_a_nested_saga_is_named_with_each_name_that_it_may_have(
    name: str, items: list[Any], expected: set[str | None]
) -> None:
    assert names(nested(name, "${{ input.items }}", {"items": items})) == expected


def test_the_items_of_a_nested_saga_that_have_not_begun_are_named() -> None:
    driver = nested("${{ item.kind }}", "${{ input.items }}", {"items": MIXED})
    driver.hold.add("child#0")
    driver.end("first")
    assert driver.log[-1] == "child#0"
    assert names(driver) == {"a", "b"}


@pytest.mark.parametrize("name", ["${{ item.kind }}", "${{ item.kind + item.kind + item.kind }}"])
def test_the_names_of_a_nested_saga_are_bounded(name: str) -> None:
    told = names(nested(name, "${{ input.items }}", {"items": MANY}))
    assert len(told) == 101
    assert None in told


def test_the_name_of_a_nested_saga_is_not_known_before_the_list_is() -> None:
    driver = nested("${{ item.kind }}", "${{ steps.first.result.kinds }}", {})
    assert names(driver) == {None}


def nested(name: str, items: str, input: dict[str, Any]) -> MachineDriver:
    """A saga that makes the step before its nested sagas."""
    child = step("child", on=None, do=op("saga", {"name": name, "input": {}}), for_each=items, max_parallel=1)
    return MachineDriver(saga(step("first"), child), input, hold=["first"]).start()


def used(driver: MachineDriver, step: str) -> set[str]:
    return {call.operation.uses for call in driver.machine.remaining_calls() if call.step == step}


def names(driver: MachineDriver) -> set[str | None]:
    calls = driver.machine.remaining_calls()
    return {call.arguments.get("name") for call in calls if call.step == "child" and call.role == "do"}
