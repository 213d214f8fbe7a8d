"""Results that a step gets out of an answer: their limits, and a probe's view."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from saga_activities.http import HttpConnection
from saga_activities.input_limits import MAX_RESPONSE_BYTES
from sagas.protocol.outcomes import Outcome
from tests.helpers.payment_server import PaymentServer
from tests.integration.http.charges import CHARGE, call


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("response.json.id", "ch-1"),
        ("${{ response.json.id }}", "ch-1"),
        ("response.status", 201),
        ('response.headers["content-type"]', "application/json"),
        ("decimal(response.json.amount) * 2", Decimal("25.00")),
    ],
)
async def test_result_expression(crm: HttpConnection, result: Any, expected: Any) -> None:
    assert (await call(crm, {**CHARGE, "result": result})).result == expected


async def test_a_result_that_does_not_compile_sends_nothing(server: PaymentServer, crm: HttpConnection) -> None:
    outcome = await call(crm, {**CHARGE, "result": "response.json."})
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert outcome.failure is not None
    assert outcome.failure.type == "definition"
    assert server.ledger()["requests"] == []


async def test_a_result_that_cannot_be_computed_leaves_the_effect_in_doubt(
    server: PaymentServer, crm: HttpConnection
) -> None:
    outcome = await call(crm, {**CHARGE, "result": "response.json.receipt.number"})
    assert (outcome.kind, outcome.retryable) == ("unknown", False)
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("crm did POST /charges, but its result cannot be computed: ")
    assert len(server.ledger()["charges"]) == 1


async def answered(server: PaymentServer, crm: HttpConnection, body: str, **arguments: Any) -> Outcome:
    """The outcome of a call whose answer is 200 with this body of text."""
    server.faults({"status": 200, "body": body})
    return await call(crm, {**CHARGE, **arguments})


async def test_an_answer_with_a_name_twice_is_refused(server: PaymentServer, crm: HttpConnection) -> None:
    twice = '{"id": 1, "lines": [{"no": 7, "no": 8}]}'
    outcome = await answered(server, crm, twice)
    assert (outcome.kind, outcome.retryable) == ("unknown", False)
    assert outcome.failure is not None
    assert "its body has the name 'no' twice in one object" in outcome.failure.message
    assert f"the body begins `{twice}`" in outcome.failure.message
    outcome = await answered(server, crm, twice, result="response.json.id")
    assert outcome.failure is not None
    assert "its body has the name 'no' twice in one object" in outcome.failure.message
    assert (await answered(server, crm, twice, result="response.text")).result == twice


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"id": "c-', "the body is not usable JSON: it ends within a string"),
        ('{"id": NaN}', "the body is not usable JSON: NaN is not a JSON number"),
        ("<html>", "the body is not usable JSON: "),
    ],
)
async def test_a_result_of_a_body_that_is_no_json_says_so(
    server: PaymentServer, crm: HttpConnection, body: str, why: str
) -> None:
    outcome = await answered(server, crm, body, result="response.json.id")
    assert outcome.failure is not None
    assert why in outcome.failure.message
    assert outcome.failure.message.endswith(f"; the body begins `{body}`")
    assert (await answered(server, crm, body)).result == body


async def test_a_result_of_an_answer_without_a_body_says_so(crm: HttpConnection) -> None:
    outcome = await call(crm, {"path": "/large", "query": {"bytes": 0}, "result": "response.json.id"})
    assert outcome.failure is not None
    assert outcome.failure.message.endswith("; the answer has no body")


async def test_bad_arguments_send_nothing(server: PaymentServer, crm: HttpConnection) -> None:
    for arguments in ({**CHARGE, "done": ["ok"]}, {**CHARGE, "form": {}}, {"path": "/x", "headers": {"host": "y"}}):
        outcome = await call(crm, arguments)
        assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert server.ledger()["requests"] == []


async def test_text_and_empty_bodies(crm: HttpConnection) -> None:
    assert (await call(crm, {"path": "/large", "query": {"bytes": 3}})).result == "xxx"
    assert (await call(crm, {"path": "/large", "query": {"bytes": 0}})).result is None
    assert (await call(crm, {"path": "/echo", "method": "HEAD"})).result is None


async def test_a_body_too_large_is_omitted_and_the_step_is_done(crm: HttpConnection) -> None:
    size = MAX_RESPONSE_BYTES + 1
    outcome = await call(crm, {"path": "/large", "query": {"bytes": size}})
    assert outcome == Outcome.done({"omitted": "size", "bytes": size}, attempt=1)
    # A body that just fits is still too large once it is JSON with everything around it.
    outcome = await call(crm, {"path": "/large", "query": {"bytes": MAX_RESPONSE_BYTES}})
    assert outcome.result == {"omitted": "size", "bytes": MAX_RESPONSE_BYTES + 2}
    short = await call(crm, {"path": "/large", "query": {"bytes": size}, "result": "response.status"})
    assert short.result == {"omitted": "size", "bytes": size}


async def test_failure_details_hold_the_beginning_of_a_text(server: PaymentServer, crm: HttpConnection) -> None:
    server.faults({"status": 500, "body": "e" * 2000})
    outcome = await call(crm, CHARGE)
    assert outcome.failure is not None
    assert outcome.failure.details == {"status": 500, "body": "e" * 500}


async def test_a_probe_gets_the_response_whatever_its_status(server: PaymentServer, crm: HttpConnection) -> None:
    question = {"path": "/charges", "query": {"key": "checkout-1/charge"}, "result": "response.json.id"}
    absent = await call(crm, question, op="probe")
    assert (absent.kind, absent.result["status"], absent.result["json"]) == ("done", 404, {"error": "no such charge"})
    await call(crm, CHARGE)
    present = await call(crm, question, op="probe")
    assert (present.result["status"], present.result["json"]["id"]) == (200, "ch-1")
    assert set(present.result) == {"status", "headers", "json", "text"}


async def test_a_probe_never_sends_the_key(server: PaymentServer, crm: HttpConnection) -> None:
    """Under the key of the do, the participant would take the question for the effect."""
    await call(crm, {"path": "/echo", "method": "POST", "json": {}}, op="probe")
    [request] = server.ledger()["requests"]
    assert "idempotency-key" not in request["headers"]


async def test_a_probe_of_a_huge_response_keeps_the_status(crm: HttpConnection) -> None:
    outcome = await call(crm, {"path": "/large", "query": {"bytes": 3 * MAX_RESPONSE_BYTES}}, op="probe")
    assert outcome.result["status"] == 200
    assert (outcome.result["json"], outcome.result["text"], outcome.result["omitted"]) == (None, None, "size")
