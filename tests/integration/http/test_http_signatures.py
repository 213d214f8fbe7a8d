"""Standard Webhooks over a connection with a signing secret, verified by the library that receivers use."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from saga_activities.http import run_http
from sagas.errors import UsageError
from tests.helpers.payment_server import PaymentServer

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = "checkout-1/größe 50%"
SEND: dict[str, Any] = {"path": "/echo", "method": "POST", "json": {"amount": "12.50", "name": "Müller"}}


def last(server: PaymentServer) -> dict[str, Any]:
    return server.ledger()["requests"][-1]


@pytest.mark.parametrize("body", [{"json": {"name": "Müller"}}, {"form": {"a": "b c"}}, {"body": "plain ü"}, {}])
async def test_every_kind_of_body_is_signed(server: PaymentServer, connect: Any, tmp_path: Path, body: Any) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    crm = connect(server.url, signing_secret={"file": "secret"})
    outcome = await run_http({"path": "/echo", "method": "POST", **body}, key=KEY, connection=crm, timeout=60.0)
    assert outcome.kind == "done"
    sent = last(server)
    Webhook(SECRET).verify(sent["body"], sent["headers"], json_parse=False)
    assert sent["headers"]["webhook-id"] == sent["headers"]["idempotency-key"]
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(sent["body"] + "x", sent["headers"], json_parse=False)


@pytest.mark.parametrize("size", [24, 64])
async def test_a_secret_without_prefix_and_padding_signs(
    server: PaymentServer, connect: Any, tmp_path: Path, size: int
) -> None:
    secret = base64.b64encode(bytes(range(size))).decode().rstrip("=")
    (tmp_path / "secret").write_text(secret)
    crm = connect(server.url, signing_secret={"file": "secret"})
    assert (await run_http(SEND, key=KEY, connection=crm, timeout=60.0)).kind == "done"
    Webhook(secret).verify(last(server)["body"], last(server)["headers"])


async def test_reads_and_probes_are_not_signed(server: PaymentServer, connect: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    crm = connect(server.url, signing_secret={"file": "secret"})
    await run_http({"path": "/echo"}, key=KEY, connection=crm, timeout=60.0)
    assert not {"webhook-id", "webhook-signature"} & last(server)["headers"].keys()
    await run_http(SEND, key=KEY, connection=crm, timeout=60.0, op="probe")
    assert not {"webhook-id", "webhook-signature"} & last(server)["headers"].keys()


async def test_signature_headers_cannot_be_overridden(server: PaymentServer, connect: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    crm = connect(server.url, signing_secret={"file": "secret"})
    given = {**SEND, "headers": {"Webhook-Id": "forged"}}
    outcome = await run_http(given, key=KEY, connection=crm, timeout=60.0)
    assert outcome.failure is not None
    assert (outcome.kind, outcome.retryable, server.ledger()["requests"]) == ("failed", False, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty or contains"),
        ("whsec_", "is a secret of 0 bytes, which can be guessed; use whsec_ and the Base64 of 24 to 64 random bytes"),
        ("whsec_A", "is not a Standard Webhooks secret"),
        ("whsec_c2VjcmV0", "is a secret of 6 bytes"),
        ("secret", "is a secret of 4 bytes"),
        ("whsec_" + base64.b64encode(b"x" * 23).decode(), "is a secret of 23 bytes"),
        (None, "No such"),
    ],
)
async def test_without_a_usable_secret_nothing_is_sent(
    server: PaymentServer, connect: Any, tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "secret").write_text(text)
    crm = connect(server.url, signing_secret={"file": "secret"})
    outcome = await run_http(SEND, key=KEY, connection=crm, timeout=60.0)
    assert outcome.failure is not None
    assert (outcome.kind, outcome.failure.type) == ("failed", "HttpCredentials")
    assert message in outcome.failure.message
    assert server.ledger()["requests"] == []


def test_a_literal_secret_in_the_settings_is_refused(connect: Any) -> None:
    with pytest.raises(UsageError, match="must be a reference"):
        connect("http://crm.example", signing_secret=SECRET)
