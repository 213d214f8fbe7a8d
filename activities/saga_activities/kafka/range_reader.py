"""Reads fixed offset ranges of a topic, as a read_committed or read_uncommitted consumer. All calls block."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from saga_activities.kafka.admin import KafkaOperationError, PartitionOffsets
from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.errors import KafkaErrorInfo, classify_kafka_error, kafka_error_info
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Message

OffsetRanges = Mapping[int, tuple[int, int]]
"""Partition → the first offset of the range, and the first one after it."""

READ_TIMEOUT = 60.0
"""Seconds without a new record until reading fails."""

_CONSUME_TIMEOUT = 0.5
_MAX_MESSAGES = 1_000


def offsets_since(
    settings: KafkaSettings, topic: str, start_time: float, offsets: Mapping[int, PartitionOffsets]
) -> dict[int, int]:
    """For each partition the offset of the first record not older than ``start_time`` (seconds since the epoch), or the
    last stable offset if there is none. Raises KafkaOperationError."""
    from confluent_kafka import KafkaException, TopicPartition

    consumer = _consumer(settings)
    try:
        timestamps = [TopicPartition(topic, offset, max(0, round(start_time * 1000))) for offset in offsets]
        positions = consumer.offsets_for_times(timestamps, READ_TIMEOUT)
    except KafkaException as error:
        raise _operation_error(topic, kafka_error_info(error)) from None
    finally:
        consumer.close()
    for position in positions:
        if position.error is not None:
            raise _operation_error(topic, kafka_error_info(position.error))
    return {
        position.partition: position.offset if position.offset >= 0 else offsets[position.partition].last_stable
        for position in positions
    }


def read_ranges(
    settings: KafkaSettings, topic: str, ranges: OffsetRanges, *, uncommitted: bool = False
) -> Generator[Message, None, None]:
    """The committed records of the ranges, in order within each partition; ``uncommitted``: all records.

    No range may exceed the last stable offset (``uncommitted``: the high watermark). Raises KafkaOperationError if
    Kafka does not respond or records of a range no longer exist.
    """
    from confluent_kafka import TopicPartition

    unread = {partition: end for partition, (start, end) in ranges.items() if start < end}
    if not unread:
        return
    consumer = _consumer(settings, uncommitted=uncommitted)
    try:
        consumer.assign([TopicPartition(topic, partition, ranges[partition][0]) for partition in unread])
        until = time.monotonic() + READ_TIMEOUT
        while unread:
            for message in consumer.consume(_MAX_MESSAGES, _CONSUME_TIMEOUT):
                until = time.monotonic() + READ_TIMEOUT
                partition, offset = message.partition() or 0, message.offset() or 0
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    if error.name() == "GROUP_AUTHORIZATION_FAILED":
                        continue  # the client looks up a coordinator although it needs none
                    if classify_kafka_error(error).action != "refused" and error.name() != "_AUTO_OFFSET_RESET":
                        continue  # the client retries by itself
                    raise _operation_error(topic, kafka_error_info(error))
                if partition not in unread:
                    continue
                # Also reached by the end-of-partition event: no record below the end of the range follows.
                if offset >= unread[partition]:
                    del unread[partition]
                elif error is None:
                    yield message
                    if offset + 1 == unread[partition]:
                        del unread[partition]
            if unread and time.monotonic() > until:
                raise KafkaOperationError(f"Kafka, topic {topic}: no record arrived within {READ_TIMEOUT:.0f} s")
    finally:
        consumer.close()


def _consumer(settings: KafkaSettings, *, uncommitted: bool = False) -> Any:
    from confluent_kafka import Consumer

    # Joins no group: partitions are assigned. A missing offset is an error and must not be skipped.
    own = {"enable.partition.eof": True, "auto.offset.reset": "error"}
    if uncommitted:
        own["isolation.level"] = "read_uncommitted"
    return Consumer(consumer_config(settings, f"{settings.prefix}-reader") | own)


def _operation_error(topic: str, error_info: KafkaErrorInfo) -> KafkaOperationError:
    if error_info.name == "_AUTO_OFFSET_RESET":
        return KafkaOperationError(
            f"Kafka, topic {topic}: records of the requested range have been deleted", error_info=error_info
        )
    return KafkaOperationError(
        f"Kafka, topic {topic}: {classify_kafka_error(error_info).reason}", error_info=error_info
    )
