"""A producer whose topics are created again or get more partitions: it writes to those that are there at present."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from saga_activities.kafka import transactional_producer
from saga_activities.kafka.record_codec import EncodedRecord
from saga_activities.kafka.transactional_producer import KafkaTransactionError, TransactionalProducer
from tests.helpers.kafka_broker import Broker
from tests.helpers.key_partitions import partition_of
from tests.helpers.topic_looks import count_looks

KEYS = [f"k{number}" for number in range(20)]


@pytest.fixture
def producer(kafka: Broker) -> Iterator[TransactionalProducer]:
    settings = kafka.settings(transaction_timeout=30.0)
    made = TransactionalProducer(settings, f"{settings.prefix}-writer").fence_and_open()
    yield made
    made.close()


def _write(producer: TransactionalProducer, topic: str) -> None:
    producer.write(((topic, -1, EncodedRecord(b"1", key.encode())) for key in KEYS), [topic])


def _check(kafka: Broker, topic: str, partitions: int) -> None:
    records = kafka.read_committed(topic)
    expected = sorted((key, partition_of(key, partitions)) for key in KEYS)
    assert sorted((record.key or "", record.partition) for record in records) == expected


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("partitions", [1, 3, 4, 7])
def test_a_topic_that_is_created_again(
    kafka: Broker, producer: TransactionalProducer, partitions: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.create_topic(partitions=4)
    with caplog.at_level(logging.WARNING, logger="saga.kafka"):
        _write(producer, topic)
        _write(producer, topic)
        assert topic not in caplog.text
        kafka.delete_topic(topic)
        kafka.create_topic(topic, partitions=partitions)
        _write(producer, topic)
        assert not producer.use_topics([topic])
    _check(kafka, topic, partitions)
    told = f"{topic} was deleted and created again; records go to its {partitions} partitions"
    assert [record.getMessage() for record in caplog.records if topic in record.getMessage()] == [told]


def test_partitions_that_are_added(kafka: Broker, producer: TransactionalProducer) -> None:
    topic = kafka.create_topic(partitions=2)
    _write(producer, topic)
    kafka.add_partitions(topic, 5)
    _write(producer, topic)
    assert {(record.key, record.partition) for record in kafka.read_committed(topic)} >= {
        (key, partition_of(key, 5)) for key in KEYS
    }


def test_a_topic_that_is_missing(kafka: Broker, producer: TransactionalProducer) -> None:
    topic = kafka.create_topic()
    _write(producer, topic)
    kafka.delete_topic(topic)
    with pytest.raises(KafkaTransactionError, match="the topic does not exist") as refused:
        _write(producer, topic)
    assert refused.value.verdict.scope == "topic"


@pytest.mark.parametrize("change", ["deleted", "created again", "more partitions"])
def test_a_transaction_during_which_its_topic_changes_does_not_happen(
    kafka: Broker, producer: TransactionalProducer, change: str
) -> None:
    """Otherwise readers would get a part of it, or the records of one key from two partitions."""
    topic, other = kafka.create_topic(partitions=2), kafka.create_topic()
    assert not producer.use_topics({topic, other})
    producer.begin(30)
    for key in KEYS:
        producer.produce(topic, b"1", key.encode())
        producer.produce(other, b"1", key.encode())
    producer.flush()
    if change == "more partitions":
        kafka.add_partitions(topic, 3)
    else:
        kafka.delete_topic(topic)
    if change == "created again":
        kafka.create_topic(topic, partitions=2)
    with pytest.raises(KafkaTransactionError, match=f"{topic} was changed or created again") as changed:
        producer.commit()
    assert changed.value.verdict.action == "abort"
    producer.close()
    assert not kafka.read_committed(other)
    if change != "deleted":
        assert not kafka.read_committed(topic)


def _produce(producer: TransactionalProducer, topic: str) -> None:
    for key in KEYS:
        producer.produce(topic, b"1", key.encode())


def _transact(producer: TransactionalProducer, topic: str) -> None:
    """A transaction for which a look within the last hour counts."""
    assert not producer.use_topics([topic], 3600)
    producer.begin(30)
    _produce(producer, topic)
    producer.commit()


def test_a_recent_look_costs_a_transaction_one_request(
    kafka: Broker, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)
    topic = kafka.create_topic(partitions=2)
    _transact(producer, topic)
    for _ in range(3):
        looks.clear()
        _transact(producer, topic)
        assert len(looks) == 1
    looks.clear()
    _write(producer, topic)
    assert len(looks) == 2


def test_the_look_of_a_commit_is_under_way_while_records_are_written(
    kafka: Broker, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic()
    _transact(producer, topic)
    looks, flush = count_looks(monkeypatch), producer.flush

    def check_look_and_flush() -> None:
        assert looks == [[topic]]
        flush()

    monkeypatch.setattr(producer, "flush", check_look_and_flush)
    _transact(producer, topic)
    assert looks == [[topic]]


@pytest.mark.parametrize("partitions", [2, 3])
def test_a_topic_created_again_after_the_look_of_a_commit_is_noticed_by_another_look(
    kafka: Broker, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """The records are written so late that they reach the topic that was created after the brokers had answered."""
    monkeypatch.setattr(transactional_producer, "_FLUSH_SLICE", 60.0)
    topic = kafka.create_topic(partitions=2)
    _transact(producer, topic)
    flush = producer.flush

    def create_again_and_write() -> None:
        kafka.delete_topic(topic)
        kafka.create_topic(topic, partitions=partitions)
        _produce(producer, topic)
        flush()

    monkeypatch.setattr(producer, "flush", create_again_and_write)
    assert not producer.use_topics([topic], 3600)
    producer.begin(30)
    with pytest.raises(KafkaTransactionError, match=f"{topic} was changed or created again") as changed:
        producer.commit()
    assert changed.value.verdict.action == "abort"
    producer.close()
    assert not kafka.read_committed(topic)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("partitions", [1, 4, 7])
def test_a_topic_created_again_after_a_recent_look_is_noticed_before_the_commit(
    kafka: Broker, producer: TransactionalProducer, partitions: int
) -> None:
    topic = kafka.create_topic(partitions=4)
    _transact(producer, topic)
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=partitions)
    with pytest.raises(KafkaTransactionError) as changed:
        _transact(producer, topic)
    assert changed.value.verdict.action == "abort"
    producer.close()
    assert not kafka.read_committed(topic)
    producer.fence_and_open()
    _transact(producer, topic)
    _check(kafka, topic, partitions)


def test_a_topic_deleted_after_a_recent_look_is_missing_for_the_next_producer(
    kafka: Broker, producer: TransactionalProducer
) -> None:
    topic = kafka.create_topic()
    _transact(producer, topic)
    kafka.delete_topic(topic)
    with pytest.raises(KafkaTransactionError):
        _transact(producer, topic)
    producer.close()
    producer.fence_and_open()
    assert "does not exist" in producer.use_topics([topic], 3600)[topic]
