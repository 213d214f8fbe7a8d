"""Committed events behind another producer's open transaction: neither visible nor lost."""

from __future__ import annotations

import time

import pytest

from saga_activities.kafka.hanging_transactions import visible_events
from saga_activities.kafka.record_codec import encode
from saga_activities.kafka.topic_end import OpenTransaction
from saga_activities.kafka.transactional_producer import TransactionalProducer
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread


async def test_nobody_calls_a_hidden_event_invisible(kafka: Broker) -> None:
    topic, settings, began = kafka.create_topic(), kafka.settings(transaction_timeout=1.0), time.time() - 60
    producer = TransactionalProducer(settings, f"{settings.prefix}-relay").fence_and_open()

    def write(id: str) -> None:
        producer.write([(topic, 0, encode("1", id=id, type="t", source="/x", time=began, saga_id="s", step="a"))])

    def visible() -> set[str]:
        return visible_events(settings, topic, {"e1", "e2"}, began, lambda: True)

    with kafka.open_transaction(topic):
        write("e1")
        with pytest.raises(OpenTransaction, match="may be published, behind an open transaction in"):
            visible()
    await until_in_thread(lambda: kafka.is_settled(topic))
    assert visible() == {"e1"}
    producer.close()


async def test_an_event_of_the_first_open_transaction_is_invisible(kafka: Broker) -> None:
    topic, settings, began = kafka.create_topic(), kafka.settings(transaction_timeout=1.0), time.time() - 60
    producer = TransactionalProducer(kafka.settings(), f"{settings.prefix}-hangs").fence_and_open()
    producer.begin(60.0)
    producer.produce(topic, b"1", None, [("ce_id", b"e1")])
    producer.flush()
    assert visible_events(settings, topic, {"e1"}, began, lambda: True) == set()
    producer.close()
