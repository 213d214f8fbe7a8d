"""`saga relay` as a process: ready, metrics, an idle one holds nothing open, standby, frozen, fenced, and it drains."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from saga_workers.devstack.service import http_get
from saga_workers.runtime.lease import LEASE_TERM
from sagas.actions.events import Event
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_blocking, until_in_thread
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment, events

TIMEOUT = 6.0


@pytest_asyncio.fixture
async def env(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxEnvironment]:
    made = OutboxEnvironment(postgres_server, kafka, tmp_path, transaction_timeout=TIMEOUT)
    await made.make_tables()
    yield made
    made.close()


def published(env: OutboxEnvironment) -> bool:
    return env.statuses()["NEW"] == 0


def metrics(port: int) -> dict[str, float]:
    text = http_get(port, "/metrics", seconds=20)[1].decode()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def status(env: OutboxEnvironment) -> Any:
    done = run_command(["relay", "--status", "-o", "json"], env.folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["outboxes"][0]


def test_a_relay_publishes_counts_idles_and_drains(env: OutboxEnvironment) -> None:
    topic = env.broker.create_topic()
    env.emit(*events(topic, 100))
    relay = env.relay().start()
    until_blocking(lambda: published(env))
    first = metrics(relay.health_port)
    assert first['saga_relay_published_total{connection="shop"}'] == 100
    assert first['saga_outbox_events{connection="shop",status="NEW"}'] == 0
    assert first[f'saga_relay_lso_lag{{connection="shop",topic="{topic}"}}'] == 0

    time.sleep(2 * TIMEOUT)  # longer than Kafka lets a transaction live
    env.check_decided(topic)
    inside = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in tr%'"
    assert env.rows(inside) == [(0,)]
    env.emit(*events(topic, 20, start=100))
    until_blocking(lambda: published(env))
    reported = metrics(relay.health_port)
    assert reported['saga_relay_published_total{connection="shop"}'] == 120
    assert reported['saga_relay_rebuilds_total{connection="shop"}'] == 0
    actual_status = status(env)
    assert actual_status["new"] == actual_status["held"] == actual_status["refused"] == 0
    assert all(str(relay.pid) in shard["owner"] and not shard["open_transaction"] for shard in actual_status["shards"])
    assert relay.stop() == 0, relay.tail()
    assert "Traceback" not in relay.tail(200)
    assert all(shard["owner"] is None for shard in status(env)["shards"])
    env.check(topic)


def test_once_publishes_new_events_and_exits(env: OutboxEnvironment) -> None:
    topic = env.broker.create_topic()
    env.emit(*events(topic, 1200))
    relay = env.relay(options=["--once"])
    relay.launch()
    until_blocking(lambda: not relay.running)
    assert relay.stop() == 0, relay.tail()
    assert env.statuses() == {"PUBLISHED": 1200}
    env.check(topic)


@pytest.mark.slow
def test_the_second_relay_is_on_standby_until_the_first_stops(env: OutboxEnvironment) -> None:
    topic = env.broker.create_topic()
    first, second = env.relay().start(), env.relay().start()
    env.emit(*events(topic, 50))
    until_blocking(lambda: published(env))
    owners = {shard["owner"] for shard in status(env)["shards"]}
    assert len(owners) == 1
    assert str(first.pid) in owners.pop()
    first.kill()
    env.emit(*events(topic, 50, start=50))
    until_blocking(lambda: published(env))
    assert all(str(second.pid) in shard["owner"] for shard in status(env)["shards"])
    env.check(topic)


@pytest.mark.slow  # test_relay_kills.py freezes one in a transaction
def test_a_frozen_relay_is_fenced_and_resumes_as_standby(env: OutboxEnvironment) -> None:
    topic = env.broker.create_topic()
    first = env.relay().start()
    second = env.relay().start()
    first.freeze()
    time.sleep(LEASE_TERM)
    env.emit(*events(topic, 300))
    until_blocking(lambda: published(env))
    assert all(str(second.pid) in shard["owner"] for shard in status(env)["shards"])
    first.thaw()
    env.emit(*events(topic, 300, start=300))
    until_blocking(lambda: published(env))
    until_blocking(lambda: "shard on standby" in first.log.read_text())
    assert all(str(second.pid) in shard["owner"] for shard in status(env)["shards"])
    time.sleep(1)
    assert first.running
    env.check(topic)


async def test_a_transaction_timeout_above_the_broker_maximum_stops_the_relay(
    postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path
) -> None:
    env = OutboxEnvironment(postgres_server, kafka, tmp_path, transaction_timeout=1200.0)
    await env.make_tables()
    relay = env.relay()
    relay.launch()
    try:
        await until_in_thread(lambda: not relay.running)
        assert relay.stop() not in (None, 0)
        output = relay.log.read_text()
        assert output.count("kafka.transaction_timeout is above the broker's maximum (transaction.max.timeout.ms)") == 1
        assert "Traceback" not in output
    finally:
        env.close()


@pytest.mark.slow
async def test_a_persistent_error_is_not_retried_in_a_tight_loop(env: OutboxEnvironment) -> None:
    """A relay without a reachable Kafka logs it once, is not ready, and continues when it is back."""
    relay = env.relay()
    (env.folder / "saga.toml").write_text(
        (env.folder / "saga.toml").read_text().replace(env.kafka.servers, "127.0.0.1:1")
    )
    relay.launch()
    await until_in_thread(lambda: relay.log.exists() and "cannot be used" in relay.log.read_text())
    await until_in_thread(lambda: relay.ready_says().count("trouble") == 4)
    await asyncio.sleep(3)
    lines = [line for line in relay.log.read_text().splitlines() if "cannot be used" in line]
    assert len(lines) <= 8, "\n".join(lines)
    assert relay.stop() == 0, relay.tail()


def test_an_unknown_connection_gives_a_one_line_error(env: OutboxEnvironment) -> None:
    env.write_project()
    done = run_command(["relay", "--connection", "shops"], env.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no connection shops in the settings; did you mean shop?" in done.stderr


@pytest.mark.slow
def test_an_event_of_one_shard_does_not_block_another(env: OutboxEnvironment) -> None:
    """Shards are by topic and key, so one event of each of many keys meets all of them."""
    topic = env.broker.create_topic(partitions=2)
    env.emit(*(Event(topic, f"key-{n}", n) for n in range(64)))
    assert len(env.rows("select distinct shard from saga_outbox")) == 4
    relay = env.relay().start()
    until_blocking(lambda: published(env))
    assert relay.stop() == 0
    env.check(topic)
