"""Every way an attempt can end, against a real payment service whose ledger records what really happened."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from saga_activities.http import HttpConnection
from saga_activities.reported_failure import reported_failure
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import decode_failure, encode_failure
from sagas.protocol.public_reason import public_reason
from sagas.protocol.saga_view import ReasonView
from sagas.text.digests import name_uuid, sha256_hex
from tests.helpers.payment_server import PaymentServer
from tests.integration.http.charges import CHARGE, KEY, call


def failure(outcome: Outcome) -> str:
    assert outcome.failure is not None
    return outcome.failure.message


async def test_done_and_repeated_under_the_same_key(server: PaymentServer, crm: HttpConnection) -> None:
    first = await call(crm, CHARGE)
    again = await call(crm, CHARGE, attempt=2)
    assert first == Outcome.done({"id": "ch-1", "account": "h-1", "amount": "12.50"}, attempt=1)
    assert (again.result, again.attempt) == (first.result, 2)
    assert server.ledger()["balance"] == "12.50"


async def test_a_participant_that_ignores_keys_charges_twice() -> None:
    """The harm that `idempotent: false` exists for; the engine cannot see it from the answer."""
    with PaymentServer("--ignore-keys") as server:
        arguments = {**CHARGE, "path": None, "url": f"{server.url}/charges"}
        del arguments["path"]
        assert (await call(None, arguments)).kind == "done"
        assert (await call(None, arguments, attempt=2)).kind == "done"
        assert server.ledger()["balance"] == "25.00"


@pytest.mark.parametrize(("account", "status"), [("broke", 422), ("banned", 409)])
async def test_rejected(server: PaymentServer, crm: HttpConnection, account: str, status: int) -> None:
    outcome = await call(crm, {**CHARGE, "json": {"account": account, "amount": "1"}})
    assert outcome.kind == "rejected"
    assert outcome.failure is not None
    assert outcome.failure.type == "Rejected"
    assert outcome.failure.details["status"] == status
    assert "error" in outcome.failure.details["body"]
    received = decode_failure("Rejected", "m", encode_failure(replace(outcome, failure=reported_failure(outcome)), 1))
    assert received.failure is not None
    reason = ReasonView(kind="rejected", **received.failure.to_json())
    assert public_reason(reason).details == {"status": status}
    assert server.ledger()["charges"] == []


@pytest.mark.parametrize("status", [302, 307, 400, 401, 403, 404, 408, 425, 500, 502, 503, 504])
async def test_any_other_status_is_unknown_and_retried(server: PaymentServer, crm: HttpConnection, status: int) -> None:
    server.faults({"status": status, "headers": {"location": "/charges"}})
    outcome = await call(crm, CHARGE)
    assert (outcome.kind, outcome.retryable, outcome.retry_after) == ("unknown", True, None)
    assert failure(outcome).startswith(f"crm responded {status} ")
    assert ' to POST /charges: `{"error": "fault"}`' in failure(outcome)
    helped = failure(outcome).endswith(f"; if this answer is a definite no, write `rejected: [{status}, 409, 422]`")
    assert helped == (status in (403, 404)), "400 is for a key that was used with other arguments"
    assert server.ledger()["charges"] == []
    assert (await call(crm, CHARGE, attempt=2)).kind == "done"


@pytest.mark.parametrize("attempt", [1, 2])
async def test_429_is_no_effect_of_this_attempt(server: PaymentServer, crm: HttpConnection, attempt: int) -> None:
    server.faults({"status": 429, "headers": {"Retry-After": "7"}})
    outcome = await call(crm, CHARGE, attempt=attempt)
    assert (outcome.kind, outcome.retryable, outcome.retry_after) == ("failed", True, 7.0)


async def test_retry_after_of_a_503_is_honoured(server: PaymentServer, crm: HttpConnection) -> None:
    server.faults({"status": 503, "headers": {"Retry-After": "3"}})
    outcome = await call(crm, CHARGE)
    assert (outcome.kind, outcome.retry_after) == ("unknown", 3.0)
    assert failure(outcome) == 'crm responded 503 Service Unavailable to POST /charges: `{"error": "fault"}`'


@pytest.mark.parametrize(
    ("fault", "type", "charged"),
    [
        ({"delay_after": 15.0}, "HttpTimeout", True),
        ({"delay_before": 15.0}, "HttpTimeout", False),
        ({"drop": "after"}, "HttpConnection", True),
        ({"drop": "before"}, "HttpConnection", False),
        # The status line arrived, the body was cut off: the result is lost.
        ({"cut": True}, "HttpConnection", True),
    ],
)
async def test_an_incomplete_response_is_unknown(
    server: PaymentServer, crm: HttpConnection, fault: dict[str, Any], type: str, charged: bool
) -> None:
    server.faults(fault)
    outcome = await call(crm, CHARGE, timeout=1.96833)
    assert failure(outcome).endswith(" within 2 s") == (type == "HttpTimeout"), "not 1.96833 s"
    assert (outcome.kind, outcome.retryable) == ("unknown", True)
    assert outcome.failure is not None
    assert outcome.failure.type == type
    assert len(server.ledger()["charges"]) == charged
    # The same key finds out: one charge, whatever happened to the first answer.
    assert (await call(crm, CHARGE, attempt=2)).kind == "done"
    assert server.ledger()["charges"][0]["amount"] == "12.50"


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("attempt", [1, 2])
async def test_refused_connection_sent_nothing(connect: Any, attempt: int) -> None:
    outcome = await call(connect(f"http://127.0.0.1:{closed_port()}"), CHARGE, attempt=attempt)
    assert (outcome.kind, outcome.retryable) == ("failed", True)
    assert failure(outcome).startswith("crm cannot be reached for POST /charges: ")


async def test_a_killed_server_is_retried_after_its_restart(connect: Any) -> None:
    with PaymentServer() as server:
        crm, port = connect(server.url), server.url.rpartition(":")[2]
        assert (await call(crm, CHARGE)).kind == "done"
        server.stop()
        assert (await call(crm, CHARGE, attempt=2)).kind == "failed"  # of this attempt: nothing was sent
    with PaymentServer("--port", port) as server:
        assert (await call(crm, CHARGE, attempt=3)).kind == "done"
        assert server.ledger()["balance"] == "12.50"


async def test_undo_names_the_do_and_the_late_do_is_refused(server: PaymentServer, crm: HttpConnection) -> None:
    await call(crm, CHARGE)
    refund = {"path": "/refunds", "method": "POST", "json": {"charge": "ch-1"}}
    undone = await call(crm, refund, key=f"{KEY}/undo", forward_key=KEY, op="undo")
    again = await call(crm, refund, key=f"{KEY}/undo", forward_key=KEY, op="undo", attempt=2)
    assert undone.result == again.result == {"refunded": True}
    assert server.ledger()["balance"] == "0.00"
    assert (await call(crm, CHARGE)).kind == "rejected"


async def test_undo_before_do_seals_the_key(server: PaymentServer, crm: HttpConnection) -> None:
    refund = {"path": "/refunds", "method": "POST", "json": {"charge": None}}
    assert (await call(crm, refund, key=f"{KEY}/undo", forward_key=KEY, op="undo")).result == {"refunded": False}
    assert (await call(crm, CHARGE)).kind == "rejected"
    assert server.ledger()["charges"] == []


async def test_headers_that_are_sent(server: PaymentServer, connect: Any) -> None:
    crm = connect(server.url, headers={"X-Tenant": "acme"})
    post = {"path": "/echo", "method": "POST", "headers": {"x-own": "1"}}
    sent = (
        await call(crm, post, key="Straße 1/charge", forward_key="Straße 1/do", op="undo", traceparent="00-ab-cd-01")
    ).result
    headers = sent["headers"]
    assert headers["idempotency-key"] == "Stra%C3%9Fe%201/charge"
    assert headers["saga-undoes"] == "Stra%C3%9Fe%201/do"
    assert (headers["traceparent"], headers["x-own"], headers["x-tenant"]) == ("00-ab-cd-01", "1", "acme")
    read = (await call(crm, {"path": "/echo"})).result["headers"]
    assert "idempotency-key" not in read
    # The answer before this one set a cookie; it belongs to another saga.
    assert "cookie" not in read


@pytest.mark.parametrize(("written", "header"), [("X-Request-Key", "x-request-key"), ("none", None)])
async def test_name_of_the_key_header(server: PaymentServer, connect: Any, written: str, header: str | None) -> None:
    crm = connect(server.url, idempotency=written)
    headers = (await call(crm, {"path": "/echo", "method": "POST"})).result["headers"]
    assert {name for name, value in headers.items() if value == KEY} == ({header} if header else set())


@pytest.mark.parametrize(("format", "of_key"), [("uuid", name_uuid), ("sha256", sha256_hex), ("key", str)])
async def test_format_of_the_key(
    server: PaymentServer, connect: Any, format: str, of_key: Callable[[str], str]
) -> None:
    crm = connect(server.url, idempotency={"header": "X-Key", "format": format})
    sent = (await call(crm, {"path": "/echo", "method": "POST"}, key=f"{KEY}/undo", forward_key=KEY, op="undo")).result[
        "headers"
    ]
    assert (sent["x-key"], sent["saga-undoes"]) == (of_key(f"{KEY}/undo"), of_key(KEY))
    assert "idempotency-key" not in sent


async def test_a_refusal_in_the_body_of_a_200(server: PaymentServer, crm: HttpConnection) -> None:
    arguments = {**CHARGE, "rejected_when": "has(response.json.ok) && !response.json.ok", "result": "response.json.id"}
    server.faults({"status": 200, "body": {"ok": False, "why": "no credit"}})
    refused = await call(crm, arguments)
    assert (refused.kind, refused.failure and refused.failure.type) == ("rejected", "Rejected")
    assert 'responded 200 OK to POST /charges: `{"ok": false, "why": "no credit"}`' in failure(refused)
    assert (await call(crm, arguments)).result == "ch-1"
    server.faults({"status": 503, "body": {"ok": False}})
    assert (await call(crm, arguments, key="other")).kind == "unknown", "only a status in `done` is read"


@pytest.mark.parametrize("condition", ["response.json.nothing == 1", "response.json.id"])
async def test_an_answer_that_cannot_be_judged_is_unknown(crm: HttpConnection, condition: str) -> None:
    outcome = await call(crm, {**CHARGE, "rejected_when": condition})
    assert (outcome.kind, outcome.retryable) == ("unknown", False)
    assert f"it is unknown whether that is a no: `rejected_when: {condition}` cannot be computed: " in failure(outcome)
    assert ("has no field 'nothing'" if "nothing" in condition else "neither true nor false") in failure(outcome)
    assert failure(outcome).partition("; the body begins `")[2].startswith('{"id": "ch-1"')


async def test_redirects_are_followed_for_reads_within_the_origin(server: PaymentServer, crm: HttpConnection) -> None:
    moved = {"path": "/moved", "query": {"to": "/echo?x=1"}}
    assert (await call(crm, moved)).result["path"] == "/echo?x=1"
    with PaymentServer() as other:
        away = await call(crm, {"path": "/moved", "query": {"to": f"{other.url}/echo"}})
        assert failure(away) == f"crm responded 302 Found to GET /moved: `{{}}`, Location: `{other.url}/echo`"
        assert other.ledger()["requests"] == []
    loop = await call(crm, {"path": "/moved"})
    assert loop.kind == "unknown"
    assert len([sent for sent in server.ledger()["requests"] if sent["path"] == "/moved"]) == 6


async def test_done_and_rejected_statuses_are_configurable(server: PaymentServer, crm: HttpConnection) -> None:
    gone = {"path": "/charges/7", "method": "DELETE"}
    assert (await call(crm, {**gone, "done": ["2xx", 404]})).kind == "done"
    assert (await call(crm, {**gone, "rejected": [404]})).kind == "rejected"
    banned = {**CHARGE, "json": {"account": "banned", "amount": "1"}, "rejected": [422]}
    assert (await call(crm, banned)).kind == "unknown"
    assert server.ledger()["charges"] == []


async def test_a_redirect_names_its_location(server: PaymentServer, crm: HttpConnection) -> None:
    outcome = await call(crm, {"path": "/moved", "method": "POST", "query": {"to": "/v2/charges?token=abc"}})
    assert outcome.kind == "unknown"
    assert "responded 302 Found to POST /moved" in failure(outcome)
    assert "Location: `/v2/charges?token=•••`" in failure(outcome)
