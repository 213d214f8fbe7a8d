"""The configuration of Kafka clients, whatever the settings."""

from __future__ import annotations

import pytest

from saga_activities.kafka.config import LIBRDKAFKA_LOG, admin_config, consumer_config, producer_config
from sagas.settings import KafkaSettings

SETTINGS = KafkaSettings(
    bootstrap_servers="one:9092",
    prefix="shop",
    transaction_timeout=30.0,
    client={"security.protocol": "SSL", "partitioner": "random"},
)


def test_a_producer_is_idempotent_and_durable() -> None:
    config = producer_config(SETTINGS)
    assert config["enable.idempotence"] is True
    assert config["acks"] == "all"
    assert "transactional.id" not in config
    with_id = producer_config(SETTINGS, transactional_id="shop-relay-1")
    assert (with_id["transactional.id"], with_id["transaction.timeout.ms"]) == ("shop-relay-1", 30_000)
    assert (with_id["compression.type"], "compression.type" in config) == ("lz4", False)
    own = KafkaSettings(bootstrap_servers="x:1", client={"compression.type": "none"})
    assert producer_config(own, transactional_id="a")["compression.type"] == "none"


def test_a_consumer_reads_committed_and_commits_manually() -> None:
    config = consumer_config(SETTINGS, "shop-trigger-x")
    assert config["isolation.level"] == "read_committed"
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False
    assert config["auto.offset.reset"] == "earliest"
    assert config["group.id"] == "shop-trigger-x"


def test_all_of_them_go_to_the_same_cluster_with_the_same_properties() -> None:
    for config in (producer_config(SETTINGS), consumer_config(SETTINGS, "g"), admin_config(SETTINGS)):
        assert config["bootstrap.servers"] == "one:9092"
        assert config["security.protocol"] == "SSL"
    # what decides nothing but speed and placement is the project's
    assert producer_config(SETTINGS)["partitioner"] == "random"
    assert producer_config(KafkaSettings(bootstrap_servers="x:1"))["partitioner"] == "murmur2_random"


def test_repeated_errors_are_rate_limited_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", LIBRDKAFKA_LOG.name)  # a test that starts a process's logging silences it
    for milliseconds in range(100):
        LIBRDKAFKA_LOG.error("FAIL [rdkafka#producer-1] connection refused (after %dms in state CONNECT)", milliseconds)
    LIBRDKAFKA_LOG.error("something else")
    assert [record.levelname for record in caplog.records if record.name == LIBRDKAFKA_LOG.name] == ["ERROR", "ERROR"]
