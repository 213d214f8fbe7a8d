"""A paused connection holds each kind of step that uses it: HTTP calls, commands, and events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.pauses import end_pause
from sagas.settings import HttpService
from tests.helpers.local_worker import finished
from tests.helpers.payment_server import PaymentServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin
from tests.integration.engine.pausing import CHARGE, asked_again, held, pause

PAY = (
    """
    saga: pay
    steps:
"""
    + CHARGE
    + """
      - {id: x, uses: work, effect: none}
      - {id: approval, uses: wait, with: {signal: approve}}
"""
)
COMMAND = """
    saga: command
    steps:
      - id: reserve
        uses: kafka.request
        with: {topic: commands, value: 1}
        retry: {max_attempts: 2, initial_interval: 10ms}
        compensate: kafka.request
"""
TELL = """
    saga: tell
    steps:
      - {id: x, uses: work, effect: none}
      - {id: news, uses: outbox.emit, pivot: true, with: {connection: shop, topic: news, value: 1}}
"""


@pytest.fixture
def crm(env: Environment, tmp_path: Path) -> Iterator[PaymentServer]:
    with PaymentServer() as server:
        env.connections["crm"] = HttpService(name="crm", root=tmp_path, url_setting=server.url)
        yield server


async def rows(env: Environment, table: str) -> int:
    async with env.engine.connect() as connection:
        return (await connection.execute(text(f"select count(*) from {table}"))).scalar_one()


async def test_the_calls_of_an_http_connection_wait_in_both_directions(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    async with env.serving(PAY) as client:
        await pause(orders, "connection", "crm")
        saga = await begin(client, "pay")
        await asked_again(client, saga, 3)
        await held(client, saga, "charge")
        assert crm.ledger()["requests"] == []
        await end_pause(orders, "connection", "crm")
        await until(lambda: env.log() == ["do x"])
        await pause(orders, "connection", "crm")
        await client.cancel(saga, reason="enough")
        await held(client, saga, "charge")
        assert [request["path"] for request in crm.ledger()["requests"]] == ["/charges"]
        await end_pause(orders, "connection", "crm")
        story = await finished(client, saga)
    assert story["state"] == "COMPENSATED"
    assert [request["path"] for request in crm.ledger()["requests"]] == ["/charges", "/refunds"]
    assert (story["steps"][0]["attempts"], story["steps"][0]["compensation"]["attempts"]) == (1, 1)


async def test_a_paused_sql_connection_does_not_hold_http_calls(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    async with env.serving(PAY) as client:
        await pause(orders, "connection", "shop")
        saga = await begin(client, "pay")
        await client.signal(saga, "approve")
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_a_command_waits_for_the_connection_of_its_outbox(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(COMMAND) as client:
        await pause(orders, "connection", "shop")
        saga = await begin(client, "command")
        await asked_again(client, saga, 3)
        await held(client, saga, "reserve")
        assert (await rows(env, "saga_request"), await rows(env, "saga_outbox")) == (0, 0)
        await end_pause(orders, "connection", "shop")

        async def is_sent() -> bool:
            return (await rows(env, "saga_request"), await rows(env, "saga_outbox")) == (1, 1)

        await until(is_sent)
        await pause(orders, "connection", "shop")
        await client.cancel(saga, reason="enough")
        await held(client, saga, "reserve")
        assert await rows(env, "saga_outbox") == 1


async def test_an_event_waits_for_the_connection_of_its_outbox(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(TELL) as client:
        await pause(orders, "connection", "shop")
        saga = await begin(client, "tell")
        await held(client, saga, "news")
        assert (env.log(), await rows(env, "saga_outbox")) == (["do x"], 0)
        await end_pause(orders, "connection", "shop")
        assert (await finished(client, saga))["state"] == "COMPLETED"
        assert await rows(env, "saga_outbox") == 1


async def test_a_saga_that_is_paused_by_itself_names_no_pause_that_has_ended(
    env: Environment, orders: AsyncEngine, crm: PaymentServer
) -> None:
    async with env.serving(PAY) as client:
        await pause(orders, "connection", "crm")
        saga = await begin(client, "pay")
        await asked_again(client, saga, 1)
        await client.pause(saga, reason="to look at it")

        async def is_held_by_itself() -> bool:
            paused = (await client.view(saga)).paused
            return paused is not None and paused.kind is None and "charge" in paused.held

        await until(is_held_by_itself)
        await end_pause(orders, "connection", "crm")
        view = await client.view(saga)
        assert view.steps[0].error is None, view.steps[0]
        await client.resume(saga)
        await client.signal(saga, "approve")
        assert (await finished(client, saga))["state"] == "COMPLETED"
