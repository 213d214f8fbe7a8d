"""Finds partitions that were truncated before the place up to which a reader has read them.

An unclean election of a leader, or a disk that was restored from an older copy, takes records off the end of a
partition. Once it has grown beyond the place again, offsets do not tell that the records before it are other ones. But
each leader writes with an epoch of its own, and the brokers know where an epoch ends. The client library asks them
only when it seeks, so a client of its own seeks to each place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.errors import classify_kafka_error, kafka_error_info

_TIMEOUT = 15.0
"""Seconds for all partitions."""

_POLL_TIMEOUT = 0.2
_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """A place behind a record that was read.

    ``offset``: behind the record; control records may lie between it and the position of the reader. ``epoch``: that
    of the leader that wrote the record; negative if it is not known.
    """

    offset: int = -1
    epoch: int = -1


UNKNOWN_PLACE = ReadPlace()


def first_unread(
    cluster: KafkaAdmin, topic: str, places: Mapping[int, ReadPlace], offsets: Mapping[int, PartitionOffsets]
) -> dict[int, int]:
    """Partition → the first offset whose record is another one than that which was read; none if it was not truncated.

    ``offsets``: those of the topic. Blocks. Raises KafkaOperationError.
    """
    asked = {
        partition: place
        for partition, place in places.items()
        if partition in offsets
        and place.epoch >= 0
        and place.offset > offsets[partition].log_start
        and place.epoch != offsets[partition].epoch  # else the partition still has the same leader
    }
    if not asked:
        return {}
    begins = _begins(cluster, topic, asked)
    return {partition: begin for partition, begin in begins.items() if begin < asked[partition].offset}


def _begins(cluster: KafkaAdmin, topic: str, places: Mapping[int, ReadPlace]) -> dict[int, int]:
    """The offsets at which a reader goes on that seeks to these places."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    own = {
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",  # where no epoch is known that is old enough
        "fetch.wait.max.ms": 10,
        "queued.min.messages": 1,
        "log_level": 0,
    }
    client: Any = Consumer(consumer_config(cluster.settings, f"{cluster.settings.prefix}-reader") | own)
    begins: dict[int, int] = {}
    until = time.monotonic() + _TIMEOUT
    try:
        client.list_topics(topic, _TIMEOUT)  # without a leader, a first seek takes a second
        client.assign([TopicPartition(topic, partition, place.offset) for partition, place in places.items()])
        for partition, place in places.items():
            _seek(client, TopicPartition(topic, partition, place.offset, leader_epoch=place.epoch), until)
        while len(begins) < len(places):
            if time.monotonic() > until:
                raise KafkaOperationError(f"Kafka, topic {topic}: no answer within {_TIMEOUT:.0f} s")
            for read in client.consume(len(places), _POLL_TIMEOUT):
                error = read.error()
                if error is None or error.name() == "_PARTITION_EOF":
                    begins.setdefault(read.partition(), read.offset())
                    client.pause([TopicPartition(topic, read.partition())])
                elif classify_kafka_error(error).action == "refused" and error.name() != "GROUP_AUTHORIZATION_FAILED":
                    raise KafkaException(error)
    except KafkaException as error:
        info = kafka_error_info(error)
        reason = classify_kafka_error(info).reason
        raise KafkaOperationError(f"Kafka, topic {topic}: {reason}", error_info=info) from None
    finally:
        client.close()
    return begins


def _seek(client: Any, place: Any, until: float) -> None:
    """Seek as soon as the partition is being fetched. Raises KafkaException."""
    from confluent_kafka import KafkaError, KafkaException

    while True:
        try:
            return client.seek(place)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE or time.monotonic() > until:
                raise
        time.sleep(_PAUSE)
