"""A rejection after an attempt without an answer: the first request may be in progress, and be booked later."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from sagas import Rejected, Step, action
from sagas.settings import HttpService
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer

BOOK = """
saga: book
steps:
  - id: charge
    uses: http
    with: {connection: crm, method: POST, path: /charges, json: {account: h-1, amount: "12.50"}}
    timeout: 2s
    retry: {max_attempts: 3, initial_interval: 100ms}
    compensate: {uses: http, with: {connection: crm, method: POST, path: /refunds, json: {}}}
"""
SLOW = {"delay_before": 4.0}
IN_PROGRESS = {"status": 409, "body": {"error": "request in progress"}}
PROBE = """    probe:
      uses: http
      with: {connection: crm, path: /charges, query: {key: "${{ step.key }}"}}
      done: response.status == 200
      absent: response.status == 404
    settle: 1s
"""


async def run(
    temporal: TemporalServer, server: PaymentServer, folder: Path, text: str = BOOK, **options: Any
) -> dict[str, Any]:
    crm = HttpService(name="crm", root=folder, url_setting=server.url, **options)
    project = make_project(folder, {"book": text}, [], address=temporal.address, options={"crm": crm})
    async with running_worker(project) as client:
        return await finished(client, (await client.start("book", {}, id=f"doubt-{uuid.uuid4()}")).id)


@pytest.mark.slow
async def test_it_is_retried_until_the_booking_is_there(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    server.faults(SLOW, {**IN_PROGRESS, "headers": {"Retry-After": "3"}})
    story = await run(temporal, server, tmp_path)
    assert (story["state"], story["steps"][0]["attempts"]) == ("COMPLETED", 3)
    assert server.ledger()["balance"] == "12.50"


async def test_without_an_answer_in_time_it_is_undone(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    server.faults(SLOW, IN_PROGRESS, IN_PROGRESS)
    story = await run(temporal, server, tmp_path)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert (story["steps"][0]["state"], story["steps"][0]["outcome"]) == ("COMPENSATED", "unknown")
    await asyncio.sleep(4)  # the first request arrives at the books
    ledger = server.ledger()
    assert (ledger["balance"], ledger["undone"]) == ("0", [f"{story['id']}/charge"])


async def test_the_probe_is_asked(temporal: TemporalServer, server: PaymentServer, tmp_path: Path) -> None:
    """The probe finds the booking that was made after the last attempt."""
    server.faults({"delay_after": 4.0}, IN_PROGRESS, IN_PROGRESS)
    story = await run(temporal, server, tmp_path, BOOK + PROBE)
    assert (story["state"], story["steps"][0]["outcome"]) == ("COMPLETED", "done")
    assert server.ledger()["balance"] == "12.50"


@pytest.mark.slow
async def test_the_probe_is_not_believed_while_the_request_may_be_in_progress(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    """The service works on the request long after the last attempt, as it says itself, and books in the end."""
    server.faults({"delay_before": 20.0}, IN_PROGRESS, IN_PROGRESS)
    usual = (BOOK + PROBE).replace("    settle: 1s\n", "").replace("timeout: 2s", "timeout: 4s")
    story = await run(temporal, server, tmp_path, usual)
    assert (story["state"], story["steps"][0]["outcome"]) == ("COMPLETED", "done")
    assert server.ledger()["balance"] == "12.50"


@pytest.mark.parametrize("where", ["connection", "step"])
async def test_a_participant_that_remembers_its_rejections_is_believed(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path, where: str
) -> None:
    server.faults({"drop": "before"}, {"status": 422, "body": {"error": "no"}})
    on_step = BOOK.replace("    timeout:", "    remembers_rejections: true\n    timeout:")
    text, options = (on_step, {}) if where == "step" else (BOOK, {"remembers_rejections": True})
    story = await run(temporal, server, tmp_path, text, **options)
    assert (story["state"], story["steps"][0]["attempts"]) == ("COMPENSATED", 2)
    assert (story["steps"][0]["state"], server.ledger()["undone"]) == ("REJECTED", [])


async def test_a_rejection_after_a_429_is_believed(temporal: TemporalServer, tmp_path: Path) -> None:
    """A request that was answered with 429 has had no effect."""
    with PaymentServer() as server:
        server.faults({"status": 429}, {"status": 422, "body": {"error": "no"}})
        story = await run(temporal, server, tmp_path)
        assert (story["steps"][0]["state"], story["steps"][0]["attempts"]) == ("REJECTED", 2)
        assert server.ledger()["undone"] == []


@pytest.mark.slow
async def test_an_undo_is_repeated_before_its_rejection_is_believed(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    text = BOOK + '  - {id: ship, uses: require, with: {that: "false", message: planned}}\n'
    server.faults({}, {"drop": "before"}, IN_PROGRESS)
    story = await run(temporal, server, tmp_path, text)
    assert (story["state"], story["steps"][0]["state"]) == ("COMPENSATED", "COMPENSATED")
    assert server.ledger()["balance"] == "0.00"


async def test_an_unguarded_python_action(temporal: TemporalServer, tmp_path: Path) -> None:
    calls: list[str] = []

    @action("hotel.book")
    async def book(step: Step) -> None:
        calls.append("book")
        if len(calls) == 1:
            raise OSError("no answer")
        raise Rejected("in progress")

    @action("hotel.cancel")
    async def cancel(step: Step) -> None:
        calls.append("cancel")

    text = (
        "saga: hotel\nsteps:\n  - {id: a, uses: hotel.book, compensate: hotel.cancel,"
        " retry: {max_attempts: 3, initial_interval: 100ms}}\n"
    )
    project = make_project(tmp_path, {"hotel": text}, [book, cancel], address=temporal.address)
    async with running_worker(project) as client:
        story = await finished(client, (await client.start("hotel", {}, id=f"doubt-{uuid.uuid4()}")).id)
    assert (story["state"], calls) == ("COMPENSATED", ["book", "book", "book", "cancel"])
