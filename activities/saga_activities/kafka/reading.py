"""Read a part of a topic that is fixed beforehand, as a read_committed consumer sees it, or all of it. Everything
blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.errors import Failure, classify, failure_of
from saga_activities.kafka.topics import Cluster, KafkaProblem, Offsets
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Message

Ranges = Mapping[int, tuple[int, int]]
"""Partition → the first offset that is read, and the first that is not."""

PATIENCE = 60.0
"""Seconds without anything new before reading is given up."""

_SLICE = 0.5
_MANY = 1_000


def decided(settings: KafkaSettings, topic: str, patience: float) -> dict[int, Offsets]:
    """The offsets of a topic, as soon as every transaction is decided that was open at the first look.

    A commit returns before its records can be read: who was told of it, and looks at once, would not see them. After
    ``patience`` seconds the offsets are as they are. Raises KafkaProblem.
    """
    cluster = Cluster(settings)
    first = found = cluster.offsets(topic)
    end = time.monotonic() + patience
    while any(found[one].stable < offsets.high for one, offsets in first.items()):
        if time.monotonic() > end:
            break
        time.sleep(0.1)
        found = cluster.offsets(topic)
    return found


def since(settings: KafkaSettings, topic: str, moment: float, offsets: Mapping[int, Offsets]) -> dict[int, int]:
    """The first offset of each partition whose record is not older than ``moment`` (seconds since 1970); the last
    stable one where there is none. Raises KafkaProblem."""
    from confluent_kafka import KafkaException, TopicPartition

    consumer = _consumer(settings)
    try:
        asked = [TopicPartition(topic, one, max(0, round(moment * 1000))) for one in offsets]
        found = consumer.offsets_for_times(asked, PATIENCE)
    except KafkaException as error:
        raise _problem(topic, failure_of(error)) from None
    finally:
        consumer.close()
    for one in found:
        if one.error is not None:
            raise _problem(topic, failure_of(one.error))
    return {one.partition: one.offset if one.offset >= 0 else offsets[one.partition].stable for one in found}


def read_ranges(settings: KafkaSettings, topic: str, ranges: Ranges, *, uncommitted: bool = False) -> Iterator[Message]:
    """The committed records of the ranges, in the order of each partition; ``uncommitted``: all records.

    No range may go beyond the last stable offset (``uncommitted``: the high watermark). Raises KafkaProblem: Kafka
    does not answer, or records of a range are not there any more.
    """
    from confluent_kafka import TopicPartition

    left = {one: end for one, (start, end) in ranges.items() if start < end}
    if not left:
        return
    consumer = _consumer(settings, uncommitted=uncommitted)
    try:
        consumer.assign([TopicPartition(topic, one, ranges[one][0]) for one in left])
        until = time.monotonic() + PATIENCE
        while left:
            for message in consumer.consume(_MANY, _SLICE):
                until = time.monotonic() + PATIENCE
                partition, offset = message.partition() or 0, message.offset() or 0
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    if error.name() == "GROUP_AUTHORIZATION_FAILED":
                        continue  # the client looks for a coordinator all the same; nothing is asked of it
                    if classify(error).action != "refused" and error.name() != "_AUTO_OFFSET_RESET":
                        continue  # the client tries again by itself, and says so
                    raise _problem(topic, failure_of(error))
                if partition not in left:
                    continue
                # The end of a partition is what the range ends at or more: below it nothing comes any more.
                if offset >= left[partition]:
                    del left[partition]
                elif error is None:
                    yield message
                    if offset + 1 == left[partition]:
                        del left[partition]
            if left and time.monotonic() > until:
                raise KafkaProblem(f"Kafka, topic {topic}: nothing came for {PATIENCE:.0f} s.")
    finally:
        consumer.close()


def _consumer(settings: KafkaSettings, *, uncommitted: bool = False) -> Any:
    from confluent_kafka import Consumer

    # Of no group: it is told what to read. What is not there any more is an error, and nothing to pass over.
    own = {"enable.partition.eof": True, "auto.offset.reset": "error"}
    if uncommitted:
        own["isolation.level"] = "read_uncommitted"
    return Consumer(consumer_config(settings, f"{settings.prefix}-reader") | own)


def _problem(topic: str, failure: Failure) -> KafkaProblem:
    if failure.name == "_AUTO_OFFSET_RESET":
        return KafkaProblem(f"Kafka, topic {topic}: records that were to be read are gone.", failure=failure)
    return KafkaProblem(f"Kafka, topic {topic}: {classify(failure).reason}.", failure=failure)
