"""Credentials, ACLs and TLS: the documented ACLs are sufficient, and a mistake gives a one-line error."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.config import consumer_config, producer_config
from saga_activities.kafka.errors import classify_kafka_error
from saga_spark.inputs.kafka_input import freeze_topic
from saga_spark.settings import SparkSettings
from saga_spark.sinks.kafka.topic_sink import TopicSink
from saga_spark.sinks.sink import Publication
from saga_workers.doctor.kafka_checks import check_kafka
from saga_workers.relay.relay_process import run_relay
from saga_workers.relay.relay_status import relay_status
from sagas.actions.events import Event
from sagas.errors import InfrastructureError, SagaError, UsageError
from sagas.project import Project
from sagas.settings import KafkaSettings, load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.free_ports import free_port
from tests.helpers.kafka_broker import Broker, BrokerProcess
from tests.helpers.waiting import LIMIT
from tests.integration.messaging.kafka.secured_broker import SASL, AclOperation, ResourceType, allow, login, settings
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment
from tests.integration.spark.staged_outputs import stage


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ca.pem`, which signed itself, and `server.pem`, which is the same with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    new += ["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(new, cwd=folder, check=True, capture_output=True)
    (folder / "server.pem").write_text((folder / "ca.key").read_text() + (folder / "ca.pem").read_text())
    return folder


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[BrokerProcess]:
    """Users with ACLs at one address; at ``tls`` (below) any TLS client."""
    port = free_port()
    tls = {
        "listeners": f"PLAINTEXT://127.0.0.1:{{port}},TLS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{{controller}}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{{port}},TLS://127.0.0.1:{port}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate / "server.pem"),
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("secured"), more={**SASL, **tls}, client=login("admin"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def tls(secured: BrokerProcess) -> str:
    """The address where the broker speaks TLS."""
    return secured.server.overrides["advertised.listeners"].rpartition("//")[2]


def test_the_documented_acls_are_sufficient(secured: Broker) -> None:
    kafka = settings(secured, "saga", prefix="good")
    allow(secured, ResourceType.TOPIC, "good", AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE)
    allow(secured, ResourceType.GROUP, "good", AclOperation.READ)
    allow(secured, ResourceType.TRANSACTIONAL_ID, "good", AclOperation.WRITE)
    cluster = KafkaAdmin(kafka)
    assert cluster.ensure_topic("good-orders", 1)
    assert {"READ", "WRITE"} <= cluster.authorized_operations("good-orders")
    cluster.check_transactions()

    producer = Producer(producer_config(kafka, transactional_id="good-relay-1"))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("good-orders", b"1")
    producer.commit_transaction(30)
    consumer = Consumer(consumer_config(kafka, "good-reader"))
    consumer.subscribe(["good-orders"])
    message = consumer.poll(30)
    assert message is not None
    assert message.value() == b"1"
    consumer.commit(message=message, asynchronous=False)
    consumer.close()
    assert cluster.committed_offsets("good-reader", "good-orders") == {0: 1}


def test_wrong_credentials_give_a_one_line_error(secured: Broker) -> None:
    wrong = secured.settings(client=login("saga", "guessed"))
    with pytest.raises(
        KafkaOperationError, match="cannot be used: the broker does not accept the credentials"
    ) as caught:
        KafkaAdmin(wrong, timeout=10).topics()
    assert "guessed" not in caught.value.message
    assert caught.value.help == "check [kafka.client] in saga.toml"


def test_missing_credentials_give_a_one_line_error(secured: Broker) -> None:
    with pytest.raises(KafkaOperationError, match=rf"Kafka at {secured.address} cannot be used") as caught:
        KafkaAdmin(secured.settings(), timeout=5).topics()
    assert "\n" not in caught.value.message


def test_tls_with_the_broker_ca(secured: Broker, tls: str, certificate: Path) -> None:
    client = {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}  # relative to the project
    kafka = secured.settings(bootstrap_servers=tls, client=client, root=certificate)
    assert KafkaAdmin(kafka).broker_count() == 1


def test_a_broker_with_an_unknown_ca_is_refused(secured: Broker, tls: str) -> None:
    assert "certificate" in no_tls(secured.settings(bootstrap_servers=tls, client={"security.protocol": "SSL"}))


def test_tls_to_a_plaintext_listener_is_reported(secured: Broker) -> None:
    assert "PLAINTEXT" in no_tls(secured.settings(client={"security.protocol": "SSL"}))


def no_tls(kafka: KafkaSettings) -> str:
    with pytest.raises(KafkaOperationError, match="cannot be used: the TLS connection failed") as caught:
        KafkaAdmin(kafka, timeout=10).topics()
    assert "\n" not in caught.value.message
    assert caught.value.help == "check [kafka.client] in saga.toml"
    return caught.value.message


@pytest.mark.slow
def test_plaintext_to_a_tls_listener_is_reported(secured: Broker, tls: str) -> None:
    with pytest.raises(KafkaOperationError, match=rf"Kafka at {tls} cannot be used") as caught:
        KafkaAdmin(secured.settings(bootstrap_servers=tls), timeout=5).topics()
    assert "\n" not in caught.value.message


def test_an_invalid_certificate_file_is_reported(secured: Broker, tls: str, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing of the kind")
    client = {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}
    with pytest.raises(UsageError, match=r"kafka\.client: .*ssl\.ca\.location"):
        KafkaAdmin(secured.settings(bootstrap_servers=tls, client=client, root=tmp_path))


def test_a_missing_transactional_id_acl_is_reported(secured: Broker) -> None:
    with pytest.raises(KafkaOperationError, match="is not authorized for the transactional id: an ACL is missing"):
        KafkaAdmin(settings(secured, "stranger")).check_transactions()


def test_a_missing_topic_acl_is_reported(secured: Broker) -> None:
    secured.create_topic("hidden")
    assert "an ACL is missing" in KafkaAdmin(settings(secured, "stranger")).unusable_topics(["hidden"])["hidden"]
    # An idempotent producer may hear of the cluster's ACL first, which is fatal for it.
    producer = Producer({**producer_config(settings(secured, "stranger")), "enable.idempotence": False})
    failed: list[Any] = []
    producer.produce("hidden", b"1", on_delivery=lambda error, _: failed.append(error))
    producer.flush(30)
    verdict = classify_kafka_error(failed[0])
    assert (verdict.action, verdict.scope) == ("refused", "topic")


@pytest.mark.slow
async def test_the_relay_status_names_the_missing_acl(
    secured: Broker, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    env = OutboxEnvironment(postgres_server, secured, tmp_path, prefix="told", client=login("saga"))
    await env.make_tables()
    secured.create_topic("told-orders")
    env.emit(Event("told-orders", "k", 1), Event("untold", "k", 1))
    [(home,)] = env.rows("select home from saga_outbox_home")

    async def status() -> dict[str, Any]:
        [outbox] = (await relay_status(env.settings))["outboxes"]
        return outbox

    async def publish_once() -> None:
        await run_relay(env.settings, once=True)

    actual_status = await status()
    assert "is not authorized for the transactional id: an ACL is missing" in actual_status["publishing_error"]
    with pytest.raises(SagaError, match="an ACL is missing"):
        await asyncio.wait_for(publish_once(), LIMIT)
    allow(secured, ResourceType.TRANSACTIONAL_ID, "told-relay-", AclOperation.WRITE)
    allow(secured, ResourceType.TOPIC, "told-orders", AclOperation.DESCRIBE)
    actual_status = await status()
    assert "publishing_error" not in actual_status
    errors = {topic["topic"]: topic["error"] for topic in actual_status["topics"]}
    assert errors["told-orders"] == "this user may not write to the topic: an ACL is missing (WRITE)"
    assert "untold" in errors
    secured.create_topic(f"told-relay-{home}", partitions=4, config={"cleanup.policy": "compact"})
    allow(secured, ResourceType.TOPIC, "told-relay-", AclOperation.WRITE)
    assert (await status())["publishing_error"] == f"Kafka, topic told-relay-{home}: an ACL is missing (READ)"
    allow(secured, ResourceType.TOPIC, "told-relay-", AclOperation.READ)
    allow(secured, ResourceType.TOPIC, "told-orders", AclOperation.WRITE)
    allow(secured, ResourceType.GROUP, "told-relay-", AclOperation.READ)
    async with env.relaying():
        end = time.monotonic() + LIMIT
        while env.statuses()["PUBLISHED"] != 1:
            assert time.monotonic() < end, env.statuses()
            await asyncio.sleep(0.2)
    assert [topic["topic"] for topic in (await status())["topics"] if "error" in topic] == ["untold"]
    env.close()


@pytest.mark.slow
def test_the_documented_acls_are_sufficient_for_spark_steps(secured: Broker, tmp_path: Path) -> None:
    secured.create_topic("mine-facts", partitions=2)

    def sink(prefix: str) -> tuple[SparkSettings, TopicSink, Publication]:
        kafka = settings(secured, "saga", prefix=prefix)
        spark_settings = SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri(), kafka=kafka)
        return (
            spark_settings,
            TopicSink(spark_settings),
            stage(spark_settings, {"topic": "mine-facts"}, [{"id": 1}, {"id": 2}], saga=prefix),
        )

    spark, topics, publication = sink("mine")
    assert topics.check(publication)[0].startswith("the topic mine-facts cannot be used: ")
    allow(secured, ResourceType.TOPIC, "mine-facts", AclOperation.WRITE)
    [no_progress] = topics.check(publication)
    assert "topic mine-spark" in no_progress
    allow(secured, ResourceType.TOPIC, "mine-spark", AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE)
    [no_transactions] = topics.check(publication)
    assert "is not authorized for the transactional id: an ACL is missing" in no_transactions
    allow(secured, ResourceType.TRANSACTIONAL_ID, "mine", AclOperation.WRITE)
    assert topics.check(publication) == []
    topics.publish([publication], None, together=False)
    assert topics.publish([publication], None, together=False)[0].adopted
    assert len(secured.read_committed("mine-facts")) == 2

    uri = (tmp_path / "inputs" / "events.parquet").as_uri()
    with pytest.raises(InfrastructureError, match="an ACL is missing"):
        freeze_topic(spark, "events", {"topic": "mine-facts"}, uri, lambda _: None)
    allow(secured, ResourceType.TOPIC, "mine-facts", AclOperation.READ)
    assert freeze_topic(spark, "events", {"topic": "mine-facts"}, uri, lambda _: None)["rows"] == 2


def test_a_topic_that_may_not_be_created_is_reported(secured: Broker) -> None:
    with pytest.raises(KafkaOperationError, match=r"topic new-one: .*an ACL is missing"):
        KafkaAdmin(settings(secured, "stranger")).ensure_topic("new-one", 1)


def test_a_missing_group_acl_is_reported(secured: Broker) -> None:
    kafka = settings(secured, "saga", prefix="good")
    consumer = Consumer(consumer_config(kafka, "any-group"))
    consumer.subscribe(["good-orders"])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    error = message.error()
    assert error is not None
    verdict = classify_kafka_error(error)
    assert (verdict.action, verdict.scope) == ("refused", "client")
    assert verdict.reason.startswith("this user is not authorized for the consumer group: an ACL is missing")


def test_a_transaction_timeout_above_the_broker_maximum_is_reported(secured: Broker) -> None:
    kafka = settings(secured, "admin", transaction_timeout=1_200.0)
    with pytest.raises(KafkaOperationError, match=r"kafka\.transaction_timeout is above the broker's maximum"):
        KafkaAdmin(kafka).check_transactions()
    producer = Producer(producer_config(kafka, transactional_id="long"))
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(30)
    verdict = classify_kafka_error(caught.value)
    assert (verdict.action, verdict.scope) == ("refused", "setting")


async def test_doctor_names_the_missing_acl(secured: Broker, tmp_path: Any) -> None:
    secured.create_topic("seen-only")
    allow(secured, ResourceType.TOPIC, "seen-only", AclOperation.DESCRIBE)
    allow(secured, ResourceType.TRANSACTIONAL_ID, "seen", AclOperation.WRITE)
    text = '[connections.shop]\nurl = "sqlite:///x.db"\n[kafka]\noutbox = "shop"\nprefix = "seen"\n'
    text += f'bootstrap_servers = "{secured.address}"\n[kafka.client]\n'
    text += "".join(f'"{name}" = "{value}"\n' for name, value in login("saga").items())
    (tmp_path / "saga.toml").write_text(text, encoding="utf-8")
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "tell.saga.yaml").write_text(
        "saga: tell\nsteps:\n  - id: tell\n    uses: kafka.publish\n"
        "    with: {topic: seen-only, value: 1, hold: true}\n",
        encoding="utf-8",
    )
    by_check = {check.check: check for check in await check_kafka(Project(load_settings(tmp_path, env={})))}
    assert by_check["kafka"].ok
    assert by_check["kafka transactions"].ok
    assert by_check["kafka topics"].message == "seen-only: this user has no ACL for WRITE"


def test_secrets_reach_no_log(secured: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(KafkaOperationError):
        KafkaAdmin(secured.settings(client=login("saga", "guessed-password")), timeout=3).topics()
    assert "guessed-password" not in caplog.text
