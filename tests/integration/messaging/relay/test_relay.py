"""The relay against a real broker and a real database: each event once, in order per key, and soon."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from random import randbytes

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition

from saga_activities.connections import open_engine
from saga_activities.kafka.config import consumer_config
from saga_workers.relay.outbox_table import OutboxTable
from saga_workers.relay.relay_status import relay_status
from sagas.actions.events import Event
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events


async def test_each_event_is_published_once_and_in_order_per_key(env: OutboxEnvironment) -> None:
    topic, other = env.broker.create_topic(partitions=3), env.broker.create_topic()
    env.emit(*events(topic, 700), Event(other, None, {"n": 1}, {"trace": "t"}, type="order.placed"))
    async with env.relaying():
        await env.all_published()
        env.emit(*events(topic, 300, start=700))
        await env.all_published()
    env.check(topic, other)
    assert env.statuses() == {"PUBLISHED": 1001}
    [record] = env.broker.read_committed(other)
    assert (record.key, record.json()) == (None, {"n": 1})
    assert record.headers["ce_type"] == "order.placed"
    assert record.headers["ce_source"] == f"/{env.kafka.prefix}/shop"
    assert (record.headers["trace"], record.headers["sagaid"], record.headers["sagastep"]) == ("t", "s", "pay")


async def test_a_committed_event_is_visible_within_the_latency_goal(env: OutboxEnvironment) -> None:
    """Measured on an idle system; the bound is generous, because the machine is shared."""
    topic = env.broker.create_topic()
    async with env.relaying():
        env.emit(Event(topic, "k", 0))
        await env.all_published()
        took = await asyncio.to_thread(_emit_and_see, env, topic)
    print(f"commit → visible: median {sorted(took)[5] * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms")
    assert sorted(took)[5] < 2.0
    env.check(topic)


def _emit_and_see(env: OutboxEnvironment, topic: str) -> list[float]:
    """Seconds from the commit of an event to its arrival at a read_committed consumer, ten times."""
    consumer = Consumer(consumer_config(env.kafka, f"see-{topic}"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    took: list[float] = []
    try:
        for number in range(11):
            if number:
                env.emit(Event(topic, "k", number))
            began = time.monotonic()
            while True:
                message = consumer.poll(0.01)
                if message is not None and message.value() == str(number).encode():
                    break
                assert time.monotonic() - began < 20
            took.append(time.monotonic() - began)
            time.sleep(0.05)
    finally:
        consumer.close()
    return took[1:]


async def test_a_lower_id_that_is_committed_later_is_not_lost(env: OutboxEnvironment) -> None:
    topic = env.broker.create_topic()
    slow = env.connect()
    async with env.relaying():
        with slow.transaction():
            [early] = env.insert(slow, Event(topic, "slow", 1))
            late = env.emit(*events(topic, 40))
            await env.all_published()
            assert {record.headers["ce_id"] for record in env.broker.read_committed(topic)} == set(late)
        await env.all_published()
    slow.close()
    assert env.rows("select event_id from saga_outbox order by id limit 1") == [(early,)]
    env.check(topic)
    assert env.statuses() == {"PUBLISHED": 41}


async def test_events_of_a_transaction_that_is_rolled_back_are_never_published(env: OutboxEnvironment) -> None:
    topic = env.broker.create_topic()
    async with env.relaying():
        with env.connect() as connection, connection.transaction() as transaction:
            env.insert(connection, *events(topic, 10))
            await asyncio.sleep(0.3)
            raise psycopg.Rollback(transaction)
        env.emit(Event(topic, "k", 1))
        await env.all_published()
    assert len(env.broker.read_committed(topic)) == 1
    env.check(topic)


@pytest.mark.slow
async def test_publishing_changes_no_row_of_the_outbox(env: OutboxEnvironment) -> None:
    topic = env.broker.create_topic()
    with env.connect() as connection:
        connection.execute("create table updates (name text)")
        connection.execute(
            "create function count_update() returns trigger language plpgsql "
            "as $$ begin insert into updates values (tg_table_name); return null; end $$"
        )
        for table in ("saga_outbox_row", "saga_relay_progress"):
            connection.execute(
                f"create trigger counted after update on {table} for each row execute function count_update()"
            )
    env.emit(*events(topic, 10_000, keys=1000))
    async with env.relaying():
        await env.all_published()
    counter = Counter(name for (name,) in env.rows("select name from updates"))
    # Each shard has a first batch and one that is not full, and begins once.
    assert 4 < counter.pop("saga_relay_progress") <= 10_000 / env.kafka.batch + 3 * 4
    assert not counter
    env.check(topic)


async def test_a_missing_topic_does_not_block_other_topics(env: OutboxEnvironment) -> None:
    topic, missing = env.broker.create_topic(), f"missing-{env.database}"
    env.emit(*events(missing, 20), *events(topic, 20))
    async with env.relaying():
        await until_in_thread(lambda: env.statuses() == {"PUBLISHED": 20, "NEW": 20})
        env.emit(*events(topic, 20, start=20))
        await until_in_thread(lambda: env.statuses() == {"PUBLISHED": 40, "NEW": 20})
        status = await relay_status(env.settings)
        reported = {topic["topic"]: topic for topic in status["outboxes"][0]["topics"]}
        assert reported[missing]["error"].startswith("the topic does not exist")
        assert "run saga setup (or saga dev up); one that only code names" in reported[missing]["error"]
        assert reported[topic]["lso_lag"] == 0
        env.broker.create_topic(missing)
        await env.all_published()
    env.check(topic, missing)


async def test_an_event_that_is_too_large_for_its_topic_is_refused_alone(env: OutboxEnvironment) -> None:
    narrow = env.broker.create_topic(config={"max.message.bytes": "3000"})
    topic = env.broker.create_topic()
    [large] = env.emit(Event(narrow, "k", randbytes(2500).hex()))  # compressed it is not smaller
    # Together they are larger than the topic takes in one package, one by one they are not.
    env.emit(*(Event(narrow, "k", n, {"pad": randbytes(250).hex()}) for n in range(20)), *events(topic, 20))
    async with env.relaying():
        await env.all_published()
    assert env.statuses() == {"PUBLISHED": 40, "REFUSED": 1}
    [(refused, note)] = env.rows("select event_id, note from saga_outbox where status = 'REFUSED'")
    assert refused == large
    assert "larger than the topic accepts" in note
    env.check(narrow, topic)


async def test_a_malformed_row_is_refused_and_does_not_block_others(env: OutboxEnvironment) -> None:
    topic = env.broker.create_topic()
    [broken, internal, _] = env.emit(*(Event(topic, "k", n) for n in range(3)))
    with env.connect() as connection:
        connection.execute("update saga_outbox set headers = 'none' where event_id = %s", (broken,))
        connection.execute("update saga_outbox set topic = '__consumer_offsets' where event_id = %s", (internal,))
    async with env.relaying():
        await env.all_published()
    assert env.rows("select status, note like '%cannot be encoded as a record%' from saga_outbox order by id") == [
        ("REFUSED", True),
        ("REFUSED", True),
        ("PUBLISHED", None),
    ]


async def test_old_marked_events_are_purged(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> None:
    """By the time of publication, never by the age of the id."""
    env = OutboxEnvironment(postgres_server, kafka, tmp_path, retention=3600.0)
    await env.make_tables()
    topic = kafka.create_topic()
    old, waited, dropped, kept = (env.emit(Event(topic, "k", n))[0] for n in range(4))
    with env.connect() as connection:
        past = time.time() - 7200
        connection.execute("update saga_outbox set created_at = %s", (past,))
        settled = "update saga_outbox set status = %s, published_at = %s where event_id = %s"
        connection.execute(settled, ("PUBLISHED", past, old))
        connection.execute(settled, ("PUBLISHED", time.time(), waited))
        connection.execute(settled, ("DROPPED", past, dropped))
        connection.execute("update saga_outbox set status = 'HELD' where event_id = %s", (kept,))
    engine = open_engine("shop", env.url, 1)
    rows = OutboxTable(engine)
    [(shard,)] = env.rows("select distinct shard from saga_outbox")
    assert await rows.purge({0, 1, 2, 3} - {shard}, time.time(), 3600.0) == 0
    assert await rows.purge([shard], time.time(), 3600.0, limit=1) == 2
    await engine.dispose()
    remaining = env.rows("select event_id, status from saga_outbox order by id")
    assert remaining == [(waited, "PUBLISHED"), (kept, "HELD")]
