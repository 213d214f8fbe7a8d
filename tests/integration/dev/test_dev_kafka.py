"""The embedded Kafka from the outside: for projects that use it, and only for them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config
from saga_workers.devstack.kafka_server import KAFKA_JARS, KafkaUnavailableError
from saga_workers.devstack.stack import Stack
from saga_workers.runtime.databases import set_up_database
from sagas.errors import SagaError
from sagas.settings import load_settings
from sagas.settings.dev_stack import start_mark
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import LIMIT
from tests.integration.dev.conftest import Project

ORDERS = """
saga: orders
input: {properties: {topic: {enum: [order-events]}}}
steps:
  - id: tell
    uses: kafka.publish
    with: {topic: order-events, key: "1", value: {paid: true}, hold: true}
  - id: ask
    uses: kafka.publish
    with: {topic: "${{ input.topic }}", value: 1, hold: true}
"""

LISTEN = """
saga: listen
triggers:
  kafka: {topic: order-events, input: {heard: "${{ trigger.value }}"}}
steps:
  - id: tell
    uses: kafka.publish
    with: {topic: heard, value: "${{ input.heard }}", hold: true}
"""


@pytest.fixture
def with_kafka(project: Project) -> Project:
    try:
        KAFKA_JARS.fetch(print)
    except KafkaUnavailableError as error:
        pytest.skip(f"Kafka: {error.message}")
    settings = project.root / "saga.toml"
    settings.write_text(settings.read_text() + '[kafka]\noutbox = "shop"\n', encoding="utf-8")
    (project.root / "definitions").mkdir()
    (project.root / "definitions" / "orders.saga.yaml").write_text(ORDERS, encoding="utf-8")
    return project


@pytest.mark.slow
def test_a_project_gets_its_own_broker(with_kafka: Project) -> None:
    project = with_kafka
    before = project.up("--only", "kafka")
    assert before["kafka"]["state"] == "running"
    assert before["temporal"]["state"] == "stopped"
    process = psutil.Process(before["kafka"]["pid"])
    assert Path(process.cwd()) == project.root / ".saga" / "dev" / "kafka"
    assert "-Xmx512m" in process.cmdline()
    unpacked = [Path(file.path) for file in process.memory_maps() if "lz4" in file.path]
    assert [file for file in unpacked if not file.is_relative_to(process.cwd())] == []

    settings = load_settings(project.root, env={})
    assert settings.kafka.servers == before["kafka"]["address"]
    assert settings.kafka.embedded
    cluster = KafkaAdmin(settings.kafka)
    # what the definitions name is there, kept for a week and never compacted
    made = cluster.describe("order-events")
    assert (made.cleanup_policy, made.retention) == ("delete", 7 * 86_400.0)
    assert [name for name in cluster.topics() if not name.startswith("_")] == ["order-events"]

    assert project.up("--only", "kafka") == before == project.status()
    cluster.ensure_topic("mine")
    os.kill(before["kafka"]["pid"], signal.SIGKILL)
    assert project.status()["kafka"]["state"] == "failed"
    after = project.up("--only", "kafka")
    assert after["kafka"]["pid"] != before["kafka"]["pid"]
    assert after["kafka"]["address"] == before["kafka"]["address"]
    assert "mine" in KafkaAdmin(settings.kafka).topics()

    assert "Performing controller activation" in project.saga("dev", "logs", "kafka")
    assert "kafka" in project.saga("dev", "down", "--wipe")
    assert start_mark(after["kafka"]["pid"]) is None
    assert not (project.root / ".saga" / "dev" / "kafka").exists()
    assert project.status()["kafka"] == {"state": "stopped", "pid": None}


@pytest.mark.slow  # the demo has a broker and a relay in its stack
def test_a_saga_publishes_and_its_events_start_another(with_kafka: Project) -> None:
    project = with_kafka
    (project.root / "definitions" / "listen.saga.yaml").write_text(LISTEN, encoding="utf-8")
    status = json.loads(project.saga("dev", "up", "--json"))
    everything = ("temporal", "postgres", "kafka", "worker", "relay", "trigger")
    assert {status[name]["state"] for name in everything} == {"running"}
    assert json.loads(project.saga("dev", "up", "--json")) == status  # nothing has to start again
    project.saga("start", "orders", "--input", '{"topic": "order-events"}', "--wait")
    cluster = KafkaAdmin(load_settings(project.root, env={}).kafka)
    end = time.monotonic() + LIMIT
    while sum(offset.last_stable for offset in cluster.offsets("heard").values()) < 2:
        assert time.monotonic() < end, project.saga("dev", "logs", "relay") + project.saga("dev", "logs", "trigger")
        time.sleep(0.2)
    findings = {row["check"]: row for row in json.loads(project.saga("doctor", "-o", "json"))}
    assert [name for name, finding in findings.items() if name.startswith("kafka") and not finding["ok"]] == []
    assert findings["kafka topics"]["message"] == "heard, order-events, order-events.dlq"


class ReportSeenError(Exception):
    """Ends `saga dev up` at a report."""


def reading(folder: Path, kafka: Broker, module: str) -> Stack:
    """The stack of a project with a consumer, whose servers run already."""
    (folder / "readers.py").write_text(module, encoding="utf-8")
    shop = 'actions = ["./readers.py"]\n[connections.shop]\nurl = "sqlite:///shop.db"\n'
    servers = f'[kafka]\nprefix = "{kafka.settings().prefix}"\nbootstrap_servers = "{kafka.address}"\n'
    (folder / "saga.toml").write_text(shop + servers, encoding="utf-8")

    def stop_at_reason(text: str) -> None:
        if "is not ready" in text:
            raise ReportSeenError(text)

    return Stack(load_settings(folder, env={}), stop_at_reason)


CONSUMER = """
from sagas import consumer

@consumer("TOPIC", connection="shop", name="tally")
async def tally(message):
    pass
"""


def test_up_shows_why_the_trigger_is_not_ready_while_it_waits(kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, 1)
    stack = reading(tmp_path, kafka, CONSUMER.replace("TOPIC", topic))
    settings = stack.settings.kafka
    predecessor = Consumer(consumer_config(settings, f"{settings.prefix}-consumer-count_visits"))
    predecessor.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    predecessor.close()
    asyncio.run(set_up_database(stack.settings.sql_connections()[0], settings.shards, print))
    try:
        with pytest.raises(ReportSeenError, match=f"the trigger is not ready: tally has no position in {topic}, but"):
            stack.up(["trigger"])
    finally:
        stack.down()


def test_a_trigger_that_is_ended_has_to_be_started_again(kafka: Broker, tmp_path: Path) -> None:
    stack = reading(tmp_path, kafka, "import os\nos._exit(9)\nfrom sagas import consumer\nconsumer('orders')\n")
    with pytest.raises(SagaError, match="trigger exited during its start: it printed nothing") as ended:
        stack.up(["trigger"])
    assert (ended.value.help or "").startswith("saga dev up    again: a record that ends the process 5 times")


def test_a_project_without_kafka_starts_none(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text('[connections.shop]\nurl = "sqlite:///x.db"', encoding="utf-8")
    stack = Stack(load_settings(tmp_path, env={}), print)
    assert stack._needed_services() == ["temporal", "postgres", "worker"]


@pytest.mark.slow
def test_a_configured_broker_is_not_started(with_kafka: Project) -> None:
    settings = with_kafka.root / "saga.toml"
    settings.write_text(settings.read_text() + 'bootstrap_servers = "127.0.0.1:1"\n', encoding="utf-8")
    done = with_kafka.call("dev", "up", "--only", "kafka")
    assert done.returncode == 0, done.stderr
    assert "the settings name the Kafka brokers 127.0.0.1:1, so none is started" in done.stdout
    assert with_kafka.status()["kafka"] == {"state": "failed", "pid": None, "address": "127.0.0.1:1"}
    done = with_kafka.call("dev", "up")
    assert done.returncode == 1, done.stderr
    assert "the configured Kafka brokers 127.0.0.1:1 do not answer; nothing was started" in done.stderr
    assert with_kafka.status()["temporal"]["state"] == "stopped"


@pytest.mark.slow  # the second demo runs without Java
def test_without_java_kafka_is_not_started_and_one_line_says_so(
    with_kafka: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(with_kafka.root / "no-java"))
    done = with_kafka.call("dev", "up", "--only", "postgres,kafka")
    assert done.returncode == 0, done.stderr
    [sentence] = [line for line in done.stdout.splitlines() if "Kafka" in line]
    assert sentence.startswith(
        "Kafka and the services that need it are not started: the embedded Kafka needs Java 17 or newer"
    )
    status = with_kafka.status()
    assert (status["kafka"]["state"], status["postgres"]["state"]) == ("stopped", "running")
