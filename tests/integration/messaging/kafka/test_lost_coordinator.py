"""A broker that restarts between a producer's records and its offsets: librdkafka then waits forever for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from saga_activities.kafka import transactional_producer
from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.transactional_producer import KafkaTransactionError, TransactionalProducer
from tests.helpers.kafka_broker import BrokerProcess


@pytest.mark.slow
def test_offsets_that_are_never_answered_end_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next producer of the transactional id ends the transaction, and goes on."""
    monkeypatch.setattr(transactional_producer, "_OFFSETS_TIMEOUT", 3.0)
    broker = BrokerProcess(tmp_path / "kafka").start()
    try:
        settings = broker.settings()
        source, target = broker.create_topic(), broker.create_topic()
        broker.produce(source, "first")
        consumer = Consumer(consumer_config(settings, "copiers"))
        consumer.subscribe([source])
        while consumer.poll(1.0) is None:
            pass
        group, place = consumer.consumer_group_metadata(), TopicPartition(source, 0, 1)

        def write(producer: TransactionalProducer, value: bytes) -> None:
            producer.begin(30)
            producer.produce(target, value)
            producer.flush()

        def commit(producer: TransactionalProducer) -> None:
            producer.send_offsets([place], group)
            producer.commit()

        producer = TransactionalProducer(settings, "copier").fence_and_open()
        write(producer, b"1")
        commit(producer)  # from now on it knows the group's coordinator
        write(producer, b"2")
        broker.kill()
        broker.start()
        with pytest.raises(KafkaTransactionError):
            commit(producer)
        successor = TransactionalProducer(settings, "copier").fence_and_open()
        write(successor, b"3")
        commit(successor)
        consumer.close()
        assert [record.value for record in broker.read_committed(target)] == [b"1", b"3"]
    finally:
        broker.kill()
