"""A stopped relay ends, whatever does not answer, and at every point of a batch; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.concurrency import end_tasks
from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_activities.messaging.outbox import event_row
from saga_workers.relay.relay_process import run_relay
from saga_workers.runtime.wakeup import Wakeup
from sagas.errors import SagaError
from sagas.settings import Settings, SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker, BrokerProcess
from tests.helpers.new_databases import new_mariadb_database
from tests.helpers.sampling import scaled
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.relay.relay_environment import INSERT, OutboxEnvironment, events

INSERT_ON_MARIADB = INSERT.replace("%%", "%").replace("%(", ":").replace(")s", "")


@pytest.fixture
async def mariadb_engine(mariadb_server: DatabaseServer) -> AsyncIterator[AsyncEngine]:
    engine = open_engine("shop", await new_mariadb_database(mariadb_server), 4)
    await create_tables(engine)
    yield engine
    await engine.dispose()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "kafka")
    broker.start()
    yield broker
    broker.kill()


async def test_polls_end_although_a_connection_opens_at_that_time(
    mariadb_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver opens it in `asyncio.wait_for`, which loses a cancellation that arrives together with its result."""
    loop, endings = asyncio.get_running_loop(), []
    polls = Wakeup(mariadb_engine)
    polling = asyncio.create_task(polls.run_forever())
    waiting = asyncio.create_task(polls.wait(0, "select 0 where 0 = 1"))
    opens = loop.create_connection

    async def opened(*args: Any, **options: Any) -> Any:
        connection = await opens(*args, **options)
        endings.append(loop.create_task(end_tasks([polling])))
        return connection

    await mariadb_engine.dispose()
    monkeypatch.setattr(loop, "create_connection", opened)
    done, _ = await asyncio.wait({polling}, timeout=30)
    assert done, "the polls go on"
    await asyncio.gather(*endings)
    await end_tasks([waiting])


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("silent", ["Kafka", "the database of shop"])
async def test_a_stop_names_what_does_not_answer(
    silent: str, postgres_server: DatabaseServer, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    env = OutboxEnvironment(postgres_server, own_broker, tmp_path, transaction_timeout=6.0)
    await env.make_tables()
    topic = env.broker.create_topic()
    stop = asyncio.Event()
    relay = asyncio.create_task(run_relay(env.settings, stop=stop, grace=timedelta(seconds=1)))
    env.emit(*events(topic, 100))
    await env.all_published()
    with closing(env.connect()) as blocker:
        if silent == "Kafka":
            own_broker.freeze()
            env.emit(*events(topic, 100, start=100))
            await asyncio.sleep(1)
        else:
            blocker.execute("begin")
            blocker.execute("lock table saga_relay_progress in share mode")  # it can be read, and not be written
            env.emit(*events(topic, 100, start=100))
            await until_in_thread(lambda: len(own_broker.read_committed(topic)) > 100)
        began = time.monotonic()
        stop.set()
        with pytest.raises(
            SagaError, match=f"^{silent} did not answer within 1 s after the stop; the next relay finds"
        ):
            await relay
        assert time.monotonic() - began < 20
    own_broker.thaw()
    async with env.relaying():
        await env.all_published()
    await asyncio.to_thread(env.check, topic)


async def test_a_stop_at_every_point_of_a_batch(mariadb_engine: AsyncEngine, kafka: Broker, tmp_path: Path) -> None:
    topic, stops = kafka.create_topic(partitions=2), scaled(7, 20)
    url = mariadb_engine.url.render_as_string(hide_password=False)
    connection = SqlConnection.model_validate({"name": "shop", "root": tmp_path, "url": url})
    settings = Settings(root=tmp_path, connections={"shop": connection}, kafka=kafka.settings(outbox="shop"))
    for number in range(stops):
        await emit(mariadb_engine, topic, 50, start=50 * number)
        stop = asyncio.Event()
        relay = asyncio.create_task(run_relay(settings, stop=stop, grace=timedelta(seconds=20)))
        await asyncio.sleep(2.0 * number / stops)
        stop.set()
        await relay
    await run_relay(settings, once=True)
    async with mariadb_engine.connect() as database:
        statuses = (await database.execute(text("select status, count(*) from saga_outbox group by status"))).all()
    assert [tuple(row) for row in statuses] == [("PUBLISHED", 50 * stops)]
    numbers = [record.json() for record in await asyncio.to_thread(kafka.read_committed, topic)]
    assert sorted(numbers) == list(range(50 * stops))


async def emit(engine: AsyncEngine, topic: str, count: int, start: int) -> None:
    rows = [
        {**event_row(event), "saga_id": f"s{uuid.uuid4().hex}", "step": "pay", "at": time.time()}
        for event in events(topic, count, start=start)
    ]
    async with engine.connect() as database:
        await database.execute(text(INSERT_ON_MARIADB), rows)
