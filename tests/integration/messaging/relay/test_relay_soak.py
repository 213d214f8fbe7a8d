"""Relays are killed repeatedly while events are written: nothing is lost, nothing is duplicated.

The same without the progress record must fail, which validates the test.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import LIMIT
from tests.integration.messaging.relay.lossy_relay import forget
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events

SLOW_RECORDS = """
create function slow_record() returns trigger language plpgsql as $$ begin perform pg_sleep(0.05); return null; end $$;
create trigger slow_record after update of done on saga_relay_progress for each row execute function slow_record()
"""
"""The time between a commit in Kafka and its record in the database becomes a good part of all: kills hit it."""


@pytest_asyncio.fixture
async def env(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxEnvironment]:
    made = OutboxEnvironment(postgres_server, kafka, tmp_path, batch=40)
    await made.make_tables()
    with made.connect() as connection:
        for statement in SLOW_RECORDS.split(";\n"):
            connection.execute(statement)
    yield made
    made.close()


class Writer(threading.Thread):
    """Writes numbered events, in order per key, until it is stopped."""

    def __init__(self, env: OutboxEnvironment, topic: str) -> None:
        super().__init__(daemon=True)
        self._world, self._topic = env, topic
        self._stop_now = threading.Event()
        self.written = 0

    def run(self) -> None:
        with self._world.connect() as connection:
            while not self._stop_now.wait(0.03):
                with connection.transaction():
                    self._world.insert(connection, *events(self._topic, 20, keys=16, start=self.written))
                self.written += 20

    def end(self) -> None:
        self._stop_now.set()
        self.join()


def soak(env: OutboxEnvironment, kills: int, first: Callable[[], None] | None = None) -> str:
    """Kill ``kills`` relays in the midst of their work; the last one may end it. The topic of the events."""
    topic = env.broker.create_topic(partitions=2)
    relay, writer = env.relay(first=first), Writer(env, topic)
    try:
        writer.start()
        for _ in range(kills):
            relay.launch()
            before = len(env.rows("select 1 from saga_outbox where status = 'PUBLISHED'"))
            end = time.monotonic() + LIMIT
            while len(env.rows("select 1 from saga_outbox where status = 'PUBLISHED'")) == before:
                assert time.monotonic() < end, "the relay publishes nothing"
                time.sleep(0.02)
            time.sleep(random.uniform(0.0, 0.4))
            relay.kill()
        writer.end()
        relay.launch()
        end = time.monotonic() + LIMIT
        while env.statuses()["NEW"]:
            assert time.monotonic() < end, f"not all is published: {env.statuses()}"
            time.sleep(0.1)
        assert env.statuses() == {"PUBLISHED": writer.written}
        time.sleep(0.5)
    finally:
        writer.end()
        relay.kill()
    return topic


@pytest.mark.slow
def test_twenty_kills_lose_and_duplicate_nothing(env: OutboxEnvironment) -> None:
    env.check(soak(env, 20))


@pytest.mark.slow
def test_without_the_progress_record_events_are_duplicated(env: OutboxEnvironment) -> None:
    topic = soak(env, 12, forget)
    seen = Counter(record.headers["ce_id"] for record in env.broker.read_committed(topic))
    assert any(times > 1 for times in seen.values()), "the kills hit no moment that matters"


@pytest.mark.slow
def test_two_hundred_kills_lose_and_duplicate_nothing(env: OutboxEnvironment) -> None:
    env.check(soak(env, 200))
