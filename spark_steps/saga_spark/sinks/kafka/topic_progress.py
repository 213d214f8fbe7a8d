"""The progress of a publication into a topic: a record in the transaction of each file's rows.

One compacted topic serves all publications; the last record of a publication's name is the current one.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.range_reader import read_ranges
from saga_activities.kafka.record_codec import EncodedRecord
from saga_activities.kafka.transactional_producer import PartitionRecord
from sagas.settings import KafkaSettings
from sagas.text.exact_json import canonical_json, decode_json

PROGRESS_PARTITIONS = 8
"""Never changes, because a publication must stay in its partition."""

_DECISION_MARGIN = 30.0
"""Seconds to wait, in addition to the longest transaction timeout, until an open transaction is decided: brokers abort
expired transactions every ten seconds."""

_POLL_INTERVAL = 0.2


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """``files`` of the manifest are in ``topic``; ``done``: all of them. ``closed``: no more will ever follow."""

    topic: str
    mark: Mapping[str, str] = field(default_factory=dict)
    files: int = 0
    done: bool = False
    closed: bool = False

    @property
    def visible(self) -> bool:
        return self.files > 0 or self.done


def progress_topic(settings: KafkaSettings) -> str:
    return f"{settings.prefix}-spark"


def ensure_progress_topic(settings: KafkaSettings) -> None:
    """Create the progress topic if it is missing. Raises KafkaOperationError."""
    KafkaAdmin(settings).ensure_topic(progress_topic(settings), PROGRESS_PARTITIONS, cleanup_policy="compact")


def progress_record(settings: KafkaSettings, name: str, progress: TopicProgress) -> PartitionRecord:
    """The record written together with the rows; ``name`` is the publication's (``Target.name``)."""
    value = canonical_json(asdict(progress)).encode()
    return progress_topic(settings), progress_partition(name), EncodedRecord(value, name.encode())


def read_progress(settings: KafkaSettings, name: str) -> TopicProgress | None:
    """The progress of a publication; None if it has not begun. Raises KafkaOperationError.

    Call it after initialising the publication's producer, which excludes further records. Other callers wait for the
    publication's open transaction. Transactions of other publications are not waited for.
    """
    latest = None
    for key, progress in _read_partition(settings, progress_partition(name), name):
        if key == name:
            latest = progress
    return latest


def visible_publications(settings: KafkaSettings, topic: str) -> Iterator[TopicProgress]:
    """The publications that are visible in a topic. Raises KafkaOperationError."""
    publications = {
        name: progress
        for partition in range(PROGRESS_PARTITIONS)
        for name, progress in _read_partition(settings, partition)
    }
    yield from (progress for progress in publications.values() if progress.topic == topic and progress.visible)


def _read_partition(
    settings: KafkaSettings, partition: int, name: str | None = None
) -> Iterator[tuple[str, TopicProgress]]:
    """The committed records, once transactions of ``name`` (None: all) that were open at the start have ended."""
    topic, cluster = progress_topic(settings), KafkaAdmin(settings)
    if topic not in cluster.topics():
        return
    offsets = cluster.offsets(topic)[partition]
    timeout, high_watermark = settings.transaction_timeout + _DECISION_MARGIN, offsets.high_watermark
    end = time.monotonic() + timeout
    while offsets.last_stable < high_watermark and _has_records_of(
        settings, (offsets.last_stable, high_watermark), partition, name
    ):
        if time.monotonic() > end:
            raise KafkaOperationError(f"a transaction in the topic {topic} is still open after {timeout:.0f} s")
        time.sleep(_POLL_INTERVAL)
        offsets = cluster.offsets(topic)[partition]
    for message in read_ranges(settings, topic, {partition: (offsets.log_start, offsets.last_stable)}):
        key: Any = message.key()
        value: Any = message.value()
        if key and value:
            yield key.decode(), TopicProgress(**decode_json(value))


def _has_records_of(settings: KafkaSettings, offsets: tuple[int, int], partition: int, name: str | None) -> bool:
    """Return whether the range contains records of ``name``, committed or not."""
    if name is None:
        return True
    records = read_ranges(settings, progress_topic(settings), {partition: offsets}, uncommitted=True)
    return any(message.key() == name.encode() for message in records)


def progress_partition(name: str) -> int:
    """The partition of the progress topic that holds a publication's records."""
    return zlib.crc32(name.encode()) % PROGRESS_PARTITIONS
