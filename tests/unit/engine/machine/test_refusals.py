"""An unacceptable decision is refused with one plain message, whatever was sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.engine.machine.driver import MachineDriver, saga, step


def parked() -> MachineDriver:
    """`reserve` is parked, `ship` has not begun."""
    definition = saga(step("reserve", on_failure="park"), step("ship"))
    return MachineDriver(definition, answers={"reserve": "rejected"}).run()


@pytest.mark.parametrize(
    ("name", "decision", "more", "message"),
    [
        ("reserve", "retry", {"arguments": [1]}, "with takes an object of arguments, not a list"),
        ("reserve", "retry", {"arguments": "x=1"}, "with takes an object of arguments, not a string"),
        ("reserve", "retry", {"arguments": True}, "with takes an object of arguments, not true or false"),
        ("reserve", "done", {"evidence": 3}, "evidence takes a string, not a number"),
        (
            "reserve",
            "retyr",
            {},
            "there is no decision `retyr`; decisions are retry, done, skip, compensate; did you mean retry?",
        ),
        ("reserve", "abort", {}, "there is no decision `abort`; decisions are retry, done, skip, compensate"),
        ("reserve", ["retry"], {}, "a decision needs the string `decision`, not ['retry']"),
        ("reserve", "retry", {"reason": " "}, "a decision needs the string `reason`, not ' '"),
        (None, "retry", {}, "a decision needs the string `step`, not None"),
        ("resrve", "retry", {}, "s1 has no step resrve; did you mean reserve?"),
        ("nothing-like-it", "retry", {}, "s1 has no step nothing-like-it; parked: reserve"),
        ("ship", "retry", {}, "ship has not begun, so there is nothing to decide about it"),
        ("reserve", "retry", {"who": {"a": 1}}, "a decision needs the string `who`, not an object"),
        ("reserve", "done", {"result": [float("nan")]}, "result is not accepted: nan is not a JSON number"),
        (
            "reserve",
            "done",
            {"result": 10**4000},
            "result is not accepted: it has an integer of more than 4,000 digits",
        ),
        (
            "reserve",
            "retry",
            {"arguments": {"a": "\ud800"}},
            "with is not accepted: it contains half a surrogate pair",
        ),
        ("reserve", "done", {"evidence": "\ud800"}, "the decision is not accepted: it contains half a surrogate pair"),
        ("reserve", "retry", {"definition": "saga: x"}, "the definition must be an object, not a string"),
    ],
)
def test_each_refusal_is_one_sentence_in_plain_words(
    name: Any, decision: Any, more: dict[str, Any], message: str
) -> None:
    assert parked().refusal(name, decision, **more) == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a", "a runs once per item: decide about one of them, for instance a#1"),
        ("a#2", "a#2 has not begun, so there is nothing to decide about it"),
    ],
)
def test_items_are_named(name: str, message: str) -> None:
    each = step("a", for_each="${{ input.items }}", max_parallel=1, on_failure="park")
    driver = MachineDriver(saga(each), {"items": [1, 2, 3]}, {"a#1": "rejected"}).run()
    assert driver.refusal(name, "retry") == message
    assert driver.refusal("a#1", "retry") is None
