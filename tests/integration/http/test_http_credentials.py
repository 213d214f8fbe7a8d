"""Credentials come from the worker's environment or files, reach the participant, and are written nowhere else."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from sagas.errors import UsageError
from sagas.protocol.outcomes import Outcome
from tests.helpers.payment_server import CLIENT_ID, CLIENT_SECRET, PaymentServer
from tests.integration.http.charges import CHARGE, call
from tests.integration.http.raw_server import raw_server, response

TOKEN = "tok-very-secret-123"


def written(outcome: Outcome) -> str:
    return json.dumps(dataclasses.asdict(outcome), default=dict)


async def test_bearer_from_the_environment(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_TOKEN", TOKEN)
    with PaymentServer("--token", TOKEN) as server:
        crm = connect(server.url, auth={"bearer": {"env": "CRM_TOKEN"}})
        assert (await call(crm, CHARGE)).kind == "done"


async def test_a_rotated_file_is_read_again(connect: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old\n")
    with PaymentServer("--token", TOKEN) as server:
        crm = connect(server.url, auth={"bearer": {"file": "token"}})
        refused = await call(crm, CHARGE)
        assert (refused.kind, refused.retryable) == ("unknown", True)
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        assert (await call(crm, CHARGE, attempt=2)).kind == "done"


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        (
            {"basic": {"user": "shop", "password": {"env": "CRM_SECRET"}}},
            "authorization",
            "Basic " + base64.b64encode(f"shop:{TOKEN}".encode()).decode(),
        ),
        ({"header": {"name": "X-Api-Key", "value": {"env": "CRM_SECRET"}}}, "x-api-key", TOKEN),
    ],
)
async def test_basic_and_header(
    server: PaymentServer, connect: Any, monkeypatch: pytest.MonkeyPatch, auth: Any, header: str, value: str
) -> None:
    monkeypatch.setenv("CRM_SECRET", TOKEN)
    crm = connect(server.url, auth=auth)
    await call(crm, {"path": "/echo"})
    [request] = server.ledger()["requests"]
    assert request["headers"][header] == value
    forged = await call(crm, {"path": "/echo", "headers": {header: "mine"}})
    assert (forged.kind, forged.retryable) == ("failed", False)


async def test_no_secret_is_written_although_the_participant_echoes_it(
    server: PaymentServer, connect: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CRM_TOKEN", TOKEN)
    crm = connect(server.url, auth={"bearer": {"env": "CRM_TOKEN"}})
    with caplog.at_level(logging.DEBUG):
        echoed = await call(crm, {"path": "/echo", "method": "POST"})
        assert echoed.result["headers"]["authorization"] == "Bearer •••"
        server.faults({"status": 500, "body": {"error": f"bad token {TOKEN}"}, "headers": {"x-debug": TOKEN}})
        failed = await call(crm, CHARGE)
        server.faults({"status": 404, "body": TOKEN, "headers": {"x-debug": TOKEN}})
        probed = await call(crm, {"path": "/charges"}, op="probe")
    for outcome in (echoed, failed, probed):
        assert TOKEN not in written(outcome)
    assert TOKEN not in repr(crm.settings)
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "spelled", [TOKEN, TOKEN.replace("s", "\\u0073"), TOKEN.replace("-", "\\u002D"), "\\u0074" + TOKEN[1:]]
)
async def test_a_secret_in_another_spelling_of_json_is_masked(
    connect: Any, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    monkeypatch.setenv("CRM_TOKEN", TOKEN)
    async with raw_server() as participant:
        body = f'{{"sent": "Bearer {spelled}", "{spelled}": [1, "{spelled}"], "path": "a\\/b"}}'.encode()
        participant.answer = [response(body, "Content-Type: application/json")]
        crm = connect(participant.url, auth={"bearer": {"env": "CRM_TOKEN"}})
        for result in (None, "response.json", "response.text", "response.json.sent"):
            outcome = await call(crm, {**CHARGE, **({"result": result} if result else {})})
            assert outcome.kind == "done"
            assert TOKEN not in written(outcome)
            assert spelled not in json.dumps(outcome.result, default=str, ensure_ascii=False)
        probed = await call(crm, {"path": "/charges"}, op="probe")
        assert TOKEN not in written(probed)
        participant.answer = [response(body, "Content-Type: application/json", status="404 Not Found")]
        refused = await call(crm, CHARGE)
        assert refused.failure is not None
        assert spelled not in refused.failure.message


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_missing_secret_sends_nothing(
    server: PaymentServer, connect: Any, monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    monkeypatch.delenv("CRM_TOKEN", raising=False)
    crm = connect(server.url, auth={"bearer": {"env": "CRM_TOKEN"}})
    outcome = await call(crm, CHARGE, attempt=attempt)
    assert (outcome.kind, outcome.retryable) == ("failed", True)
    assert outcome.failure is not None
    assert "CRM_TOKEN" in outcome.failure.message
    assert server.ledger()["requests"] == []


OAUTH2 = {"client_id": CLIENT_ID, "client_secret": {"env": "CRM_CLIENT_SECRET"}, "scope": "payments"}


@pytest.mark.parametrize("send", ["basic", "body"])
async def test_oauth2_token_is_fetched_once_and_renewed_when_refused(
    connect: Any, monkeypatch: pytest.MonkeyPatch, send: str
) -> None:
    monkeypatch.setenv("CRM_CLIENT_SECRET", CLIENT_SECRET)
    with PaymentServer("--token", "oauth2") as server:
        auth = {"oauth2": {**OAUTH2, "token_url": f"{server.url}/token", "send": send}}
        crm, other = connect(server.url, auth=auth), connect(server.url, auth=auth)
        outcomes = await asyncio.gather(*(call(crm, CHARGE, key=f"s-{n}/charge") for n in range(5)))
        assert {outcome.kind for outcome in outcomes} == {"done"}
        assert len(server.ledger()["tokens"]) == 1
        # Another worker's token revokes ours; the answer 401 is repaired within the same attempt.
        assert (await call(other, CHARGE, key="s-5/charge")).kind == "done"
        assert (await call(crm, CHARGE, key="s-6/charge")).kind == "done"
        assert len(server.ledger()["tokens"]) == 3
        assert len(server.ledger()["charges"]) == 7


async def test_oauth2_with_a_wrong_secret_sends_nothing(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_CLIENT_SECRET", "wrong-secret-value")
    with PaymentServer("--token", "oauth2") as server:
        auth = {"oauth2": {**OAUTH2, "token_url": f"{server.url}/token", "send": "body"}}
        outcome = await call(connect(server.url, auth=auth), CHARGE)
        assert (outcome.kind, outcome.retryable) == ("failed", True)
        assert outcome.failure is not None
        assert outcome.failure.message == (
            "crm was not called (POST /charges): the token endpoint responded 401 Unauthorized"
        )
        assert "wrong-secret-value" not in written(outcome)
        assert [request["path"] for request in server.ledger()["requests"]] == ["/token"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auth": {"bearer": "abc"}}, "where the secret is stored, not contain it"),
        ({"auth": {"basic": {"user": "a", "password": "b"}}}, "where the secret is"),
        ({"auth": {"bearer": {"env": "A"}, "basic": {"user": "a", "password": {"env": "B"}}}}, "give only one"),
        ({"auth": {"barer": {"env": "A"}}}, "unknown setting barer; did you mean bearer?"),
        ({"auth": {"oauth2": {"token_url": "x", "client_id": "a", "client_secret": {"env": "B"}}}}, "complete URL"),
        ({"auth": {"header": {"value": {"env": "A"}}}}, "auth.header.name is missing"),
        ({"auth": {"mtls": {"certificate": "c", "key": "k"}}}, "needs an https:// URL"),
        ({"verify": False}, "cannot be switched off"),
        ({"idempotency": 7}, "idempotency must be a string"),
        ({"headers": {"a": 1}}, "table of strings"),
        ({"headers": {"a": "b\r\nc: d"}}, "headers.a is not a header"),
        ({"auth": {"header": {"name": "x y", "value": {"env": "A"}}}}, "not a header name"),
        ({"idempotency": "x\ny"}, "not a header name"),
        ({"allowed_hosts": "crm.example.com"}, "allowed_hosts must be a list of strings"),
        ({"allowed_hosts": ["https://crm.example.com"]}, "allowed_hosts contains 'https://crm.example.com'"),
        ({"allowed_hosts": ["10.0.0.1/8"]}, "allowed_hosts contains '10.0.0.1/8'"),
        ({"allowed_hosts": ["*"]}, "allowed_hosts contains '*'"),
    ],
)
def test_wrong_settings_are_one_sentence(connect: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        connect("http://127.0.0.1:1", **options)
    assert message in refused.value.message


@pytest.mark.parametrize("url", ["crm.example.com", "http://u:p@crm.example.com", "http://crm.example.com/?a=1"])
def test_wrong_urls(connect: Any, url: str) -> None:
    with pytest.raises(UsageError):
        connect(url)
