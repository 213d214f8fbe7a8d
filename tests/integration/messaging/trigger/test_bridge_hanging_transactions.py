"""A restarted broker loses the end of a bridge's transaction (KAFKA-20734): every record is copied once."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.transactional_producer import TransactionalProducer
from sagas import Message, bridge
from sagas.settings import KafkaSettings
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.lossy_broker import TIMEOUT, lose_transaction_end
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fully_consumed, project_of, triggering

pytestmark = pytest.mark.slow

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("written", "committed"),
    [
        pytest.param(range(4), 0, id="a try, which the next would make visible"),
        pytest.param(range(2), 2, id="what is committed, and waits for its end"),
    ],
)
async def test_a_record_after_a_hanging_transaction_is_copied_once(
    lossy_broker: BrokerProcess, tmp_path: Path, written: range, committed: int
) -> None:
    source, target = await asyncio.to_thread(lambda: (lossy_broker.create_topic(), lossy_broker.create_topic()))

    @bridge(source, to=target, name="copier")
    def copy(message: Message) -> object:
        return message.value

    project = project_of(tmp_path, lossy_broker.settings(transaction_timeout=TIMEOUT), NOWHERE, readers=[copy])
    kafka = project.settings.kafka
    group = f"{kafka.prefix}-bridge-copier"
    await asyncio.to_thread(lossy_broker.produce, source, *range(6), key="k")
    await asyncio.to_thread(
        lose_transaction_end,
        lossy_broker,
        target,
        partial(write_and_sleep, kafka, f"{group}/{source}", target, written),
    )
    if committed:
        await asyncio.to_thread(commit, kafka, group, source, committed)

    async with triggering(project):
        await until_in_thread(lambda: fully_consumed(lossy_broker, group, source))
    numbers = [record.json() for record in await asyncio.to_thread(lossy_broker.read_committed, target)]
    assert numbers == [0, 1, 2, 3, 4, 5]
    assert lossy_broker.is_settled(target)


def write_and_sleep(kafka: KafkaSettings, place: str, target: str, numbers: range) -> None:
    """A transaction written by a bridge that freezes forever."""
    producer = TransactionalProducer(kafka, f"{kafka.prefix}-bridge-copier-0").fence_and_open()
    producer.begin(60.0)
    for number in numbers:
        producer.produce(target, str(number).encode(), b"k", [("sagabridge", f"{place}/0/{number}/id".encode())])
    producer.flush()


def commit(kafka: KafkaSettings, group: str, source: str, position: int) -> None:
    consumer = Consumer(consumer_config(kafka, group))
    consumer.commit(offsets=[TopicPartition(source, 0, position)], asynchronous=False)
    consumer.close()
