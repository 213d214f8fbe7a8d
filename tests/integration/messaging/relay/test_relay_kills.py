"""The relay, its broker and its database are killed or frozen at the critical points; each event is published once.

The points: P9 a row is committed and nothing of it is sent; P10 a transaction is open with some events in it; P11 the
end of a transaction was sent and its response is lost; P12 the transaction is committed, and the database has no record
of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, RelayProcess, events

TIMEOUT = 6.0
END_TXN = b"\x00\x1a\x00\x01\x00"
"""How a request to end a transaction begins: its number, its version, and the first byte of a small counter."""


@dataclass
class Reached:
    """A broker that its clients reach through a proxy alone."""

    broker: BrokerProcess
    proxy: FaultProxy


@pytest_asyncio.fixture
async def reached(tmp_path: Path) -> AsyncIterator[Reached]:
    proxy = FaultProxy(0)
    await proxy.start()
    # Transactions that are too old are looked for every ten seconds by default.
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    broker = BrokerProcess(tmp_path / "kafka", advertised=proxy.port, more=often)
    proxy.target_port = broker.port
    await asyncio.to_thread(broker.start)
    yield Reached(broker, proxy)
    broker.kill()
    await proxy.stop()


@pytest_asyncio.fixture
async def env(postgres_server: DatabaseServer, reached: Reached, tmp_path: Path) -> AsyncIterator[OutboxEnvironment]:
    made = OutboxEnvironment(postgres_server, reached.broker, tmp_path, transaction_timeout=TIMEOUT, batch=50)
    await made.make_tables()
    yield made
    made.close()


async def started(relay: RelayProcess) -> RelayProcess:
    await asyncio.to_thread(relay.start, 60.0)
    return relay


async def healed(env: OutboxEnvironment, topic: str, count: int) -> None:
    """A new relay aborts the transaction of the dead one."""
    await started(env.relay())
    await env.all_published()
    await asyncio.to_thread(env.check, topic)
    assert env.statuses() == {"PUBLISHED": count}


RECORD_WAITS = """
create function wait_to_record() returns trigger language plpgsql as
$$ begin perform pg_advisory_xact_lock_shared(4711); return new; end $$;
create trigger waits before update of done on saga_relay_progress for each row execute function wait_to_record()
"""


def record_waits(env: OutboxEnvironment) -> Any:
    """A connection whose end lets relays record what they have published."""
    lock = env.connect()
    for statement in RECORD_WAITS.split(";\ncreate"):
        lock.execute(statement if "function wait_to_record() returns" in statement else f"create{statement}")
    lock.execute("select pg_advisory_lock(4711)")
    return lock


def written(env: OutboxEnvironment, topic: str) -> tuple[int, int]:
    """Events of the topic that are committed, and all that are there."""
    return len(env.broker.read_committed(topic)), len(env.broker.read_uncommitted(topic))


@pytest.mark.slow
async def test_p9_killed_before_anything_is_sent(env: OutboxEnvironment, reached: Reached) -> None:
    topic = await asyncio.to_thread(env.broker.create_topic)
    relay = await started(env.relay())
    reached.proxy.refuse = True
    reached.proxy.cut()
    env.emit(*events(topic, 100))
    await asyncio.sleep(1.0)
    relay.kill()
    reached.proxy.refuse = False
    assert await asyncio.to_thread(written, env, topic) == (0, 0)
    await healed(env, topic, 100)


@pytest.mark.slow
async def test_p10_killed_in_a_transaction(env: OutboxEnvironment, reached: Reached) -> None:
    topic = await asyncio.to_thread(env.broker.create_topic)
    relay = await started(env.relay())
    reached.proxy.arm(END_TXN, "hold")
    env.emit(*events(topic, 200, keys=1))
    await until_in_thread(lambda: reached.proxy.triggered)
    reached.proxy.triggered = 0
    await until_in_thread(lambda: 0 < written(env, topic)[1] <= 50)
    relay.kill()
    reached.proxy.cut()
    assert await asyncio.to_thread(lambda: written(env, topic)[0]) == 0
    await healed(env, topic, 200)


@pytest.mark.slow
async def test_p12_killed_with_two_batches_not_recorded(env: OutboxEnvironment, reached: Reached) -> None:
    """Two, and never three: that is what the progress record remembers. No transaction waits for the database."""
    topic = await asyncio.to_thread(env.broker.create_topic)
    env.emit(*events(topic, 200, keys=1))
    lock = record_waits(env)
    relay = await started(env.relay())
    await until_in_thread(lambda: written(env, topic) == (100, 100))
    await asyncio.sleep(1.0)
    assert await asyncio.to_thread(written, env, topic) == (100, 100)
    relay.kill()
    lock.close()
    await healed(env, topic, 200)


@pytest.mark.parametrize(
    "killed", [pytest.param(False, id="it lives", marks=pytest.mark.slow), pytest.param(True, id="it is killed")]
)
async def test_p11_the_response_to_a_commit_is_lost(env: OutboxEnvironment, reached: Reached, killed: bool) -> None:
    topic = await asyncio.to_thread(env.broker.create_topic)
    relay = await started(env.relay())
    reached.proxy.arm(END_TXN, "swallow_answer" if killed else "cut_after")
    env.emit(*events(topic, 100, keys=1))
    await until_in_thread(lambda: reached.proxy.triggered)
    reached.proxy.triggered = 0
    if killed:
        await asyncio.sleep(0.5)
        relay.kill()
        reached.proxy.cut()
        await healed(env, topic, 100)
    else:
        await env.all_published()
        await asyncio.to_thread(env.check, topic)


@pytest.mark.slow
async def test_p11_a_commit_that_arrives_after_its_relay_was_replaced_does_nothing(
    env: OutboxEnvironment, reached: Reached
) -> None:
    topic = await asyncio.to_thread(env.broker.create_topic)
    first = await started(env.relay())
    reached.proxy.arm(END_TXN, "hold")
    env.emit(*events(topic, 100, keys=1))
    await until_in_thread(lambda: reached.proxy.triggered)
    reached.proxy.triggered = 0
    first.freeze()
    await started(env.relay())
    await env.all_published()
    reached.proxy.release()  # the late commit is delivered now
    first.thaw()
    env.emit(*events(topic, 100, keys=1, start=100))
    await env.all_published()
    await until_in_thread(lambda: "shard on standby" in first.log.read_text() or "fenced" in first.log.read_text())
    await asyncio.to_thread(env.check, topic)
    assert env.statuses() == {"PUBLISHED": 200}


@pytest.mark.slow
async def test_a_relay_frozen_in_a_transaction_blocks_others_for_its_timeout_at_most(
    env: OutboxEnvironment, reached: Reached
) -> None:
    topic = await asyncio.to_thread(env.broker.create_topic)
    relay = await started(env.relay())
    reached.proxy.arm(END_TXN, "hold")
    env.emit(*events(topic, 200, keys=1))
    await until_in_thread(lambda: reached.proxy.triggered)
    reached.proxy.triggered = 0
    relay.freeze()
    other = await asyncio.to_thread(env.broker.create_topic)
    await asyncio.to_thread(env.broker.produce, topic, "from somebody else")
    [(stable, high)] = (await asyncio.to_thread(env.broker.offsets, topic)).values()
    assert stable < high, "the frozen transaction does not hold back the topic"
    await until_in_thread(lambda: [a == b for a, b in env.broker.offsets(topic).values()] == [True])
    reached.proxy.release()
    relay.thaw()
    await env.all_published()
    records = [
        record for record in await asyncio.to_thread(env.broker.read_committed, topic) if "ce_id" in record.headers
    ]
    assert [record.json() for record in records] == list(range(200))
    await asyncio.to_thread(env.check_decided, topic, other)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", pytest.param("frozen", marks=pytest.mark.slow)])
async def test_the_broker_is_killed_or_frozen_during_publishing(
    env: OutboxEnvironment, reached: Reached, how: str
) -> None:
    topic = await asyncio.to_thread(env.broker.create_topic)
    relay = await started(env.relay())
    env.emit(*events(topic, 3000))
    await until_in_thread(lambda: env.statuses()["PUBLISHED"] > 100)
    if how == "killed":
        reached.broker.kill()
        await asyncio.sleep(2)
        await asyncio.to_thread(reached.broker.start)
    else:
        reached.broker.freeze()
        await asyncio.sleep(8)  # longer than the transaction may last
        reached.broker.thaw()
    env.emit(*events(topic, 500, start=3000))
    await env.all_published(120)
    assert relay.running
    await asyncio.to_thread(env.check, topic)
    assert env.statuses() == {"PUBLISHED": 3500}


@pytest.mark.slow
async def test_the_database_closes_connections_during_publishing(env: OutboxEnvironment) -> None:
    topic = await asyncio.to_thread(env.broker.create_topic)
    await started(env.relay())
    env.emit(*events(topic, 2000))
    for _ in range(10):
        env.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
        await asyncio.sleep(0.2)
    await env.all_published()
    await asyncio.to_thread(env.check, topic)
