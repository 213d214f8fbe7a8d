"""Messages of an engine about a failure quote no `x-sensitive` value of the input."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sagas.definition.model import Notification, Retry
from sagas.definition.sensitivity import SensitiveMask, masked, searched_texts, sensitive_values
from sagas.machine.view import shrink_view
from sagas.protocol.messages import CallEnded
from sagas.protocol.outcomes import Failure, Outcome, mask_failure
from sagas.text.masked_texts import mask_texts
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
    assert mask_texts(message, searched_texts(sensitive_values(SCHEMA, value))) == shown


@pytest.mark.parametrize("value", [{"card": ""}, {"owner": {"name": "", "age": ""}}, {"pins": ["", ""]}])
def test_an_empty_text_masks_no_other_empty_text(value: Any) -> None:
    shown = {"reason": "", "labels": {"customer": ""}, "": 1}
    assert SensitiveMask(sensitive_values(SCHEMA, {**value, "note": ""})).value(shown) == shown


def test_details_and_the_reason_of_parking_are_hidden_too() -> None:
    failure = Failure("X", "4111-x", {"statement": "4111-x", "rows": [{"card": "4111-x"}]})
    failed = mask_failure(Outcome("failed", failure=failure, park_reason="4111-x changed"), ("4111-x",))
    assert failed.failure == Failure("X", "•••", {"statement": "•••", "rows": [{"card": "•••"}]})
    assert failed.park_reason == "••• changed"


def test_the_details_of_a_rejection_are_the_participants_own() -> None:
    rejected = mask_failure(Outcome("rejected", failure=Failure("X", "4111-x", {"card": "4111-x"})), ("4111-x",))
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


@pytest.mark.parametrize(
    "quoted",
    [
        r"a \"b\" \u00fc/'c'\\d",
        r"a \"b\" ü/'c'\\d",
        r"a \"b\" ü/''c''\\d",
        "a \"b\" ü/''c''\\d",
        r"a \"b\" \xfc/'c'\\d".replace("'", r"\'").replace(r"\"", '"'),
        "a%20%22b%22%20%C3%BC%2F%27c%27%5Cd",
        "a+%22b%22+%C3%BC%2F%27c%27%5Cd",
        "a%20%22b%22%20%c3%bc/%27c%27%5cd",
    ],
)
def test_values_are_found_as_other_notations_write_them(quoted: str) -> None:
    assert mask_texts(f"({quoted})", ("a \"b\" ü/'c'\\d",)) == "(•••)"


def test_names_that_the_schema_declares_are_no_values() -> None:
    schema = {"x-sensitive": True, "properties": {"name": {"properties": {"first": {}}}}}
    value = {"name": {"first": "Ada", "nick": "Countess"}, "Lovelace": 1815}
    assert set(searched_texts(sensitive_values(schema, value))) == {"Ada", "Countess", "Lovelace", "nick", "1815"}


def test_a_document_with_too_much_to_compare_shows_no_text() -> None:
    """Sensitive values of many lengths, and texts with many words, would take a workflow task longer than Temporal
    allows."""
    texts = ["v" * length for length in range(3, 40)]
    document = ["free", *["v " * 4_000] * 10, "free", 5]
    shown = SensitiveMask(frozenset(texts)).value(document)
    failed = mask_failure(Outcome("failed", failure=Failure("X", "no", {"rows": document})), texts)
    assert (shown[:2], shown[-2:]) == (["free", "v " * 4_000], ["•••", 5])
    assert failed.failure is not None
    assert (failed.failure.message, failed.failure.details["rows"][-2:]) == ("no", ["•••", 5])


def test_many_values_do_not_hide_a_document() -> None:
    texts = [f"value {number} \u00fc" for number in range(20_000)]
    document = ["free", "of value 19999 \u00fc", 5] * 10_000
    assert SensitiveMask(frozenset(texts)).value(document)[-3:] == ["free", "of •••", 5]


def test_what_repeats_a_value_is_shown_without_it() -> None:
    definition = saga(
        step("a", with_={"card": "${{ input.card }}"}),
        step("b"),
        input=SCHEMA,
        output={"card": "${{ input.card }}", "pin": "${{ input.pins[0] }}", "kept": 1},
    )
    value = {"card": "4111-x", "pins": [71234], "owner": Decimal("12.50")}
    repeated = {"list": ["4111-x", {"4111-x": 1, "text": "to 4111-x"}], "pin": 71234, "price": Decimal("12.5")}
    driver = MachineDriver(definition, value, hold={"a"}).start()
    call = driver.flights.pop("a")
    driver.feed(CallEnded(call.id, Outcome.done(repeated), driver.now, 1))
    shown = {"list": ["•••", {"•••": 1, "text": "to •••"}], "pin": "•••", "price": "•••"}
    assert driver.row("a")["result"] == shown
    assert driver.view.output == {"card": "•••", "pin": "•••", "kept": 1}
    assert driver.finishes[0].output == {"card": "4111-x", "pin": 71234, "kept": 1}, "what the caller gets"


def test_a_nested_saga_quotes_no_value_of_its_parent() -> None:
    nested = step("c", uses="saga", with_={"name": "child", "input": {}}, on=None, compensate=None)
    reason = {"kind": "rejected", "message": "no 4111-x", "details": {"card": "4111-x"}}
    driver = MachineDriver(saga(nested, input=SCHEMA), {"card": "4111-x"}, {"c": ("COMPENSATED", {"reason": reason})})
    view = driver.run().view
    assert view.reason is not None
    assert (view.reason.message, view.reason.details) == ("no •••", {"card": "•••"})


def test_a_notification_has_no_words_of_others_and_no_value() -> None:
    event = Notification(("compensated", "parked"), op("http", {"json": "${{ event }}"}))
    definition = saga(step("a"), input=SCHEMA, output={"card": "${{ input.card }}"}, notify=(event,))
    driver = MachineDriver(definition, {"card": "4111-x"}, hold={"a"}).start()
    failure = Failure("DatabaseError", "duplicate key", {"statement": "insert"})
    driver.feed(CallEnded(driver.flights.pop("a").id, Outcome("failed", failure=failure, retryable=False), 1.0, 1))
    driver.run()
    [told] = driver.notified
    assert told.call is not None
    reason = told.call.arguments["json"]["data"]["reason"]
    assert (reason["kind"], reason["type"], reason["details"]) == ("failed", "DatabaseError", {})
    assert reason["message"] == "a: failed; `saga show` has the words"
    assert "4111-x" in told.call.sensitive_texts


def test_a_notification_of_a_parked_step_quotes_rejections_only() -> None:
    event = Notification(("parked",), op("http", {"json": "${{ event }}"}))
    whys = []
    for word in ("rejected", "failed"):
        definition = saga(step("a", on_failure="park", retry=Retry(max_attempts=1)), notify=(event,))
        driver = MachineDriver(definition, answers={"a": word}).run()
        assert driver.notified[0].call is not None
        whys += [row["why"] for row in driver.notified[0].call.arguments["json"]["data"]["parked"]]
    assert whys == ["Rejected: no", "a waits for an operator; `saga show` has the words"]


def test_what_no_schema_marks_is_not_walked_through() -> None:
    """A list of 240,000 numbers beside a marked field took five seconds of a workflow task."""
    schema = {"properties": {"pin": {"type": "string", "x-sensitive": True}, "rows": {"type": "array"}}}
    value = {"pin": "1234567", "rows": [[number] for number in range(1_000)]}
    shown = masked(schema, value)
    assert shown["pin"] == "•••"
    assert shown["rows"] is value["rows"]
    assert sensitive_values(schema, value) == {"1234567"}
