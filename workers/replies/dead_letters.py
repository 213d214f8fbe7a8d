"""Replies that cannot be read: kept in ``<topic>.dlq`` with the reason, so that the others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from activities.kafka.config import producer_config
from activities.kafka.topics import Cluster
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Message

_PATIENCE = 30.0


def place(message: Message) -> str:
    """Where a record lies."""
    return f"{message.topic()}/{message.partition()}/{message.offset()}"


def bury(settings: KafkaSettings, message: Message, group: str, reason: str) -> None:
    """Write the record with the reason, and wait until the broker has it; blocks. Raises KafkaException."""
    from confluent_kafka import KafkaException, Producer

    topic = f"{message.topic()}.dlq"
    Cluster(settings).ensure(topic, 1)
    kind, milliseconds = message.timestamp()
    why = {
        "sagadlqreason": reason,
        "sagadlqgroup": group,
        "sagadlqtopic": message.topic(),
        "sagadlqpartition": message.partition(),
        "sagadlqoffset": message.offset(),
        "sagadlqtimestamp": milliseconds if kind else "",
    }
    headers = [*(message.headers() or []), *((name, str(text).encode()) for name, text in why.items())]
    failed = []
    producer = Producer(producer_config(settings))
    producer.produce(
        topic,
        message.value(),
        message.key(),
        headers=headers,  # pyright: ignore[reportArgumentType]
        on_delivery=lambda error, _: failed.append(error) if error else None,
    )
    if producer.flush(_PATIENCE) or failed:
        raise KafkaException(failed[0] if failed else f"{topic} did not take a dead letter in time")
