"""The broker of docker-compose.yml, with the ACLs of deploy/kafka/acls.py: who gets in, and how far."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from ruamel.yaml import YAML

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.config import consumer_config, producer_config
from sagas.settings import KafkaSettings, load_settings
from tests.helpers.kafka_broker import BrokerProcess

ROOT = Path(__file__).parents[3]
SERVICES = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text())["services"]
IMAGE_ONLY = {"KAFKA_LOG_DIRS", "KAFKA_NODE_ID"}


def filled(text: str) -> str:
    """The text with its variables replaced as compose does: passwords by their names and `-1`, the rest by defaults."""
    return re.sub(
        r"\$\{([A-Z_]+):([?-])([^}]*)\}",
        lambda variable: f"{variable[1]}-1" if variable[2] == "?" else variable[3],
        text,
    )


def environment(service: str) -> dict[str, str]:
    return {name: filled(value) for name, value in SERVICES[service]["environment"].items()}


def properties() -> dict[str, str]:
    """Properties that the image of Kafka makes of its variables, on this machine's ports."""
    collected = {}
    for name, value in environment("kafka").items():
        if name.startswith("KAFKA_") and name not in IMAGE_ONLY:
            here = re.sub(r"//(kafka)?:9092", "//127.0.0.1:{port}", value).replace("localhost", "127.0.0.1")
            collected[name.removeprefix("KAFKA_").lower().replace("_", ".")] = here.replace(":9093", ":{controller}")
    return collected


def run_acls(broker: BrokerProcess, **more: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment("kafka-acls"), "KAFKA_ADDRESS": broker.address, **more}
    script = [sys.executable, str(ROOT / "deploy" / "kafka" / "acls.py")]
    return subprocess.run(script, env=variables, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    admin = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "broker",
        "sasl.password": "KAFKA_BROKER_PASSWORD-1",
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("deployed"), more=properties(), client=admin)
    broker.start()
    made = run_acls(broker)
    assert made.returncode == 0, made.stderr
    yield broker
    broker.kill()


@pytest.fixture
def settings_of(deployed: BrokerProcess, tmp_path: Path) -> Callable[[str], KafkaSettings]:
    """The settings that a service's environment gives it."""

    def settings(service: str) -> KafkaSettings:
        variables = {name: value for name, value in environment(service).items() if name.startswith("SAGA_KAFKA__")}
        variables["SAGA_KAFKA__BOOTSTRAP_SERVERS"] = deployed.address
        return load_settings(tmp_path, env=variables).kafka

    return settings


def produce(kafka: KafkaSettings, topic: str) -> Any:
    """The error of one record, or None."""
    answers: list[Any] = []
    producer = Producer(producer_config(kafka))
    producer.produce(topic, b"1", on_delivery=lambda error, _: answers.append(error))
    producer.flush(30)
    return answers[0] and answers[0].name()


def test_nobody_gets_in_without_a_password(deployed: BrokerProcess) -> None:
    for client in ({}, {**deployed.client, "sasl.username": "relay", "sasl.password": "guessed"}):
        kafka = KafkaSettings(configured=True, bootstrap_servers=deployed.address, client=client)
        with pytest.raises(KafkaOperationError, match="cannot be used"):
            KafkaAdmin(kafka, timeout=5).topics()


def test_each_service_reaches_its_own_topics_only(
    deployed: BrokerProcess, settings_of: Callable[[str], KafkaSettings]
) -> None:
    setup = KafkaAdmin(settings_of("setup"))
    for topic in ("orders", "orders.dlq", "payroll"):
        assert setup.ensure_topic(topic, 1)
    relay, trigger = settings_of("relay"), settings_of("trigger")

    assert produce(relay, "orders") is None
    assert produce(relay, "payroll") == "TOPIC_AUTHORIZATION_FAILED"
    assert produce(trigger, "orders.dlq") is None
    for user in (trigger, settings_of("worker")):
        assert produce(user, "orders") == "TOPIC_AUTHORIZATION_FAILED"

    producer = Producer(producer_config(relay, transactional_id="saga-relay-1-0"))
    producer.init_transactions(30)
    for user in (trigger, settings_of("worker")):
        with pytest.raises(KafkaOperationError, match="transactional id"):
            KafkaAdmin(user).check_transactions("saga-relay-1-0")

    consumer = Consumer(consumer_config(trigger, "saga-consumer-bookings"))
    consumer.subscribe(["orders"])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert (message.error(), message.value()) == (None, b"1")


@pytest.mark.slow
def test_a_topic_that_is_not_listed_any_more_is_revoked(
    deployed: BrokerProcess, settings_of: Callable[[str], KafkaSettings]
) -> None:
    KafkaAdmin(settings_of("setup")).ensure_topic("parcels", 1)
    assert produce(settings_of("relay"), "parcels") == "TOPIC_AUTHORIZATION_FAILED"
    assert run_acls(deployed, RELAY_TOPICS="orders, parc*").returncode == 0
    assert produce(settings_of("relay"), "parcels") is None
    assert run_acls(deployed).returncode == 0
    assert produce(settings_of("relay"), "parcels") == "TOPIC_AUTHORIZATION_FAILED"


def test_a_pattern_that_kafka_cannot_express_is_refused(deployed: BrokerProcess) -> None:
    made = run_acls(deployed, TRIGGER_TOPICS="orders*")
    assert made.returncode == 1
    assert made.stderr.startswith("TRIGGER_TOPICS: write the names of orders*")
