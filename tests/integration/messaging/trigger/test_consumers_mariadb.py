"""A consumer on MariaDB, as a process: effect, inbox row and event are atomic, despite kills and duplicates."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.relay.relay_process import run_relay
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer, mariadb
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TriggerProcess
from tests.helpers.waiting import until, until_in_thread
from tests.integration.messaging.trigger.trigger_environment import (
    committed,
    fresh,
    fully_consumed,
    write_project,
)

MODULE = """
from __future__ import annotations

from sagas import Message, Rejected, consumer

@consumer("{topic}", connection="shop", name="note")
async def note(message: Message) -> None:
    number = message.value
    insert = "insert into effect (what, number) values (:what, :number)"
    await message.sql.execute(insert, what=message.key, number=number)
    message.emit("{noted}", key=message.key, value=number)
    if number % 10 == 3 and message.attempt == 1:
        raise ValueError("not at the first go")
    if number % 10 == 7:
        raise Rejected("sevens are not taken")
"""

TOTAL = 120


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[DatabaseServer]:
    with mariadb() as server:
        yield server


@pytest_asyncio.fixture
async def shop(mariadb_server: DatabaseServer) -> AsyncIterator[AsyncEngine]:
    name = f"s{uuid.uuid4().hex[:12]}"
    admin = open_engine("admin", mariadb_server.url(), 1)
    await ask(admin, f"create database {name}")
    await admin.dispose()
    engine = open_engine("shop", mariadb_server.url(name), 4)
    await create_tables(engine)
    await ask(engine, "create table effect (id bigint auto_increment primary key, what text, number int)")
    yield engine
    await engine.dispose()


async def ask(engine: AsyncEngine, statement: str) -> list[Any]:
    async with engine.connect() as connection:
        result = await connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


@pytest.mark.slow
async def test_each_effect_happens_once_despite_kills_and_duplicates(
    kafka: Broker, mariadb_server: DatabaseServer, shop: AsyncEngine, tmp_path: Path
) -> None:
    topic, noted, prefix = kafka.create_topic(partitions=2), kafka.create_topic(), fresh("p")
    url = mariadb_server.url(str(shop.url.database))
    module = MODULE.format(topic=topic, noted=noted)
    folder = write_project(
        tmp_path / "project", kafka, temporal="127.0.0.1:1", database=url, prefix=prefix, module=module
    )
    process, group, gaps = TriggerProcess("trigger", folder).start(), f"{prefix}-consumer-note", 0
    try:
        for round in range(3):
            for number in range(round * 40, round * 40 + 40):
                headers = {"ce_id": f"m-{number}", "ce_source": "/till"}
                kafka.produce(topic, number, number, key=f"k{number % 4}", headers=headers)

            async def under_way(least: int = round * 30 + 5) -> bool:
                return (await ask(shop, "select count(*) from effect"))[0][0] >= least

            await until(under_way, pause=0.02)  # early enough for a kill before the offsets are committed
            process.kill()
            [(entered,)] = await ask(shop, "select count(*) from saga_inbox")
            offsets = await asyncio.to_thread(committed, kafka, group, topic)
            gaps += entered * 2 > sum(offsets.values())
            if round == 1:
                mariadb_server.kill()
                mariadb_server.start()
                await shop.dispose()  # our own connections are gone as well
            process.start()
        await until_in_thread(lambda: fully_consumed(kafka, group, topic))
    finally:
        process.kill()
    assert gaps, "no kill hit the gap between the inbox and the offset"
    wanted = Counter(number for number in range(TOTAL) if number % 10 != 7)
    assert Counter(number for (number,) in await ask(shop, "select number from effect")) == wanted
    assert dict(await ask(shop, "select status, count(*) from saga_inbox group by status")) == {
        "DONE": sum(wanted.values()),
        "REJECTED": TOTAL - sum(wanted.values()),
    }
    await run_relay(load_settings(folder), once=True)
    events = await asyncio.to_thread(kafka.read_committed, noted)
    assert Counter(event.json() for event in events) == wanted
