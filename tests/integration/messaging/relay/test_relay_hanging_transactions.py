"""A restarted broker loses the end of a transaction (KAFKA-20734): the relay finds and aborts it."""

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
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.lossy_broker import TIMEOUT, lose_transaction_end
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events


@pytest_asyncio.fixture
async def env(
    postgres_server: DatabaseServer, lossy_broker: BrokerProcess, tmp_path: Path
) -> AsyncIterator[OutboxEnvironment]:
    made = OutboxEnvironment(postgres_server, lossy_broker, tmp_path, transaction_timeout=TIMEOUT, batch=50)
    await made.make_tables()
    yield made
    made.close()


@pytest.mark.parametrize("hanging", ["its progress record, and recorded events", "its progress record", "events alone"])
@pytest.mark.slow  # a broker that loses the end of a transaction costs half a minute
async def test_a_hanging_transaction_is_aborted_and_its_events_published_once(
    env: OutboxEnvironment, lossy_broker: BrokerProcess, hanging: str
) -> None:
    topic = await asyncio.to_thread(lossy_broker.create_topic)
    ids = env.emit(*events(topic, 60, keys=1))
    sleeping = partial(write_and_sleep, env, topic, ids[:50], hanging != "events alone")
    await asyncio.to_thread(lose_transaction_end, lossy_broker, topic, sleeping)
    if "recorded" in hanging:  # the relay had an answer to its commit
        env.rows(RECORDED)
        assert env.statuses() == {"PUBLISHED": 50, "NEW": 10}

    relay = await asyncio.to_thread(env.relay().start, 60.0)
    await env.all_published(120)
    await asyncio.to_thread(env.check, topic)
    assert env.statuses() == {"PUBLISHED": 60}
    log = relay.log.read_text()
    if hanging == "events alone":
        assert "hanging transaction is aborted" in log
    else:
        assert "of 50 events 0 are visible" in log


RECORDED = """
insert into saga_relay_progress (shard, reader, done, reading, last_id, highest_id, cluster)
select min(shard), 'dead', '3:3:', pg_current_snapshot(), max(id) - 10, max(id) - 10,
    (select system_identifier::text from pg_control_system()) from saga_outbox returning 1
"""


def write_and_sleep(env: OutboxEnvironment, topic: str, ids: list[str], progress: bool) -> None:
    """A batch written by a relay that freezes forever before the commit."""
    [(home, shards, shard)] = env.rows(
        "select home, shards, (select min(shard) from saga_outbox) from saga_outbox_home"
    )
    KafkaAdmin(env.kafka).ensure_topic(progress_topic(env.kafka, home), shards, cleanup_policy="compact")
    producer = TransactionalProducer(env.kafka, transactional_id(env.kafka, home, shard)).fence_and_open()
    producer.begin(60.0)
    for number, id in enumerate(ids):
        record = record_codec.encode(str(number), id=id, type=topic, source="/lost", time=time.time(), key="k0")
        producer.produce(topic, record.value, record.key, record.headers)
    if progress:
        key, value = encode_progress(shard, ProgressRecord(1, ids))
        producer.produce(progress_topic(env.kafka, home), value, key, partition=shard)
    producer.flush()
