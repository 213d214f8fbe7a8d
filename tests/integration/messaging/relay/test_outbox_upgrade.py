"""An outbox of version 6 on PostgreSQL: what waits in it is published once, whoever published the rest."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from saga_activities.kafka import record_codec
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.transactional_producer import TransactionalProducer
from saga_workers.relay.progress_record import ProgressRecord, encode_progress
from saga_workers.relay.publisher import progress_topic, transactional_id
from saga_workers.relay.relay_process import run_relay
from sagas.actions.step import Event
from sagas.errors import UsageError
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.outbox_version_6 import VERSION_6
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events


@pytest_asyncio.fixture
async def env(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxEnvironment]:
    made = OutboxEnvironment(postgres_server, kafka, tmp_path, batch=10)
    await made.make_tables()
    with made.connect() as connection:
        for statement in VERSION_6:
            connection.execute(statement)
    yield made
    made.close()


async def test_what_waits_is_published_once_after_the_upgrade(env: OutboxEnvironment) -> None:
    topic = await asyncio.to_thread(env.broker.create_topic)
    ids = env.emit(*events(topic, 100, keys=1))
    [held] = env.emit(Event(topic, "held", 0, hold=True))
    with env.connect() as connection:
        mark = "update saga_outbox set status = 'PUBLISHED', published_at = %s where event_id = any(%s)"
        connection.execute(mark, (time.time(), ids[:40]))
    await asyncio.to_thread(_publish_as_version_6, env, topic, ids[:50])  # ten of them are not marked yet
    with pytest.raises(UsageError, match="has no outbox, or an outdated one"):
        await run_relay(env.settings, connection="shop", once=True, stop=asyncio.Event())
    with env.connect() as writer, writer.transaction():
        uncommitted = env.insert(writer, Event(topic, "open", 0))
        upgrading = asyncio.create_task(env.make_tables())
        await asyncio.sleep(0.2)
        assert not upgrading.done()  # it waits for a transaction that writes
    await upgrading
    async with env.relaying():
        await env.all_published()
        env.rows(f"update saga_outbox set status = 'NEW' where event_id = '{held}' returning 1")  # by an older worker
        env.emit(*events(topic, 10, keys=1, start=100))
        await env.all_published()
    await asyncio.to_thread(env.check, topic)
    assert env.statuses() == {"PUBLISHED": 112}
    assert len(uncommitted) == 1
    assert _versions(env) == {1, 2}


def _publish_as_version_6(env: OutboxEnvironment, topic: str, ids: list[str]) -> None:
    """The events in a transaction with a progress record, by a relay that dies before it marks them."""
    [(home, shards)] = env.rows("select home, shards from saga_outbox_home")
    [(shard,)] = env.rows("select distinct shard from saga_outbox where event_key = 'k0'")
    KafkaAdmin(env.kafka).ensure_topic(progress_topic(env.kafka, home), shards, cleanup_policy="compact")
    producer = TransactionalProducer(env.kafka, transactional_id(env.kafka, home, shard)).fence_and_open()
    producer.begin(60.0)
    for number, id in enumerate(ids):
        record = record_codec.encode(str(number), id=id, type=topic, source="/v6", time=time.time(), key="k0")
        producer.produce(topic, record.value, record.key, record.headers)
    key, value = encode_progress(shard, ProgressRecord(5, ids[40:], ids[30:40]), 1)
    producer.produce(progress_topic(env.kafka, home), value, key, partition=shard)
    producer.commit()
    producer.close()


def _versions(env: OutboxEnvironment) -> set[int]:
    """Of the progress records: a relay of version 6 refuses to publish after one with version 2."""
    [(home,)] = env.rows("select home from saga_outbox_home")
    records = env.broker.read_committed(progress_topic(env.kafka, home))
    return {json.loads(record.value).get("version", 1) for record in records}
