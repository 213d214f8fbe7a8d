"""The header with which a bridge names the source of each record it writes, and where its output ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.range_reader import decided_offsets, read_ranges
from saga_activities.kafka.record_codec import known_headers
from sagas.settings import KafkaSettings

SOURCE_HEADER = "sagabridge"

_DECISION_TIMEOUT = 10.0
"""Seconds that transactions in the output have to end before it is read."""


@dataclass(frozen=True, slots=True)
class BridgeSource:
    """The record that a bridge has read: its group, and topic, partition, offset and the topic's id."""

    group: str
    topic: str
    partition: int
    offset: int
    topic_id: str

    def __str__(self) -> str:
        return f"{self.group}/{self.topic}/{self.partition}/{self.offset}/{self.topic_id}"

    @classmethod
    def parse(cls, text: str) -> BridgeSource | None:
        """Read the header; None for text of another form."""
        words = text.rsplit("/", 4)
        if len(words) != 5 or not (words[2].isdecimal() and words[3].isdecimal()):
            return None
        return cls(words[0], words[1], int(words[2]), int(words[3]), words[4])


def output_positions(
    settings: KafkaSettings, topics: Iterable[str], source: str, topic_id: str
) -> dict[str, dict[int, int]]:
    """Group → partition of ``source`` → the offset after the last record whose output is in ``topics``.

    Reads these topics from their beginning to their end. Blocks. Raises KafkaOperationError.
    """
    positions: dict[str, dict[int, int]] = {}
    topics = list(topics)
    missing = KafkaAdmin(settings).unusable_topics(topics)
    for topic in topics:
        if topic in missing:
            continue
        offsets = decided_offsets(settings, topic, _DECISION_TIMEOUT)
        ranges = {partition: (bounds.log_start, bounds.last_stable) for partition, bounds in offsets.items()}
        for message in read_ranges(settings, topic, ranges):
            origin = BridgeSource.parse(known_headers(message).get(SOURCE_HEADER, ""))
            if origin is not None and (origin.topic, origin.topic_id) == (source, topic_id):
                reached = positions.setdefault(origin.group, {})
                reached[origin.partition] = max(reached.get(origin.partition, 0), origin.offset + 1)
    return positions
