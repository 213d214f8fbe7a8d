"""The progress record: what a shard's last two batches were, written in the same Kafka transaction as the events.

One compacted topic for each outbox, one partition for each shard. After trouble it tells what no answer has told:
a batch whose record is there is published and has to be marked, a batch whose record is not there never happened.
The record names the batch before as well, so that its rows may still be waiting for their marks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config
from sagas.errors import SagaError
from sagas.settings import KafkaSettings

READ_TIMEOUT = 30.0
"""Seconds to read the end of one partition."""

VERSION = 1
"""Of the record. A relay that needs more of a record than an older one knows writes a higher number: the older one then
stops, and publishes nothing twice."""

HANGING_AFTER = 5.0
"""Seconds after which a transaction that is not decided never will be, when all producers have ended theirs."""

_LOOKBACK = 64
"""Offsets to look back first: each transaction takes two of them, one for its marker, also when it is aborted."""


class NewerRelay(SagaError):
    """The record was written by a relay that knows more than this one."""


class HangingTransaction(SagaError):
    """A transaction in a shard's partition has no end, although every producer has ended its own: it was lost."""

    def __init__(self, topic: str, shard: int) -> None:
        super().__init__(
            f"in {topic} partition {shard} a transaction is not decided, and nobody is there to decide it",
            help="kafka-transactions.sh find-hanging",
        )


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """Batch number ``batch`` of a shard (from 1; 0: none yet) held these events.

    ``before`` are the events of the batch before it, unless that was marked when this one was begun.
    """

    batch: int = 0
    event_ids: Sequence[str] = ()
    previous_event_ids: Sequence[str] = ()


def encode_progress(shard: int, progress: ProgressRecord) -> tuple[bytes, bytes]:
    """Key and value of the record; the key is the same for all of a shard, so compaction keeps the last."""
    value: dict[str, Any] = {"shard": shard, "batch": progress.batch, "ids": list(progress.event_ids)}
    if progress.previous_event_ids:
        value["before"] = list(progress.previous_event_ids)
    return str(shard).encode(), json.dumps(value, separators=(",", ":")).encode()


def decode_progress(value: bytes) -> ProgressRecord:
    """Raises NewerRelay. (Records of version 1 need not say so.)"""
    data = json.loads(value)
    version = data.get("version", 1)
    if version > VERSION:
        raise NewerRelay(
            f"a newer relay has published this outbox (its progress record has version {version}, this one knows "
            f"{VERSION}): run that one"
        )
    return ProgressRecord(data["batch"], data["ids"], data.get("before", ()))


def read_last_progress(settings: KafkaSettings, topic: str, shard: int) -> ProgressRecord:
    """The last committed record of a shard. Blocks.

    Call it after ``init_transactions`` of the shard's producer, which has ended every transaction of an earlier one:
    then all that can ever be in the partition is decided, and is there.

    Raises:
        Undecided: a transaction stays open.
        NewerRelay: the record cannot be read by this version.
        SagaError: Kafka does not answer.
    """
    until = time.monotonic() + HANGING_AFTER
    while True:
        offsets = KafkaAdmin(settings).offsets(topic).get(shard)
        if offsets is None:
            raise SagaError(f"{topic} partition {shard} has no leader yet")  # the topic was made a moment ago
        if not offsets.undecided_records:
            break
        if time.monotonic() > until:
            raise HangingTransaction(topic, shard)
        time.sleep(0.1)
    back = _LOOKBACK
    while True:
        start = max(offsets.log_start, offsets.last_stable - back)
        found = _last_record(settings, topic, shard, start, offsets.last_stable)
        if found is not None or start == offsets.log_start:
            return found or ProgressRecord()
        back *= 8


def _last_record(settings: KafkaSettings, topic: str, shard: int, start: int, end: int) -> ProgressRecord | None:
    if start >= end:
        return None
    from confluent_kafka import Consumer, TopicPartition

    place = TopicPartition(topic, shard, start)
    config = consumer_config(settings, f"{settings.prefix}-relay-progress") | {"enable.partition.eof": True}
    consumer = Consumer(config)
    found: ProgressRecord | None = None
    until = time.monotonic() + READ_TIMEOUT
    try:
        consumer.assign([place])
        while time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                value: Any = message.value()
                found = decode_progress(value) if value else found
            elif error.name() == "_PARTITION_EOF":
                return found  # of a read_committed consumer it is the last stable offset
            elif not error.retriable():
                raise SagaError(f"{topic} partition {shard} cannot be read: {error.str()}")
        raise SagaError(f"{topic} partition {shard} was not read to its end in {READ_TIMEOUT:.0f} s")
    finally:
        consumer.close()
