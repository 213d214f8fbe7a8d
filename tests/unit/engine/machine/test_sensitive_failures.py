"""What an engine says about a failure quotes no `x-sensitive` value of the input."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sagas.definition.sensitivity import hide_texts, sensitive_texts
from sagas.machine.view import shrink_view
from sagas.protocol.outcomes import Failure, Outcome, hide_in_failure
from tests.unit.engine.machine.driver import MachineDriver, op, saga, step, undo

SCHEMA = {
    "properties": {
        "card": {"type": "string", "x-sensitive": True},
        "owner": {"x-sensitive": True},
        "pins": {"items": {"x-sensitive": True}},
        "note": {"type": "string"},
    }
}


@pytest.mark.parametrize(
    ("value", "message", "shown"),
    [
        ({"card": "4111-x"}, "'4111-x' is not a date", "'•••' is not a date"),
        ({"card": "4111-x"}, "Key (card)=(4111-x) already exists", "Key (card)=(•••) already exists"),
        ({"owner": {"name": "Ada", "age": 36, "tags": ["vip"]}}, "Ada, vip", "•••, •••"),
        ({"owner": Decimal("12.50")}, "12.50 is too large", "••• is too large"),
        ({"pins": ["123", "4567"]}, "123 and 4567, 12345", "••• and •••, 12345"),
        ({"card": "x" * 60}, f"'{'x' * 40}…' is wrong", "'•••…' is wrong"),
        ({"card": "1", "note": "free"}, "attempt 1 of free", "attempt 1 of free"),
        ({"owner": True}, "true", "true"),
        ({}, "nothing", "nothing"),
    ],
)
def test_sensitive_values_are_hidden(value: Any, message: str, shown: str) -> None:
    assert hide_texts(message, sensitive_texts(SCHEMA, value)) == shown


def test_details_and_the_reason_of_parking_are_hidden_too() -> None:
    failure = Failure("X", "4111-x", {"statement": "4111-x", "rows": [{"card": "4111-x"}]})
    failed = hide_in_failure(Outcome("failed", failure=failure, park_reason="4111-x changed"), ("4111-x",))
    assert failed.failure == Failure("X", "•••", {"statement": "•••", "rows": [{"card": "•••"}]})
    assert failed.park_reason == "••• changed"


def test_the_details_of_a_rejection_are_the_participants_own() -> None:
    rejected = hide_in_failure(Outcome("rejected", failure=Failure("X", "4111-x", {"card": "4111-x"})), ("4111-x",))
    assert rejected.failure == Failure("X", "•••", {"card": "4111-x"})


def test_the_arguments_of_failed_calls_are_shown_without_sensitive_values() -> None:
    sent = {"card": "${{ input.card }}", "pin": "${{ input.pins[0] }}", "text": "of ${{ input.card }}", "n": 42}
    definition = saga(
        step("a", compensate=undo(op("give", {"owner": "${{ input.owner }}"}, on="shop"))),
        step("b", with_=sent),
        input=SCHEMA,
    )
    value = {"card": "4111-x", "pins": [7], "owner": {"4111-x": 36}}
    driver = MachineDriver(definition, value, {"b": "rejected", "a~undo": "rejected"}).run()
    assert driver.row("b")["arguments"] == {"card": "•••", "pin": "•••", "text": "of •••", "n": 42}
    assert driver.row("a")["compensation"]["arguments"] == {"owner": {"•••": "•••"}}
    assert "arguments" not in driver.row("a")


def test_large_arguments_are_left_out_and_those_of_a_large_view_too() -> None:
    definition = saga(step("a", with_={"text": "${{ input.text }}"}))
    large = MachineDriver(definition, {"text": "x" * 5_000}, {"a": "rejected"}).run()
    assert large.row("a")["arguments"] == {"omitted": "size", "bytes": 5_011}
    small = MachineDriver(definition, {"text": "x" * 3_000}, {"a": "rejected"}).run()
    assert small.row("a")["arguments"] == {"text": "x" * 3_000}
    shrunk = shrink_view(small.view, 4_500).to_json()
    assert shrunk["steps"][0]["arguments"]["text" if "omitted" in shrunk["input"] else "omitted"]
    assert shrink_view(small.view, 2_000).to_json()["steps"][0]["arguments"] == {"omitted": "size", "bytes": 3_011}


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("input.note", 'b.if: "free" is neither true nor false, in `${{ input.note }}`'),
        ("input.pins[0]", "b.if: ••• is neither true nor false, in `${{ input.pins[0] }}`"),
        ("'to ' + input.card", "b.if: ••• is neither true nor false, in `${{ 'to ' + input.card }}`"),
    ],
)
def test_a_condition_of_another_type_is_quoted_without_sensitive_values(condition: str, message: str) -> None:
    definition = saga(step("a"), step("b", if_=f"${{{{ {condition} }}}}"), input=SCHEMA)
    value = {"note": "free", "card": "4111-x", "pins": [1]}
    reason = MachineDriver(definition, input=value).run().view.reason
    assert reason is not None
    assert reason.message is not None
    assert message in reason.message
    assert "4111-x" not in reason.message


def test_a_long_value_of_a_condition_is_shortened() -> None:
    definition = saga(step("a"), step("b", if_="${{ input.note }}"), input=SCHEMA)
    reason = MachineDriver(definition, input={"note": "long" * 100}).run().view.reason
    assert reason is not None
    assert reason.message is not None
    assert "longlong" in reason.message
    assert len(reason.message) < 250


@pytest.mark.parametrize(
    ("uses", "arguments", "message"),
    [
        ("require", {"that": "${{ input.note }}"}, 'b.that: "free" is neither true nor false'),
        ("require", {"that": "${{ input.card }}"}, "b.that: ••• is neither true nor false"),
    ],
)
def test_a_requirement_of_another_type_is_quoted_too(uses: str, arguments: dict[str, Any], message: str) -> None:
    definition = saga(step("a"), step("b", do=op(uses, arguments), kind="read"), input=SCHEMA)
    reason = MachineDriver(definition, input={"note": "free", "card": "4111-x"}).run().view.reason
    assert reason is not None
    assert reason.message is not None
    assert message in reason.message
