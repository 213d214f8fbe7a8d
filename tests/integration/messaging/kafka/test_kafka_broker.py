"""The tests' own broker, and that it does what transactions are about: other tests rely on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from tests.helpers.kafka_broker import Broker, BrokerProcess


def transactional(broker: Broker, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": name})
    producer.init_transactions(30)
    return producer


def test_an_open_or_aborted_transaction_is_invisible(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=2)
    producer = transactional(kafka, topic)
    producer.begin_transaction()
    producer.produce(topic, b'"one"', partition=0)
    producer.flush(30)
    assert kafka.read_committed(topic, settle=0) == []
    assert kafka.offsets(topic) == {0: (0, 1), 1: (0, 0)}
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b'"two"', b"k", partition=0, headers={"a": "b"})
    producer.commit_transaction(30)
    [record] = kafka.read_committed(topic)
    assert (record.json(), record.key, record.headers, record.offset) == ("two", "k", {"a": "b"}, 2)
    assert len(kafka.read_uncommitted(topic)) == 2
    assert kafka.is_settled(topic)


def test_the_older_producer_of_a_transactional_id_is_fenced(kafka: Broker) -> None:
    topic = kafka.create_topic()
    older = transactional(kafka, topic)
    older.begin_transaction()
    older.produce(topic, b"1")
    older.flush(30)
    newer = transactional(kafka, topic)
    with pytest.raises(KafkaException) as caught:
        older.commit_transaction(30)
    assert caught.value.args[0].fatal()
    newer.begin_transaction()
    newer.produce(topic, b"2")
    newer.commit_transaction(30)
    assert [record.value for record in kafka.read_committed(topic)] == [b"2"]


@pytest.mark.slow
def test_a_killed_broker_keeps_acknowledged_records(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "kafka").start()
    try:
        topic = broker.create_topic()
        broker.produce(topic, 1, 2, key="k")
        broker.kill()
        broker.start()
        assert [record.json() for record in broker.read_committed(topic)] == [1, 2]
    finally:
        broker.kill()
