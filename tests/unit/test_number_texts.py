"""A number with an exponent, wherever it becomes text: the text is the number, and its length is limited."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from saga_activities.http.request import InvalidRequestError, build_request
from saga_activities.json_results import UnusableResult
from saga_activities.ledger.rows import document_text
from saga_activities.messaging.outbox import PreparedEvents, event_row, key_text, read_events
from saga_activities.parameters.float_operands import _text as float_operand  # pyright: ignore[reportPrivateUsage]
from saga_activities.parameters.json_parameters import UnusableParameter, as_json
from saga_workers.start.saga_starter import id_text
from sagas.actions.events import Event
from sagas.definition.analysis.lock_keys import checked_lock_keys
from sagas.definition.sensitivity import sensitive_values
from sagas.errors import UsageError
from sagas.expressions.errors import ExpressionError
from sagas.expressions.expression import compile_value
from sagas.input_limits import MAX_NUMBER_TEXTS
from sagas.protocol.payloads import Invocation
from sagas.text.exact_json import MAX_DECIMAL_DIGITS, decode_json, number_text
from sagas.text.masked_texts import TextMask

MANY = 60_000
CALL = Invocation("outbox.emit", {}, "s-1/emit", "s-1", "emit", "do", 1)


@st.composite
def numbers(draw: st.DrawFn) -> Decimal:
    digits = draw(st.sampled_from(["0", "1", "1.0", "12.50", "7", "123456789012345678901234567.890"]))
    exponent = draw(st.sampled_from([0, 3, 30, 400, 900, 10_000, 10**9]))
    sign, way = draw(st.sampled_from(["", "-"])), draw(st.sampled_from(["", "-"]))
    return Decimal(f"{sign}{digits}e{way}{exponent}")


def query(value: Any) -> str:
    return parse_qsl(build_request({"path": "/x", "query": {"a": value}}, "http://a").url.partition("?")[2])[0][1]


def form(value: Any) -> str:
    content = build_request({"method": "POST", "path": "/x", "form": {"a": value}}, "http://a").content
    assert content is not None
    return parse_qsl(content.decode())[0][1]


def header(value: Any) -> str:
    return build_request({"path": "/x", "headers": {"a": value}}, "http://a").headers["a"]


def template(source: str) -> Callable[[Any], str]:
    compiled = compile_value(source)
    return lambda value: compiled.render({"input": {"x": value}})


PLACES: dict[str, Callable[[Any], str | None]] = {
    "query": query,
    "form": form,
    "header": header,
    "key of an event": key_text,
    "header of an event": lambda value: decode_json(event_row(Event("t", None, 1, {"a": value}))["headers"])["a"],
    "operand of floats": lambda value: float_operand("p", value),
    "text": lambda value: template("${{ input.x }}-")(value)[:-1],
    "string()": template("${{ string(input.x) }}"),
    "key of a lock": lambda value: checked_lock_keys([value])[0],
    "id": id_text,
}
REFUSED = (InvalidRequestError, UnusableResult, UnusableParameter, ExpressionError, UsageError, ValueError)


@pytest.mark.parametrize("place", PLACES)
@given(numbers())
@example(Decimal("1e999"))
@example(Decimal("-0"))
@example(Decimal("1.0"))
@example(Decimal("1e1000000000"))
def test_the_text_is_the_number_or_there_is_none(place: str, number: Decimal) -> None:
    with contextlib.ExitStack() as refusal:
        is_refused = abs(number.adjusted()) >= MAX_DECIMAL_DIGITS or place == "key of a lock"
        if is_refused:
            refusal.enter_context(contextlib.suppress(*REFUSED))
        text = PLACES[place](number)
        assert text == number_text(number)
        assert text is not None
        assert Decimal(text) == number
        assert len(text) <= 2 * MAX_DECIMAL_DIGITS


def events(count: int, item: Callable[[int], dict[str, Any]]) -> Any:
    return PreparedEvents.of(read_events([{"topic": "t", "value": 0, **item(at)} for at in range(count)], CALL), CALL)


def fields(number: Decimal) -> dict[str, Any]:
    return {f"f{at}": number for at in range(MANY)}


MESSAGES: dict[str, Callable[[Decimal], Any]] = {
    "form": lambda number: build_request({"method": "POST", "path": "/x", "form": fields(number)}, "http://a"),
    "query": lambda number: build_request({"path": "/x", "query": {"a": [number] * MANY}}, "http://a"),
    "headers": lambda number: build_request({"path": "/x", "headers": fields(number)}, "http://a"),
    "headers of an event": lambda number: event_row(Event("t", None, 1, fields(number))),
    "keys of events": lambda number: events(MANY // 6, lambda at: {"key": number}),
    "headers of events": lambda number: events(MANY // 6, lambda at: {"headers": {"a": number}}),
    "array of floats": lambda number: float_operand("p", [number] * MANY),
}


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("number", ["1e999", "-1e-999"])
def test_the_numbers_of_a_message_share_a_limit(message: str, number: str) -> None:
    with pytest.raises(REFUSED, match=f"its numbers have more than {MAX_NUMBER_TEXTS:,} digits without exponents"):
        MESSAGES[message](Decimal(number))


@pytest.mark.parametrize("message", [name for name in MESSAGES if name not in ("query", "headers of an event")])
def test_as_many_ordinary_numbers_are_sent(message: str) -> None:
    MESSAGES[message](Decimal("1234567.89"))


UNTOUCHED: dict[str, Callable[[list[Decimal]], Any]] = {
    "JSON of a request": lambda many: build_request({"method": "POST", "path": "/x", "json": many}, "http://a").content,
    "value of an event": lambda many: event_row(Event("t", None, many))["value"],
    "parameter of JSON": lambda many: as_json("p", many),
    "text": lambda many: template("${{ input.x }}-")(many),
    "story of the ledger": lambda many: document_text({"id": "s", "input": many}),
    "masked view": lambda many: str(TextMask(("4711secret",)).shown(many)),
    "sensitive texts": lambda many: "".join(
        sensitive_values({"properties": {"xs": {"x-sensitive": True}}}, {"xs": many})
    ),
}


@pytest.mark.parametrize("place", UNTOUCHED)
def test_numbers_inside_a_document_keep_their_exponents(place: str) -> None:
    assert len(UNTOUCHED[place]([Decimal("1e999"), Decimal("-1e-999")] * (MANY // 2))) <= 24 * MANY


@pytest.mark.parametrize("text", ["1.10", "-0", "12345678901234567890.5", "1e20", "1e-30", "9" * 300, "0." + "1" * 300])
def test_the_ledger_keeps_ordinary_numbers(text: str) -> None:
    number = decode_json(text)
    assert decode_json(document_text({"id": "s", "input": [number]}))["input"] == [number]


@pytest.mark.parametrize("text", ["1e999", "-12.5e300", "1e-400"])
def test_the_ledger_has_text_for_numbers_that_postgresql_writes_out(text: str) -> None:
    assert decode_json(document_text({"id": "s", "input": [decode_json(text)]}))["input"] == [str(Decimal(text))]
