"""How far a publication into a topic has come: a record written in the transaction of each file's rows.

One compacted topic for all publications; the last record of a publication's name counts.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from saga_activities.kafka.reading import read_ranges
from saga_activities.kafka.topics import Cluster, KafkaProblem
from saga_activities.kafka.transactions import Sent
from saga_activities.kafka.wire import Record
from sagas.settings import KafkaSettings

PARTITIONS = 8
"""A publication keeps its partition, so this never changes."""

_MARGIN = 30.0
"""Seconds above the longest transaction until one that is open in a partition has to be decided: brokers end those of
the dead every ten seconds."""

_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """``files`` of the manifest are in ``topic``; ``done``: it was all. ``closed``: no more of it will ever come."""

    topic: str
    mark: Mapping[str, str] = field(default_factory=dict)
    files: int = 0
    done: bool = False
    closed: bool = False

    @property
    def visible(self) -> bool:
        return self.files > 0 or self.done


def topic_of(settings: KafkaSettings) -> str:
    return f"{settings.prefix}-spark"


def ensure(settings: KafkaSettings) -> None:
    """Make the topic of the records where it is missing. Raises KafkaProblem."""
    Cluster(settings).ensure(topic_of(settings), PARTITIONS, cleanup="compact")


def record(settings: KafkaSettings, name: str, progress: Progress) -> Sent:
    """What is written with the rows; ``name`` is the publication's (``Target.name``)."""
    value = json.dumps(asdict(progress), sort_keys=True).encode()
    return topic_of(settings), partition_of(name), Record(value, name.encode())


def last(settings: KafkaSettings, name: str) -> Progress | None:
    """How far a publication has come; None: it has not begun. Raises KafkaProblem.

    Whoever has opened the publication's producer before knows that nothing else of it can follow. Others wait for its
    open transaction. Nobody waits for those of other publications.
    """
    found = None
    for key, progress in _read(settings, partition_of(name), name):
        if key == name:
            found = progress
    return found


def all_of(settings: KafkaSettings, topic: str) -> Iterator[Progress]:
    """The publications that a topic shows. Raises KafkaProblem."""
    found = {key: one for partition in range(PARTITIONS) for key, one in _read(settings, partition)}
    yield from (one for one in found.values() if one.topic == topic and one.visible)


def _read(settings: KafkaSettings, partition: int, name: str | None = None) -> Iterator[tuple[str, Progress]]:
    """What is decided in a partition, once nothing of ``name`` (None: of anybody) is open that was so at first."""
    topic, cluster = topic_of(settings), Cluster(settings)
    if topic not in cluster.topics():
        return
    offsets = cluster.offsets(topic)[partition]
    patience, high = settings.transaction_timeout + _MARGIN, offsets.high
    end = time.monotonic() + patience
    while offsets.stable < high and _speaks(settings, (offsets.stable, high), partition, name):
        if time.monotonic() > end:
            raise KafkaProblem(f"Kafka, topic {topic}: a transaction is not decided after {patience:.0f} s.")
        time.sleep(_PAUSE)
        offsets = cluster.offsets(topic)[partition]
    for message in read_ranges(settings, topic, {partition: (offsets.first, offsets.stable)}):
        key: Any = message.key()
        value: Any = message.value()
        if key and value:
            yield key.decode(), Progress(**json.loads(value))


def _speaks(settings: KafkaSettings, offsets: tuple[int, int], partition: int, name: str | None) -> bool:
    """Are there records of ``name`` between the two, committed or not?"""
    if name is None:
        return True
    records = read_ranges(settings, topic_of(settings), {partition: offsets}, uncommitted=True)
    return any(message.key() == name.encode() for message in records)


def partition_of(name: str) -> int:
    """Where the records of a publication are, among those of others."""
    return zlib.crc32(name.encode()) % PARTITIONS
