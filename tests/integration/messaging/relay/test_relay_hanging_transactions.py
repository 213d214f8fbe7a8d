"""A broker that starts again forgets the end of a transaction (KAFKA-20734): the relay finds and ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from saga_activities.kafka import record_codec
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.transactional_producer import TransactionalProducer
from saga_workers.relay.progress_record import ProgressRecord, encode_progress
from saga_workers.relay.publisher import progress_topic, transactional_id
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.lossy_broker import TIMEOUT, lose_an_end
from tests.integration.messaging.relay.relay_environment import OutboxWorld, events


@pytest_asyncio.fixture
async def world(postgres_server: DatabaseServer, forgetful: Broker, tmp_path: Path) -> AsyncIterator[OutboxWorld]:
    made = OutboxWorld(postgres_server, forgetful, tmp_path, transaction_timeout=TIMEOUT, batch=50)
    await made.make_tables()
    yield made
    made.close()


@pytest.mark.parametrize(
    "found",
    [
        "its progress record, and marked events",
        pytest.param("its progress record", marks=pytest.mark.slow),
        pytest.param("events alone", marks=pytest.mark.slow),
    ],
)
async def test_what_was_lost_is_ended_and_published_once(world: OutboxWorld, forgetful: Broker, found: str) -> None:
    topic = await asyncio.to_thread(forgetful.create_topic)
    ids = world.emit(*events(topic, 60, keys=1))
    sleeping = partial(write_and_sleep, world, topic, ids[:50], found != "events alone")
    await asyncio.to_thread(lose_an_end, forgetful, topic, sleeping)
    if "marked" in found:
        world.rows("update saga_outbox set status = 'PUBLISHED' where event_key = 'k0' and value::int < 50 returning 1")

    relay = await asyncio.to_thread(world.relay().start, 60.0)
    await world.all_published(120)
    await asyncio.to_thread(world.check, topic)
    assert world.statuses() == {"PUBLISHED": 60}
    log = relay.log.read_text()
    if found == "events alone":
        assert f"{topic}: what is left of an earlier transaction is ended" in log
    else:
        assert "of 50 events 0 can be read" in log


def write_and_sleep(world: OutboxWorld, topic: str, ids: list[str], progress: bool) -> None:
    """A batch that a relay has written when it falls asleep for ever, before the commit."""
    [(home, shards, shard)] = world.rows(
        "select home, shards, (select min(shard) from saga_outbox) from saga_outbox_home"
    )
    KafkaAdmin(world.kafka).ensure_topic(progress_topic(world.kafka, home), shards, cleanup_policy="compact")
    producer = TransactionalProducer(world.kafka, transactional_id(world.kafka, home, shard)).open()
    producer.begin(60.0)
    for number, id in enumerate(ids):
        record = record_codec.encode(str(number), id=id, type=topic, source="/lost", time=time.time(), key="k0")
        producer.produce(topic, record.value, record.key, record.headers)
    if progress:
        key, value = encode_progress(shard, ProgressRecord(1, ids))
        producer.produce(progress_topic(world.kafka, home), value, key, partition=shard)
    producer.flush()
