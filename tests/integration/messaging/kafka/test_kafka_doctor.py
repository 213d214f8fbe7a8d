"""`saga doctor` and `saga setup` about Kafka, against a real broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from saga_activities.kafka.config import consumer_config, producer_config
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.doctor.kafka_checks import check_kafka
from saga_workers.topics.topic_creation import create_topic_commands, create_topics
from saga_workers.trigger.delivery import DeliveryMark
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT

DEFINITION = """
saga: orders
triggers:
  kafka: {topic: PAID, input: "${{ trigger.value }}"}
steps:
  - id: tell
    uses: kafka.publish
    with: {topic: TOLD, key: "1", value: {paid: true}, hold: true}
"""

READERS = """
from sagas import bridge, consumer

@consumer("RAW", connection="shop")
async def book(message):
    pass

@bridge("RAW", to="CLEAN")
def clean(message):
    return message.value
"""

SPARK = """
saga: day
steps:
  - id: facts
    uses: spark
    with:
      sql: select value from orders
      inputs: {orders: {topic: SOURCE}}
      output: {topic: FACTS}
"""


class DoctorProject:
    def __init__(self, folder: Path, broker: Broker, more: str = "") -> None:
        self.mark = uuid.uuid4().hex[:8]
        self.paid, self.reported = f"paid-{self.mark}", f"told-{self.mark}"
        settings = f'[connections.shop]\nurl = "sqlite:///shop.db"\n[kafka]\noutbox = "shop"\nprefix = "p{self.mark}"\n'
        settings += f'bootstrap_servers = "{broker.address}"\n{more}'
        (folder / "saga.toml").write_text(settings, encoding="utf-8")
        (folder / "definitions").mkdir()
        definition = DEFINITION.replace("PAID", self.paid).replace("TOLD", self.reported)
        (folder / "definitions" / "orders.saga.yaml").write_text(definition, encoding="utf-8")
        self.project = Project(load_settings(folder, env={}))
        assert not self.project.diagnostics

    async def examine(self) -> dict[str, DoctorResult]:
        return {finding.check: finding for finding in await check_kafka(self.project)}


@pytest.fixture
def doctor_project(tmp_path: Path, kafka: Broker) -> DoctorProject:
    return DoctorProject(tmp_path, kafka)


async def test_setup_creates_missing_topics(doctor_project: DoctorProject, kafka: Broker) -> None:
    before = await doctor_project.examine()
    assert before["kafka"].ok
    assert kafka.address in before["kafka"].message
    assert before["kafka transactions"].ok
    topics = before["kafka topics"]
    assert (topics.ok, topics.help) == (False, "saga setup    (or saga setup --print, for an administrator)")
    assert topics.message.startswith(f"{doctor_project.paid}: the topic does not exist")

    names = [doctor_project.paid, f"{doctor_project.paid}.dlq", doctor_project.reported]
    assert create_topics(doctor_project.project) == names
    assert create_topics(doctor_project.project) == []
    after = await doctor_project.examine()
    assert [finding.check for finding in after.values() if not finding.ok] == []
    assert after["kafka topics"].message == ", ".join(names)
    [first, *_] = create_topic_commands(doctor_project.project)
    assert first == (
        f"kafka-topics.sh --bootstrap-server {kafka.address} --create --if-not-exists --topic {doctor_project.paid} "
        "--config cleanup.policy=delete --config retention.ms=604800000"
    )


@pytest.mark.slow  # the function is called above
def test_the_setup_command_creates_missing_topics(
    doctor_project: DoctorProject, kafka: Broker, temporal: TemporalServer
) -> None:
    def saga(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TEMPORAL_ADDRESS": temporal.address}
        return run_command(words, doctor_project.project.settings.root, env=env)

    printed = json.loads(saga("setup", "--print", "-o", "json").stdout)
    assert sum(command.startswith("kafka-topics.sh") for command in printed["commands"]) == 3
    assert doctor_project.reported not in kafka.topics()
    made = saga("setup")
    assert made.returncode == 0, made.stderr
    assert f"✔ topics {doctor_project.paid}, {doctor_project.paid}.dlq, {doctor_project.reported}" in made.stdout
    assert doctor_project.reported in kafka.topics()
    again = saga("setup")
    assert again.returncode == 0, again.stderr
    assert "topics" not in again.stdout


@pytest.mark.slow
async def test_doctor_reports_the_lag_of_triggers(doctor_project: DoctorProject, kafka: Broker) -> None:
    create_topics(doctor_project.project)
    kafka.produce(doctor_project.paid, 1, 2, 3, key="k")
    waiting = (await doctor_project.examine())["kafka triggers"]
    assert (waiting.ok, waiting.help) == (False, "saga trigger")
    assert waiting.message == f"3 events of {doctor_project.paid} wait for orders, but nothing has been read"

    settings = doctor_project.project.settings.kafka
    consumer = Consumer(consumer_config(settings, f"{settings.prefix}-trigger-orders-{doctor_project.paid}"))
    places = [TopicPartition(doctor_project.paid, partition, 0) for partition in range(4)]
    [full] = [place for place in places if kafka.offsets(doctor_project.paid)[place.partition] != (0, 0)]
    consumer.commit(offsets=[TopicPartition(doctor_project.paid, full.partition, 2)], asynchronous=False)
    consumer.close()
    stopped = (await doctor_project.examine())["kafka triggers"]
    assert (stopped.ok, stopped.help) == (False, "saga trigger")
    assert stopped.message == f"at most 1 event of {doctor_project.paid} wait for orders, and no process reads them"
    consumer = Consumer(consumer_config(settings, f"{settings.prefix}-trigger-orders-{doctor_project.paid}"))
    consumer.subscribe([doctor_project.paid])
    try:
        deadline = time.monotonic() + LIMIT
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        read = (await doctor_project.examine())["kafka triggers"]
        assert (read.ok, read.message) == (True, f"orders is at most 1 event of {doctor_project.paid} behind")
    finally:
        consumer.close()

    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": f"{settings.prefix}-marker"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(doctor_project.paid, b"4", partition=full.partition)
    producer.commit_transaction()
    consumer = Consumer(consumer_config(settings, f"{settings.prefix}-trigger-orders-{doctor_project.paid}"))
    consumer.commit(offsets=[TopicPartition(doctor_project.paid, full.partition, 4)], asynchronous=False)
    consumer.close()
    idle = (await doctor_project.examine())["kafka triggers"]
    assert (idle.ok, idle.message) == (True, f"orders is at most 1 event of {doctor_project.paid} behind")


async def test_doctor_reports_the_lag_of_consumers_and_bridges(tmp_path: Path, kafka: Broker) -> None:
    mark = uuid.uuid4().hex[:8]
    raw, prefix = f"raw-{mark}", f"p{mark}"
    settings = f'actions = ["./book.py"]\n[connections.shop]\nurl = "sqlite:///shop.db"\n[kafka]\nprefix = "{prefix}"\n'
    (tmp_path / "saga.toml").write_text(f'{settings}bootstrap_servers = "{kafka.address}"\n', encoding="utf-8")
    module = READERS.replace("RAW", raw).replace("CLEAN", f"clean-{mark}")
    (tmp_path / "book.py").write_text(module, encoding="utf-8")
    project = Project(load_settings(tmp_path, env={}))
    create_topics(project)
    kafka.produce(raw, 1, 2, key="k")

    async def output() -> str:
        return {finding.check: finding for finding in await check_kafka(project)}["kafka triggers"].message

    [position] = [partition for partition, ends in kafka.offsets(raw).items() if ends != (0, 0)]

    def read(who: str, offset: int, metadata: str = "") -> None:
        consumer = Consumer(consumer_config(project.settings.kafka, f"{prefix}-{who}"))
        consumer.commit(offsets=[TopicPartition(raw, position, offset, metadata=metadata)], asynchronous=False)
        consumer.close()

    assert await output() == f"2 events of {raw} wait for book, but nothing has been read"
    read("consumer-book", 1)
    assert await output() == f"at most 1 event of {raw} wait for book, and no process reads them"
    read("consumer-book", 2)
    assert await output() == f"2 events of {raw} wait for clean, but nothing has been read"
    read("bridge-clean", 2)
    assert await output() == f"book has read all events of {raw}, clean has read all events of {raw}"
    for attempts in (1, 3):  # the first may be in progress, and is looked at twice
        read("consumer-book", 1, str(DeliveryMark("", "a", 64, 1, attempts)))
        message = f"a process was ended while book handled {raw}[{position}]@1, attempt {attempts} has not succeeded"
        assert await output() == message


async def test_doctor_names_the_newest_dead_letter_of_each_topic(doctor_project: DoctorProject, kafka: Broker) -> None:
    create_topics(doctor_project.project)
    none = (await doctor_project.examine())["dead letters"]
    assert (none.ok, none.message) == (True, "none")
    dead = f"{doctor_project.paid}.dlq"
    kafka.produce(dead, 1, key="k", headers={"sagadlqreason": "an older reason", "sagadlqgroup": "g"})
    kafka.produce(dead, 2, key="k", headers={"sagadlqreason": "no \x1b[31mid" + "x" * 999, "sagadlqgroup": "g"})
    letters = (await doctor_project.examine())[f"dead letters of {doctor_project.paid}"]
    assert (letters.ok, "how to read dead letters and send them again" in (letters.help or "")) == (None, True)
    assert re.match(r"at most 2 messages, the newest one of 20\S+Z from g: no \S+idx+…$", letters.message)
    assert "\x1b" not in letters.message


async def test_a_hanging_transaction_is_reported(doctor_project: DoctorProject) -> None:
    create_topics(doctor_project.project)
    settings = doctor_project.project.settings.kafka
    producer = Producer(producer_config(settings, transactional_id=f"{settings.prefix}-stuck"))
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in (1, 2):
        producer.produce(doctor_project.reported, b"1", partition=partition)
    producer.flush(30)
    readers = (await doctor_project.examine())["kafka readers"]
    assert not readers.ok
    topic = doctor_project.reported
    assert readers.message == (
        f"an open transaction in {topic}[1] from offset 0, {topic}[2] from offset 0: at most 2 records since cannot be "
        "read"
    )
    assert f"describe-producers --topic {topic} --partition 1" in (readers.help or "")
    producer.abort_transaction(30)


async def test_a_compacted_event_topic_is_reported(doctor_project: DoctorProject, kafka: Broker) -> None:
    kafka.create_topic(doctor_project.reported, config={"cleanup.policy": "compact"})
    create_topics(doctor_project.project)
    topics = (await doctor_project.examine())["kafka topics"]
    assert not topics.ok
    assert topics.message == f"{doctor_project.reported} is compacted: a later event of a key replaces the earlier one"


async def test_topics_of_spark_steps_are_seen_and_may_be_compacted(tmp_path: Path, kafka: Broker) -> None:
    mark = uuid.uuid4().hex[:8]
    source, facts = f"a-{mark}", f"b-{mark}"
    settings = f'[connections.shop]\nurl = "sqlite:///shop.db"\n[spark]\nledger = "shop"\n[kafka]\nprefix = "p{mark}"\n'
    (tmp_path / "saga.toml").write_text(f'{settings}bootstrap_servers = "{kafka.address}"\n', encoding="utf-8")
    (tmp_path / "definitions").mkdir()
    definition = SPARK.replace("SOURCE", source).replace("FACTS", facts)
    (tmp_path / "definitions" / "day.saga.yaml").write_text(definition, encoding="utf-8")
    project = Project(load_settings(tmp_path, env={}))
    assert not project.diagnostics

    async def topics() -> DoctorResult:
        return {finding.check: finding for finding in await check_kafka(project)}["kafka topics"]

    kafka.create_topic(source, config={"cleanup.policy": "compact"})
    missing = await topics()
    assert (missing.ok, missing.help) == (False, "saga setup    (or saga setup --print, for an administrator)")
    assert missing.message.startswith(f"{facts}: the topic does not exist")
    assert create_topics(project) == [facts]
    actual_topics = await topics()
    assert (actual_topics.ok, actual_topics.message) == (True, f"{source}, {facts}")


async def test_a_transaction_may_not_last_longer_than_the_broker_allows(tmp_path: Path, kafka: Broker) -> None:
    doctor_project = DoctorProject(tmp_path, kafka, 'transaction_timeout = "20m"\n')
    kafka_transactions = (await doctor_project.examine())["kafka transactions"]
    assert not kafka_transactions.ok
    assert "kafka.transaction_timeout is above the broker's maximum" in kafka_transactions.message


async def test_an_unreachable_broker_is_one_finding(tmp_path: Path, kafka: Broker) -> None:
    doctor_project = DoctorProject(tmp_path, kafka)
    port = free_port()
    settings = load_settings(tmp_path, env={"SAGA_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{port}"})
    doctor_project.project = Project(settings)
    [finding] = (await doctor_project.examine()).values()
    assert not finding.ok
    assert "\n" not in finding.message
