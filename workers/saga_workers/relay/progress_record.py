"""The progress record: names a shard's last two batches, written in the same Kafka transaction as the events.

Each outbox has one compacted topic, with one partition per shard. After an error the record resolves an unknown commit:
a batch whose record is there is published and has to be recorded in the database; a batch whose record is missing never
happened. The record also names the previous batch, because the database may not have recorded it yet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config
from sagas.errors import SagaError
from sagas.settings import KafkaSettings
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.shell import shell_command

READ_TIMEOUT = 30.0
"""Seconds to read the end of one partition."""

VERSION = 1
"""The version of the records that this relay writes, and the highest that it reads. A change that an older relay cannot
read raises it: the older relay then stops instead of publishing events twice.
"""

HANGING_AFTER = 5.0
"""Seconds after which an undecided transaction is taken for hanging, once every producer has ended its own."""

_LOOKBACK = 64
"""Offsets to read backwards first. Each transaction takes two, as its marker takes one even when it is aborted."""


class NewerRelay(SagaError):
    """The progress record has a newer version than this relay can read."""


class HangingTransaction(SagaError):
    """A transaction in a shard's partition stays open although its producer has ended: it is hanging."""

    def __init__(self, topic: str, shard: int) -> None:
        super().__init__(
            f"{topic} partition {shard} has a hanging transaction",
            help=shell_command(
                "kafka-transactions.sh", "describe-producers", "--topic", topic, "--partition", str(shard)
            ),
        )


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """The event ids of a shard's batch number ``batch`` (from 1; 0: none yet).

    ``previous_event_ids`` are those of the batch before, unless it was already recorded when this one began.
    """

    batch: int = 0
    event_ids: Sequence[str] = ()
    previous_event_ids: Sequence[str] = ()


def encode_progress(shard: int, progress: ProgressRecord) -> tuple[bytes, bytes]:
    """Key and value of the record. All records of a shard have one key, so compaction keeps the last."""
    value = {
        "version": VERSION,
        "shard": shard,
        "batch": progress.batch,
        "event_ids": list(progress.event_ids),
        "previous_event_ids": list(progress.previous_event_ids),
    }
    return str(shard).encode(), encode_json(value)


def decode_progress(value: bytes) -> ProgressRecord:
    """Decode a record. Raises NewerRelay."""
    data = decode_json(value)
    if data["version"] > VERSION:
        raise NewerRelay(
            f"a newer relay has published this outbox (its progress record has version {data['version']}, this one "
            f"reads up to {VERSION}); run the newer relay"
        )
    return ProgressRecord(data["batch"], data["event_ids"], data["previous_event_ids"])


def read_last_progress(settings: KafkaSettings, topic: str, shard: int) -> ProgressRecord:
    """The last committed record of a shard. Blocks.

    Call it after ``init_transactions`` of the shard's producer: this ends every transaction of an earlier producer, so
    the records in the partition are final.

    Raises:
        HangingTransaction: a transaction stays open.
        NewerRelay: this version cannot read the record.
        SagaError: Kafka does not answer.
    """
    until = time.monotonic() + HANGING_AFTER
    while True:
        offsets = KafkaAdmin(settings).offsets(topic).get(shard)
        if offsets is None:
            raise SagaError(f"{topic} partition {shard} has no leader yet")  # the topic has just been created
        if not offsets.undecided_records:
            break
        if time.monotonic() > until:
            raise HangingTransaction(topic, shard)
        time.sleep(0.1)
    back = _LOOKBACK
    while True:
        start = max(offsets.log_start, offsets.last_stable - back)
        record = _last_record(settings, topic, shard, start, offsets.last_stable)
        if record is not None or start == offsets.log_start:
            return record or ProgressRecord()
        back *= 8


def _last_record(settings: KafkaSettings, topic: str, shard: int, start: int, end: int) -> ProgressRecord | None:
    if start >= end:
        return None
    from confluent_kafka import Consumer, TopicPartition

    position = TopicPartition(topic, shard, start)
    config = consumer_config(settings, f"{settings.prefix}-relay-progress") | {"enable.partition.eof": True}
    consumer = Consumer(config)
    last: ProgressRecord | None = None
    until = time.monotonic() + READ_TIMEOUT
    try:
        consumer.assign([position])
        while time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                value: Any = message.value()
                last = decode_progress(value) if value else last
            elif error.name() == "_PARTITION_EOF":
                return last  # a read_committed consumer reaches it at the last stable offset
            elif not error.retriable():
                raise SagaError(f"{topic} partition {shard} cannot be read: {error.str()}")
        raise SagaError(f"{topic} partition {shard} was not read to its end within {READ_TIMEOUT:.0f} s")
    finally:
        consumer.close()
