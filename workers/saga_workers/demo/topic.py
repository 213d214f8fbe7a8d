"""What a reader of a topic sees under ``read_committed``, from given offsets on. Everything blocks."""

from __future__ import annotations

import time
from collections.abc import Mapping

from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.topics import Cluster
from saga_activities.kafka.wire import Received, decode
from sagas.errors import SagaError
from sagas.settings import KafkaSettings

PATIENCE = 30.0
"""Seconds until a topic that does not come to its end counts as held up."""


def ends(settings: KafkaSettings, topic: str) -> dict[int, int]:
    """Partition → the offset up to which everything is decided."""
    return {partition: one.stable for partition, one in Cluster(settings).offsets(topic).items()}


def undecided(settings: KafkaSettings, topic: str) -> int:
    """How many records wait for the end of a transaction."""
    return sum(one.undecided for one in Cluster(settings).offsets(topic).values())


def behind(settings: KafkaSettings, group: str, topic: str) -> int:
    """By how many offsets a consumer group is behind all that was written: a commit returns before readers see it."""
    cluster = Cluster(settings)
    reached = cluster.committed(group, topic)
    return sum(
        max(0, one.high - reached.get(partition, one.first)) for partition, one in cluster.offsets(topic).items()
    )


def read(settings: KafkaSettings, topic: str, start: Mapping[int, int]) -> list[Received]:
    """All events from ``start`` (partition → offset; absent: the first) up to the end of what is decided now.

    Raises SagaError: it was not read in half a minute.
    """
    from confluent_kafka import Consumer, TopicPartition

    last = ends(settings, topic)
    open_ends = {partition for partition, end in last.items() if end > start.get(partition, 0)}
    consumer = Consumer({**consumer_config(settings, f"{settings.prefix}-demo"), "enable.partition.eof": True})
    found: list[Received] = []
    try:
        consumer.assign([TopicPartition(topic, partition, start.get(partition, 0)) for partition in open_ends])
        end = time.monotonic() + PATIENCE
        while open_ends:
            if time.monotonic() > end:
                raise SagaError(f"The topic {topic} could not be read to its end in {PATIENCE:.0f} s.")
            message = consumer.poll(0.5)
            if message is None:
                continue
            partition, error = message.partition() or 0, message.error()
            if error is None:
                found.append(decode(message))
            elif error.name() == "_PARTITION_EOF":
                # The position also counts the markers with which transactions end.
                [position] = consumer.position([TopicPartition(topic, partition)])
                if max(position.offset, message.offset() or 0) >= last[partition]:
                    open_ends.discard(partition)
    finally:
        consumer.close()
    return found
