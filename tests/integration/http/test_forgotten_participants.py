"""Connections to a participant that a firewall has forgotten: each carries one request, so none is used again."""

from __future__ import annotations

import asyncio
import time

import pytest

from saga_activities.http import run_http
from tests.helpers.fault_proxy import fault_proxy
from tests.helpers.payment_server import PaymentServer
from tests.integration.http.charges import CHARGE
from tests.integration.http.conftest import Connect


async def test_an_attempt_does_not_wait_for_a_forgotten_connection(
    server: PaymentServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with fault_proxy(int(server.url.rpartition(":")[2])) as proxy:
        crm = connect(f"http://127.0.0.1:{proxy.port}")

        async def charge(key: str) -> float:
            started = time.monotonic()
            outcome = await run_http(CHARGE, key=key, connection=crm, timeout=30.0)
            assert outcome.kind == "done", outcome
            return time.monotonic() - started

        await asyncio.gather(*(charge(f"first-{number}") for number in range(3)))
        proxy.forget()
        assert await charge("second") < 5.0
        assert len(server.ledger()["charges"]) == 4
    assert not [record.getMessage() for record in caplog.records if record.exc_info], "that is not a bug"
