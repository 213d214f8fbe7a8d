"""The header with which a bridge names the source of each record it writes, and where its output ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.range_reader import read_ranges
from saga_activities.kafka.record_codec import known_headers
from saga_activities.kafka.topic_end import topic_end
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Message

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
    settings: KafkaSettings, topics: Iterable[str], source: str, topic_id: str, is_needed: Callable[[str], bool]
) -> dict[str, dict[int, int]]:
    """Group → partition of ``source`` → the offset after the last record whose output is in ``topics``.

    Reads these topics from their beginning to their end. Blocks. Raises KafkaOperationError; OpenTransaction if output
    of a group for which ``is_needed`` holds is hidden: then nobody knows yet where it ends.
    """
    positions: dict[str, dict[int, int]] = {}
    topics = list(topics)
    missing = KafkaAdmin(settings).unusable_topics(topics)
    ends = [topic_end(settings, topic, wait=_DECISION_TIMEOUT) for topic in topics if topic not in missing]

    def origins(messages: Iterable[Message]) -> Iterator[BridgeSource]:
        for message in messages:
            origin = BridgeSource.parse(known_headers(message).get(SOURCE_HEADER, ""))
            if origin is not None and (origin.topic, origin.topic_id) == (source, topic_id):
                yield origin

    for end in ends:
        for origin in origins(read_ranges(settings, end.topic, end.hidden(), uncommitted=True)):
            if is_needed(origin.group):
                raise end.open_transaction(f"{origin.group} has output in {end.topic} that cannot be read yet,")
    for end in ends:
        for origin in origins(read_ranges(settings, end.topic, end.readable())):
            reached = positions.setdefault(origin.group, {})
            reached[origin.partition] = max(reached.get(origin.partition, 0), origin.offset + 1)
    return positions
