"""A cancel between two attempts of an HTTP step: it is known how they have ended, or it is looked up."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from saga_workers.client import Client
from sagas.settings import HttpService
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

PAY = """
saga: pay
steps:
  - id: charge
    uses: http
    with: {connection: crm, method: POST, path: /charges, json: {account: h-1, amount: "12.50"}}
    timeout: 2s
    retry: {max_attempts: 3, initial_interval: 100ms, max_interval: 100ms}
    compensate: {uses: http, with: {connection: crm, method: POST, path: /refunds, json: {}}}
"""
BUSY = {"status": 429, "headers": {"Retry-After": "600"}}


async def between_attempts(client: Client, server: PaymentServer) -> str:
    """The id of a saga whose first attempt has ended, and whose second is due in ten minutes."""
    id = f"pay-{uuid.uuid4()}"
    await client.start("pay", {}, id=id)
    await until(lambda: server.ledger()["requests"])
    await asyncio.sleep(0.3)  # the response arrives
    return id


@pytest.mark.parametrize(
    ("fault", "ended", "undone"),
    [
        pytest.param(BUSY, ("FAILED", "failed", 1, "PENDING"), 0, id="refused"),
        pytest.param({**BUSY, "status": 503}, ("COMPENSATED", "unknown", None, "DONE"), 1, id="no definite word"),
    ],
)
async def test_a_step_that_was_refused_is_not_undone(
    temporal: TemporalServer, tmp_path: Path, fault: dict[str, Any], ended: tuple[str | int | None, ...], undone: int
) -> None:
    with PaymentServer() as server:
        crm = HttpService(name="crm", root=tmp_path, url_setting=server.url)
        project = make_project(tmp_path, {"pay": PAY}, [], address=temporal.address, options={"crm": crm})
        server.faults(fault)
        async with running_worker(project) as client:
            id = await between_attempts(client, server)
            [waiting] = (await client.show(id))["steps"]
            assert (waiting["attempts"], waiting["error"]["type"]) == (1, "HttpStatus")
            due = datetime.fromisoformat(waiting["next_attempt_at"]) - datetime.now(UTC)
            assert 500 < due.total_seconds() < 600
            assert await client.cancel(id, reason="a test", who="anna") == "accepted"
            story = await finished(client, id)
        [charge] = story["steps"]
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
        compensation = charge["compensation"]["state"]
        assert (charge["state"], charge["outcome"], charge["attempts"], compensation) == ended
        assert len(server.ledger()["undone"]) == undone


async def test_the_attempts_of_the_saga_and_those_of_temporal_are_counted_together(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    crm = HttpService(name="crm", root=tmp_path, url_setting=server.url)
    project = make_project(tmp_path, {"pay": PAY}, [], address=temporal.address, options={"crm": crm})
    server.faults({"status": 429, "headers": {"Retry-After": "1"}}, {"status": 503}, {"status": 429}, {"status": 201})
    async with running_worker(project) as client:
        story = await finished(client, (await client.start("pay", {}, id=f"pay-{uuid.uuid4()}")).id)
    [charge] = story["steps"]
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "failed")
    assert (charge["outcome"], charge["attempts"]) == ("unknown", 3)
