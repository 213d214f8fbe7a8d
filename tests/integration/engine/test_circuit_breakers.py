"""The circuit breaker of a connection holds its steps while the participant is down, and closes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities import circuit_breakers
from saga_activities.ledger.circuit_breakers import OpenBreaker, close_breaker_of, insert_breaker, read_breakers
from saga_activities.ledger.pauses import end_pause
from saga_workers.client import Client
from saga_workers.views.reported_reasons import reported_reasons
from sagas.protocol.standing_pause import HoldKind
from sagas.settings import HttpService
from sagas.settings.circuit_breaker import CircuitBreaker
from tests.helpers.free_ports import free_port
from tests.helpers.local_worker import finished
from tests.helpers.payment_server import PaymentServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, row
from tests.integration.engine.pausing import CHARGE, asked_again, held, pause

SAGAS = 10
MINIMUM = 5
PAY = (
    """
    saga: pay
    steps:
      - {id: x, uses: work, compensate: unwork}
"""
    + CHARGE
)


@pytest.fixture
def crm(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PaymentServer]:
    """A service that keeps its port, with a circuit breaker."""
    monkeypatch.setattr(circuit_breakers, "MAX_AGE", 0.0)
    server = PaymentServer("--port", str(free_port()))
    with server:
        env.connections["crm"] = HttpService(
            name="crm",
            root=tmp_path,
            url_setting=server.url,
            circuit_breaker=CircuitBreaker(minimum=MINIMUM, probe_every=0.5),
        )
        yield server


async def test_no_saga_is_compensated_because_the_participant_was_down(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    async with env.serving(PAY) as client:
        crm.stop()
        sagas = [await begin(client, "pay") for _ in range(SAGAS)]
        await until(lambda: read_breakers(orders))
        for saga in (sagas[0], sagas[-1]):
            await asked_again(client, saga, 2)
        view = await held(client, sagas[-1], "charge")
        assert view.paused is not None
        assert (view.paused.kind, view.paused.name) == ("circuit_breaker", "crm")
        assert "circuit breaker of the connection crm" in (view.pause_text or "")
        crm.start()
        stories = await asyncio.gather(*(finished(client, saga) for saga in sagas))
    assert {story["state"] for story in stories} == {"COMPLETED"}
    assert await read_breakers(orders) == []
    charges = crm.ledger()["charges"]
    assert len(charges) == SAGAS


SLOW = """
    saga: slow
    steps:
      - id: charge
        uses: http
        with: {connection: crm, method: POST, path: /charges, json: {account: a, amount: 1}, result: response.json.id}
        timeout: 1s
        retry: {max_attempts: 5, initial_interval: 10ms, max_interval: 20ms}
        compensate:
          uses: http
          with: {connection: crm, method: POST, path: /refunds, json: {charge: "${{ steps.charge.result }}"}}
"""


async def test_attempts_that_fail_while_it_is_open_are_not_used_up(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    """The service answers 503, or too late, more often than the step may make attempts."""
    refuses, hangs = {"status": 503}, {"delay_after": 2.0}
    crm.faults(refuses, hangs, refuses, hangs, refuses, refuses, hangs)
    async with env.serving(SLOW) as client:
        story = await finished(client, await begin(client, "slow"))
    charge = row(story, "charge")
    assert (story["state"], charge["attempts"]) == ("COMPLETED", 8)
    assert len(crm.ledger()["requests"]) == 8
    assert len(crm.ledger()["charges"]) == 1
    assert await read_breakers(orders) == []


async def test_a_saga_that_waits_names_the_last_answer_that_it_had(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    service = env.connections["crm"]
    breaker = CircuitBreaker(minimum=2, probe_every=3600.0)
    env.connections["crm"] = service.model_copy(update={"circuit_breaker": breaker})
    crm.faults({"status": 503}, {"status": 503})
    async with env.serving(SLOW) as client:
        saga = await begin(client, "slow")
        view = await held(client, saga, "charge")
        assert "the last answer to charge was: " in (view.pause_text or "")
        assert "503" in (view.pause_text or "").partition("the last answer to charge was: ")[2]
        assert any("the last answer to charge was: " in reason for reason in reported_reasons(view))
        other = await held(client, await begin(client, "slow"), "charge")
        assert (other.pause_text or "").endswith("finds out whether it answers again"), "it has had no answer"
        assert await close_breaker_of(orders, "crm")
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_a_step_that_may_be_made_once_is_undone_after_a_half_open_attempt_without_an_answer(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    once = SLOW.replace("saga: slow", "saga: once").replace("timeout: 1s", "timeout: 1s\n        idempotent: false")
    crm.faults({"delay_after": 2.0})
    await insert_breaker(orders, OpenBreaker("crm", datetime.now(UTC), "it failed", due_in=0.0))
    async with env.serving(once) as client:
        story = await finished(client, await begin(client, "once"))
    assert (story["state"], story["reason"]["kind"], row(story, "charge")["attempts"]) == ("COMPENSATED", "unknown", 1)


async def test_a_deadline_counts_and_a_pause_by_an_operator_comes_first(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    limited = PAY.replace("saga: pay", "saga: limited\n    deadline: 3s")
    opened = OpenBreaker("crm", datetime.now(UTC), "5 of the last 5 attempts failed", due_in=3600.0)
    await insert_breaker(orders, opened)
    async with env.serving(PAY, limited) as client:
        late, saga = await begin(client, "limited"), await begin(client, "pay")
        assert (await held(client, saga, "charge")).paused == (await held(client, late, "charge")).paused
        await pause(orders, "connection", "crm")
        await until(lambda: is_held_by(client, saga, "connection"))
        await end_pause(orders, "connection", "crm")
        await until(lambda: is_held_by(client, saga, "circuit_breaker"))
        story = await finished(client, late)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "deadline")
        assert crm.ledger()["requests"] == []
        assert await close_breaker_of(orders, "crm")
        story = await finished(client, saga)
    assert (story["state"], row(story, "charge")["attempts"]) == ("COMPLETED", 1)


ANYWHERE = """
    saga: anywhere
    input: {type: object, properties: {url: {type: string}}}
    steps:
      - id: get
        uses: http
        with: {connection: crm, url: "${{ input.url }}"}
        effect: none
        retry: {max_attempts: 10, initial_interval: 10ms, max_interval: 10ms}
"""


@pytest.mark.slow
async def test_a_host_that_an_input_names_neither_opens_it_nor_is_held(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    service = env.connections["crm"]
    assert isinstance(service, HttpService)
    env.connections["crm"] = service.model_copy(update={"allowed_hosts": ("127.0.0.1",)})
    async with env.serving(PAY, ANYWHERE) as client:
        failing = await begin(client, "anywhere", {"url": f"http://127.0.0.1:{free_port()}/"})
        assert row(await finished(client, failing), "get")["attempts"] == 10
        assert await read_breakers(orders) == []
        assert (await finished(client, await begin(client, "pay")))["state"] == "COMPLETED"
        await insert_breaker(orders, OpenBreaker("crm", datetime.now(UTC), "it failed", due_in=3600.0))
        with PaymentServer() as other:
            answering = await begin(client, "anywhere", {"url": f"{other.url}/echo"})
            story = await finished(client, answering)
        assert row(story, "get")["attempts"] == 1
        assert await close_breaker_of(orders, "crm")


async def is_held_by(client: Client, saga_id: str, kind: HoldKind) -> bool:
    view = await client.view(saga_id)
    return view.paused is not None and view.paused.kind == kind
