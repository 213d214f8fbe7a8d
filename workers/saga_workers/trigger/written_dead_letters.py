"""The records that have a dead letter already, as the dead letter topics tell: none is written twice."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from saga_activities.kafka.dead_letter_headers import (
    GROUP_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    TIMESTAMP_HEADER,
    TOPIC_ID_HEADER,
)
from saga_activities.kafka.range_reader import read_ranges
from saga_activities.kafka.record_codec import known_headers
from saga_activities.kafka.topic_end import TopicEnd, topic_end
from saga_workers.topics.topic_inventory import DEAD_LETTER_SUFFIX
from saga_workers.trigger.consumed_record import ConsumedRecord
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Message

_Place = tuple[str, str, str, str, str]
"""Topic, its id, partition, offset, and the time of the record: in a truncated partition others get the offsets."""

_DECISION_TIMEOUT = 2.0
"""Seconds that transactions of bridges in a dead letter topic have to end before it is read."""


class WrittenDeadLetters:
    """Reads a dead letter topic when it is first asked for a record, and what was added after the reader of another
    record has taken its partition over. Calls block.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._reached: dict[str, dict[int, int]] = defaultdict(dict)
        self._read_at: dict[str, float] = {}
        self._groups: dict[_Place, set[str]] = defaultdict(set)
        self._hidden: dict[str, dict[_Place, set[str]]] = {}
        """The letters of each topic that an open transaction hides: whether they exist is not known yet."""
        self._ends: dict[str, TopicEnd] = {}

    def has(self, record: ConsumedRecord, is_writer: Callable[[str], bool]) -> bool:
        """True if the record has a dead letter of a group for which ``is_writer`` holds. Its topic must exist.

        Raises KafkaOperationError; OpenTransaction if such a dead letter is hidden.
        """
        topic, place = record.topic + DEAD_LETTER_SUFFIX, _place(record)

        def is_hidden() -> bool:
            return any(map(is_writer, self._hidden.get(topic, {}).get(place, ())))

        with self._lock:
            # Later letters are those of this process: nobody else writes for a partition that it has taken over.
            taken_over = record.taken_over
            if taken_over is not None and (taken_over >= self._read_at.get(topic, -math.inf) or is_hidden()):
                self._read(record.topic, topic)
            if any(map(is_writer, self._groups.get(place, ()))):
                return True
            if is_hidden():
                raise self._ends[topic].open_transaction(f"a dead letter of {record.position} may be")
            return False

    def add(self, record: ConsumedRecord, group: str) -> None:
        """Note a dead letter that this process has written."""
        with self._lock:
            self._groups[_place(record)].add(group)

    def forget(self, topic: str) -> None:
        """A dead letter topic was deleted."""
        with self._lock:
            self._reached.pop(topic, None)
            self._read_at.pop(topic, None)
            self._hidden.pop(topic, None)
            source = topic.removesuffix(DEAD_LETTER_SUFFIX)
            for place in [place for place in self._groups if place[0] == source]:
                del self._groups[place]

    def _read(self, source: str, topic: str) -> None:
        began, reached = time.monotonic(), self._reached[topic]
        end = topic_end(self._settings, topic, wait=_DECISION_TIMEOUT)
        hidden: dict[_Place, set[str]] = defaultdict(set)
        for message in read_ranges(self._settings, topic, end.hidden(), uncommitted=True):
            _note(hidden, source, message)
        ranges = end.readable(reached)
        for message in read_ranges(self._settings, topic, ranges):
            _note(self._groups, source, message)
        reached.update((partition, last) for partition, (_, last) in ranges.items())
        self._hidden[topic], self._ends[topic] = hidden, end
        self._read_at[topic] = began


def _note(groups: dict[_Place, set[str]], source: str, message: Message) -> None:
    headers = known_headers(message)
    names = (TOPIC_ID_HEADER, PARTITION_HEADER, OFFSET_HEADER, TIMESTAMP_HEADER)
    id, partition, offset, timestamp = (headers.get(name, "") for name in names)
    groups[source, id, partition, offset, timestamp].add(headers.get(GROUP_HEADER, ""))


def _place(record: ConsumedRecord) -> _Place:
    return record.topic, record.topic_id, str(record.partition), str(record.offset), str(record.timestamp)
