"""Polls for new events: idle shards wake soon, and whatever happens to the connection of the polls."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.connections import open_engine
from saga_workers.relay.readers.window_reader import WindowReader
from saga_workers.runtime import wakeup
from saga_workers.runtime.wakeup import Wakeup
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import LIMIT, until
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events


@pytest_asyncio.fixture
async def env(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxEnvironment]:
    made = OutboxEnvironment(postgres_server, kafka, tmp_path)
    await made.make_tables()
    yield made
    made.close()


@pytest_asyncio.fixture
async def shards(env: OutboxEnvironment) -> AsyncIterator[Wakeup]:
    engine = open_engine("shop", env.url, 4)
    made = Wakeup(engine)
    polling = asyncio.create_task(made.run_forever())
    yield made
    polling.cancel()
    ended, _ = await asyncio.wait({polling}, timeout=LIMIT)
    assert ended, "a stop does not end the thread's polls"
    await engine.dispose()


async def all_shards(shards: Wakeup) -> None:
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*(wait(shards, number) for number in range(4)))


async def wait(shards: Wakeup, number: int) -> None:
    await shards.wait(number, WindowReader(create_async_engine("postgresql+psycopg://"), number).waiting_query())


async def test_an_idle_shard_wakes_when_an_event_is_committed(
    env: OutboxEnvironment, shards: Wakeup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "saga.relay")
    first = asyncio.create_task(all_shards(shards))
    await _backend(env)
    assert not first.done()
    env.emit(*events("wakeup", 40, keys=40))  # some for each shard
    await first
    await all_shards(shards)  # at once: nobody has published them
    assert "not polled" not in caplog.text


async def test_a_shard_that_begins_to_wait_later_is_polled_too(env: OutboxEnvironment, shards: Wakeup) -> None:
    waits = [asyncio.create_task(wait(shards, 0))]
    await _backend(env, 0)
    waits += [asyncio.create_task(wait(shards, number)) for number in (1, 2, 3)]
    await _backend(env)
    env.emit(*events("wakeup", 40, keys=40))
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*waits)


async def test_shards_wake_when_the_connection_of_the_polls_is_lost(env: OutboxEnvironment, shards: Wakeup) -> None:
    waiting = asyncio.create_task(all_shards(shards))
    [(pid,)] = await _backend(env)
    env.rows(f"select pg_terminate_backend({pid})")
    await waiting
    again = asyncio.create_task(all_shards(shards))  # over a new connection
    await _backend(env)
    assert not again.done()
    env.emit(*events("wakeup", 40, keys=40))
    await again


async def test_shards_wake_when_the_server_does_not_answer(
    env: OutboxEnvironment, shards: Wakeup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "POLL_TIMEOUT", 0.4)
    waiting = asyncio.create_task(all_shards(shards))
    [(pid,)] = await _backend(env)
    with _frozen(pid):
        await waiting  # each meets the database itself now


async def _backend(env: OutboxEnvironment, *shards: int) -> list[tuple[int]]:
    """The process of the server in which these shards are polled, by default all of them, once it is there."""
    polled = "".join(f"AS new_{shard}%" for shard in shards or (0, 2))
    query = f"select pid from pg_stat_activity where datname = current_database() and query like '%{polled}'"
    return await until(lambda: env.rows(f"{query} and pid <> pg_backend_pid()"))


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
