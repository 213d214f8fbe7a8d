"""Whatever is killed or does not answer: no enqueued row is lost, and none has an effect twice."""

from __future__ import annotations

import asyncio
import signal
import uuid
from functools import partial

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from sagas import enqueue, enqueue_signal
from tests.helpers.processes import RelayProcess, TemporalServer, WorkerProcess
from tests.helpers.waiting import until
from tests.integration.enqueued.conftest import Shop
from tests.integration.enqueued.killed_relay import POINTS, die_at

SAGAS = 12


@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_relay_loses_nothing_and_starts_nothing_twice(shop: Shop, point: str) -> None:
    async with AsyncSession(shop.engine) as session:
        for number in range(SAGAS):
            await enqueue(session, "checkout", {"product": f"p{number}"}, id=f"{shop.mark}-{number}")
            await enqueue_signal(session, f"{shop.mark}-{number}", "paid", number)
        await session.commit()
    for count in (1, 3):
        relay = RelayProcess("relay", shop.folder, first=partial(die_at, point, count))
        relay.launch()
        # It may deliver everything without passing the point so often.
        await until(lambda relay=relay: _is_dead_or_idle(relay, shop))
        relay.kill()
        assert relay.exit_code() == -signal.SIGKILL, relay.tail()
    await shop.deliver()

    assert await shop.rows() == []
    started = await shop.inputs(SAGAS)
    assert started == {f"{shop.mark}-{n}": {"product": f"p{n}", "quantity": 1} for n in range(SAGAS)}
    assert {name for n in range(SAGAS) for name in await shop.history(f"{shop.mark}-{n}")} == {"paid"}


async def _is_dead_or_idle(relay: RelayProcess, shop: Shop) -> bool:
    return not relay.running or await shop.is_empty()


async def test_rows_wait_with_the_reason_while_temporal_is_down(shop: Shop, own_temporal: TemporalServer) -> None:
    await shop.move_to(own_temporal)
    own_temporal.kill()
    async with shop.relay():
        async with AsyncSession(shop.engine) as session:
            await enqueue(session, "checkout", {"product": "apple"}, id="a")
            await enqueue_signal(session, "a", "paid")
            await session.commit()
        await until(lambda: _reasons(shop, 1))
        assert [row[:2] for row in await shop.rows()] == [("NEW", "a"), ("NEW", "a")]
        own_temporal.start()
        await until(shop.is_empty)

    assert list(await shop.inputs(1)) == ["a"]
    assert await shop.history("a") == ["paid"]


async def _reasons(shop: Shop, count: int) -> list[str]:
    reasons = [reason for _, _, reason in await shop.rows() if reason]
    return reasons if len(reasons) >= count else []


async def test_a_second_relay_takes_over_when_the_first_is_killed(shop: Shop) -> None:
    first = RelayProcess("relay", shop.folder)
    first.launch()
    await until(lambda: shop.sql("select 1 from saga_relay_lease where shard = -1 and owner <> ''"))
    async with shop.relay():
        first.kill()
        async with AsyncSession(shop.engine) as session:
            await enqueue(session, "checkout", {"product": "apple"}, id=shop.mark)
            await session.commit()
        await until(shop.is_empty)
    assert list(await shop.inputs(1)) == [shop.mark]


async def test_broken_connections_delay_rows_and_lose_none(shop: Shop) -> None:
    url = shop.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with shop.relay():
        for number in range(10):
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                await enqueue(connection, "checkout", {"product": "apple"}, id=f"{shop.mark}-{number}")
                await connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )
        await until(lambda: _is_empty(url))
    assert len(await shop.inputs(10)) == 10


async def _is_empty(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute("select 1 from saga_enqueued")
        return await cursor.fetchone() is None


@pytest.fixture
def enqueue_settings(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "")


@pytest.mark.parametrize("enqueue_settings", ['delivered_by = "worker"'], indirect=True)
async def test_the_worker_delivers_by_a_setting(shop: Shop) -> None:
    mark = uuid.uuid4().hex
    worker = WorkerProcess("worker", shop.folder)
    worker.launch()
    try:
        async with AsyncSession(shop.engine) as session:
            await enqueue(session, "checkout", {"product": "apple"}, id=mark)
            await enqueue_signal(session, mark, "paid")
            await session.commit()
        await until(shop.is_empty)
        await until(lambda: shop.is_completed(mark))
        assert await asyncio.to_thread(worker.stop) == 0
    finally:
        worker.kill()


@pytest.mark.parametrize("enqueue_settings", ['[enqueue.sagas]\nshop = ["checkout"]\n'])
async def test_a_connection_starts_and_signals_the_sagas_that_are_named_for_it(shop: Shop) -> None:
    order = f"order-{shop.mark}"
    await shop.client.start("order", {"number": shop.mark})
    async with AsyncSession(shop.engine) as session:
        await enqueue(session, "checkout", {"product": "apple"}, id=shop.mark)
        await enqueue_signal(session, shop.mark, "paid")
        await enqueue(session, "noted", {"number": 1}, id=f"{shop.mark}-noted")
        await enqueue_signal(session, order, "paid")
        await enqueue_signal(session, order, "paid", saga="checkout")
        await enqueue_signal(session, order, "paid", saga="order")
        await session.commit()
    await shop.deliver()

    refused = "[enqueue.sagas] of saga.toml does not name '{}' for shop"
    assert await shop.rows() == [
        ("REFUSED", f"{shop.mark}-noted", refused.format("noted")),
        *[("REFUSED", order, refused.format("order"))] * 3,
    ]
    assert sorted(await shop.inputs(2)) == sorted([shop.mark, order])
    assert (await shop.history(shop.mark), await shop.history(order)) == (["paid"], [])
