"""The relay against a real broker and a real database: each event once, in order per key, and soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest_asyncio
from confluent_kafka import Consumer, TopicPartition

from saga_activities.connections import open_engine
from saga_activities.kafka.config import consumer_config
from saga_workers.relay.outbox_table import OutboxTable
from saga_workers.relay.relay_status import relay_status
from sagas.step import Event
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.integration.messaging.relay.relay_environment import OutboxWorld, events


@pytest_asyncio.fixture
async def world(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxWorld]:
    made = OutboxWorld(postgres_server, kafka, tmp_path, transaction_timeout=15.0)
    await made.make_tables()
    yield made
    made.close()


async def test_each_event_is_published_once_and_in_order_per_key(world: OutboxWorld) -> None:
    topic, other = world.broker.create_topic(partitions=3), world.broker.create_topic()
    world.emit(*events(topic, 700), Event(other, None, {"n": 1}, {"trace": "t"}, type="order.placed"))
    async with world.relaying():
        await world.all_published()
        world.emit(*events(topic, 300, start=700))
        await world.all_published()
    world.check(topic, other)
    assert world.statuses() == {"PUBLISHED": 1001}
    [record] = world.broker.read_committed(other)
    assert (record.key, record.json()) == (None, {"n": 1})
    assert record.headers["ce_type"] == "order.placed"
    assert record.headers["ce_source"] == f"/{world.kafka.prefix}/shop"
    assert (record.headers["trace"], record.headers["sagaid"], record.headers["sagastep"]) == ("t", "s", "pay")


async def test_a_committed_event_is_soon_visible(world: OutboxWorld) -> None:
    """Measured on an idle system; the bound is generous, because the machine is shared."""
    topic = world.broker.create_topic()
    async with world.relaying():
        world.emit(Event(topic, "k", 0))
        await world.all_published()
        took = await asyncio.to_thread(_emit_and_see, world, topic)
    print(f"commit → visible: median {sorted(took)[5] * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms")
    assert sorted(took)[5] < 2.0
    world.check(topic)


def _emit_and_see(world: OutboxWorld, topic: str) -> list[float]:
    """Seconds from the commit of an event to its arrival at a read_committed consumer, ten times."""
    consumer = Consumer(consumer_config(world.kafka, f"see-{topic}"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    took: list[float] = []
    try:
        for number in range(11):
            if number:
                world.emit(Event(topic, "k", number))
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


async def test_a_lower_id_that_is_committed_later_is_not_lost(world: OutboxWorld) -> None:
    topic = world.broker.create_topic()
    slow = world.connect()
    async with world.relaying():
        with slow.transaction():
            [early] = world.insert(slow, Event(topic, "slow", 1))
            late = world.emit(*events(topic, 40))
            await world.all_published()
            assert {record.headers["ce_id"] for record in world.broker.read_committed(topic)} == set(late)
        await world.all_published()
    slow.close()
    assert world.rows("select event_id from saga_outbox order by id limit 1") == [(early,)]
    world.check(topic)
    assert world.statuses() == {"PUBLISHED": 41}


async def test_events_of_a_transaction_that_is_rolled_back_are_never_published(world: OutboxWorld) -> None:
    topic = world.broker.create_topic()
    async with world.relaying():
        with world.connect() as connection, connection.transaction() as transaction:
            world.insert(connection, *events(topic, 10))
            await asyncio.sleep(0.3)
            raise psycopg.Rollback(transaction)
        world.emit(Event(topic, "k", 1))
        await world.all_published()
    assert len(world.broker.read_committed(topic)) == 1
    world.check(topic)


async def test_a_batch_is_marked_in_one_update(world: OutboxWorld) -> None:
    topic = world.broker.create_topic()
    with world.connect() as connection:
        connection.execute("create table updates (at timestamptz default now())")
        connection.execute(
            "create function count_update() returns trigger language plpgsql "
            "as $$ begin insert into updates default values; return null; end $$"
        )
        connection.execute(
            "create trigger counted after update on saga_outbox for each statement execute function count_update()"
        )
    world.emit(*events(topic, 10_000, keys=1000))
    async with world.relaying():
        await world.all_published()
    # Each shard has a batch that is not full, and marks what its progress record held at the start: nothing here.
    [(updates,)] = world.rows("select count(*) from updates")
    assert updates <= 10_000 / world.kafka.batch + 4
    world.check(topic)


async def test_a_topic_that_is_missing_holds_up_nobody(world: OutboxWorld) -> None:
    topic, missing = world.broker.create_topic(), f"missing-{world.database}"
    world.emit(*events(missing, 20), *events(topic, 20))
    async with world.relaying():
        await _until(lambda: world.statuses() == {"PUBLISHED": 20, "NEW": 20})
        world.emit(*events(topic, 20, start=20))
        await _until(lambda: world.statuses() == {"PUBLISHED": 40, "NEW": 20})
        status = await relay_status(world.settings)
        told = {one["topic"]: one for one in status["outboxes"][0]["topics"]}
        assert "the topic is not there" in told[missing]["error"]
        assert told[topic]["lso_lag"] == 0
        world.broker.create_topic(missing)
        await world.all_published()
    world.check(topic, missing)


async def test_an_event_that_is_too_large_for_its_topic_is_refused_alone(world: OutboxWorld) -> None:
    narrow = world.broker.create_topic(config={"max.message.bytes": "3000"})
    topic = world.broker.create_topic()
    [large] = world.emit(Event(narrow, "k", "x" * 5000))
    # Together they are larger than the topic takes in one package, one by one they are not.
    world.emit(*(Event(narrow, "k", n, {"pad": "x" * 500}) for n in range(20)), *events(topic, 20))
    async with world.relaying():
        await world.all_published()
    assert world.statuses() == {"PUBLISHED": 40, "REFUSED": 1}
    [(refused, note)] = world.rows("select event_id, note from saga_outbox where status = 'REFUSED'")
    assert refused == large
    assert "larger than the topic takes" in note
    world.check(narrow, topic)


async def test_a_row_that_is_no_event_is_refused_and_holds_up_nobody(world: OutboxWorld) -> None:
    topic = world.broker.create_topic()
    [broken, internal, _] = world.emit(*(Event(topic, "k", n) for n in range(3)))
    with world.connect() as connection:
        connection.execute("update saga_outbox set headers = 'none' where event_id = %s", (broken,))
        connection.execute("update saga_outbox set topic = '__consumer_offsets' where event_id = %s", (internal,))
    async with world.relaying():
        await world.all_published()
    assert world.rows("select status, note like '%cannot be written as a record%' from saga_outbox order by id") == [
        ("REFUSED", True),
        ("REFUSED", True),
        ("PUBLISHED", None),
    ]


async def test_old_events_are_forgotten_when_they_are_published_long_enough(
    postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path
) -> None:
    """By the time of publication, never by the age of the id."""
    world = OutboxWorld(postgres_server, kafka, tmp_path, retention=3600.0)
    await world.make_tables()
    topic = kafka.create_topic()
    old, waited, dropped, kept = (world.emit(Event(topic, "k", n))[0] for n in range(4))
    with world.connect() as connection:
        past = time.time() - 7200
        connection.execute("update saga_outbox set created_at = %s", (past,))
        settled = "update saga_outbox set status = %s, published_at = %s where event_id = %s"
        connection.execute(settled, ("PUBLISHED", past, old))
        connection.execute(settled, ("PUBLISHED", time.time(), waited))
        connection.execute(settled, ("DROPPED", past, dropped))
        connection.execute("update saga_outbox set status = 'HELD' where event_id = %s", (kept,))
    engine = open_engine("shop", world.url, 1)
    rows = OutboxTable(engine)
    gone = [await rows.purge(shard, time.time() - 3600.0) for shard in range(4)]
    await engine.dispose()
    assert sum(gone) == 2
    left = world.rows("select event_id, status from saga_outbox order by id")
    assert left == [(waited, "PUBLISHED"), (kept, "HELD")]


async def _until(holds: Callable[[], bool], patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < end, "it did not come to that"
        await asyncio.sleep(0.1)
