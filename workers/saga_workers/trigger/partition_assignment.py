"""The positions at which a member of a consumer group begins to read. They belong to a topic and its id.

Kafka keeps the committed offsets of a name. After the topic was deleted and created again they would skip its first
records, so each commit carries the id of the topic in its metadata (`delivery.py`), and another id means: from the
beginning. Positions that the partition does not have any more are named, because records are lost or read again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_workers.runtime.logs import fields
from saga_workers.trigger.committed_positions import commit_position
from saga_workers.trigger.delivery import DeliveryMark

log = logging.getLogger("saga.trigger")

REQUEST_TIMEOUT = 15.0
"""Seconds for a request to the brokers."""

MISSING_PARTITION_LIMIT = 20.0
"""Seconds until an assigned partition that the brokers do not name counts as gone: new ones are named before that."""

_PAUSE = 0.2

IDENTITY_INTERVAL = 2.0
"""Seconds until an idle reader looks whether its topic is still the same one."""

OWN_RESET = {"auto.offset.reset": "error"}
"""The reader resets positions itself, and says so."""


class PartitionMissing(KafkaOperationError):
    """The brokers do not name a partition: it has just been added, or the topic was created again with fewer ones."""

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(f"Kafka: {topic}[{partition}] is not there; try again")
        self.partition = partition


class PartitionTruncated(KafkaOperationError):
    """A position is beyond the end of its partition, and to read it again would repeat what was done."""


@dataclass(frozen=True, slots=True)
class AssignedPosition:
    """The position at which a member begins to read a partition, its mark, and the end of the partition then."""

    topic: str
    partition: int
    offset: int
    mark: DeliveryMark
    end: int


def assign_from_commits(
    client: Any,
    cluster: KafkaAdmin,
    group: str,
    partitions: Iterable[Any],
    topic_id: str,
    *,
    is_cooperative: bool,
    reader: str,
    repeats: bool = False,
) -> list[AssignedPosition]:
    """Assign the partitions of the topic with this id from their committed positions. Call it in `on_assign`.

    ``reader``: the id of the reader that marks them as open. ``repeats``: it would repeat what it has done for records
    that it reads again, as it does not recognise them.

    Raises KafkaException, KafkaOperationError; PartitionTruncated if it ``repeats``, and a person has to decide.
    """
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    starts: list[AssignedPosition] = []
    positions = client.committed(
        [TopicPartition(partition.topic, partition.partition) for partition in partitions], REQUEST_TIMEOUT
    )
    for position in positions:
        mark, offset = replace(DeliveryMark.parse(position.metadata), topic_id=topic_id), position.offset
        low, high = _watermarks(cluster, position)
        if repeats and is_beyond(position.offset, position.metadata, topic_id, high):
            raise PartitionTruncated(
                f"the position {position.offset} of {position.topic}[{position.partition}] is beyond the end of the"
                f" partition, {high}: it was truncated, and what is left would be written again",
                help="saga doctor    names the decisions that there are",
            )
        if not _is_usable(group, position, topic_id, low, high):
            offset, mark, position.offset = low, DeliveryMark(topic_id), OFFSET_BEGINNING
        _warn_unfinished(group, position, mark, reader)
        mark = mark.taken_over(reader)
        starts.append(AssignedPosition(position.topic, position.partition, offset, mark, high))
    if starts:
        marked = [commit_position(start.topic, start.partition, start.offset, start.mark) for start in starts]
        client.commit(offsets=marked, asynchronous=False)
    (client.incremental_assign if is_cooperative else client.assign)(positions)
    return starts


def assign_when_told(
    assign: Callable[[list[Any]], list[AssignedPosition]],
    partitions: list[Any],
    *,
    is_stopping: Callable[[], bool],
    note: Callable[[Any], None],
) -> list[AssignedPosition]:
    """Repeat ``assign`` until the brokers tell what it needs, or the reader stops. ``note`` is told each problem.

    A partition that they do not name for long is left out: the topic was created again with fewer ones, and the group
    learns that only from members that poll.
    """
    from confluent_kafka import KafkaException

    due = time.monotonic() + MISSING_PARTITION_LIMIT
    while not is_stopping():
        try:
            return assign(partitions)
        except (KafkaOperationError, KafkaException) as error:
            note(error)
            if isinstance(error, PartitionMissing) and time.monotonic() > due:
                partitions = [partition for partition in partitions if partition.partition != error.partition]
        time.sleep(_PAUSE)
    return []


def _warn_unfinished(group: str, position: Any, mark: DeliveryMark, reader: str) -> None:
    if not mark.is_open or mark.reader == reader:
        return
    about = fields(group=group, topic=position.topic, partition=position.partition, position=position.offset)
    if mark.attempts:
        record = f"{position.topic}/{position.partition}/{mark.offset}"
        log.warning("a process ended in attempt %d to handle the record %s", mark.attempts, record, extra=about)
    else:
        log.warning(
            "the last process that read this partition ended without leaving its group; the next %d records are handled"
            " one at a time, which shows whether one of them is the cause",
            mark.taken_over(reader).window,
            extra=about,
        )


def commit_beginnings(
    client: Any, cluster: KafkaAdmin, topic: str, partitions: Iterable[int], mark: DeliveryMark
) -> None:
    """Commit the beginnings of these partitions. Raises KafkaException, KafkaOperationError."""
    from confluent_kafka import KafkaException

    offsets = cluster.offsets(topic)
    positions = [
        commit_position(topic, partition, offsets[partition].log_start, mark)
        for partition in partitions
        if partition in offsets
    ]
    committed = client.commit(offsets=positions, asynchronous=False) if positions else []
    for position in committed:
        if position.error is not None:
            raise KafkaException(position.error)


def move_assignment(
    client: Any, topic: str, assigned: Iterable[int], starts: Mapping[int, int], *, is_cooperative: bool
) -> None:
    """Go on at other offsets in some of the assigned partitions. Raises KafkaException."""
    from confluent_kafka import TopicPartition

    if is_cooperative:
        client.incremental_unassign([TopicPartition(topic, partition) for partition in starts])
        client.incremental_assign([TopicPartition(topic, partition, offset) for partition, offset in starts.items()])
        return
    places = client.position([TopicPartition(topic, partition) for partition in sorted(assigned)])
    client.assign(
        [TopicPartition(topic, place.partition, starts.get(place.partition, place.offset)) for place in places]
    )


def _is_usable(group: str, committed: Any, topic_id: str, low: int, high: int) -> bool:
    if committed.offset < 0:
        return False  # nothing was committed: the first start
    committed_id = DeliveryMark.parse(committed.metadata).topic_id
    if topic_id and committed_id and committed_id != topic_id:
        warn_created_again(group, committed.topic)
        return False
    return _is_within(group, committed, low, high)


def is_beyond(offset: int, metadata: str | None, topic_id: str, end: int) -> bool:
    """True if a committed position is beyond the end of its partition in the topic with this id."""
    return offset > end and DeliveryMark.parse(metadata).topic_id in ("", topic_id)


def warn_outside(cluster: KafkaAdmin, group: str, position: Any) -> None:
    """Say what it means that the partition does not have this position. Raises KafkaOperationError."""
    _is_within(group, position, *_watermarks(cluster, position))


def _watermarks(cluster: KafkaAdmin, position: Any) -> tuple[int, int]:
    """The ends of a partition. The client of a read_committed member would take the last stable offset for the end."""
    bounds = cluster.offsets(position.topic).get(position.partition)
    if bounds is None:
        raise PartitionMissing(position.topic, position.partition)
    return bounds.log_start, bounds.high_watermark


def _is_within(group: str, position: Any, low: int, high: int) -> bool:
    """False if the partition does not have this position; the log then says what that means."""
    about = fields(group=group, topic=position.topic, partition=position.partition, position=position.offset)
    if position.offset < low:
        log.warning(
            "%d records were deleted before they were read, by the retention of the topic or by a request to delete"
            " records; reading goes on at %d",
            low - position.offset,
            low,
            extra=about,
        )
    elif position.offset > high:
        log.warning(
            "the position is beyond the end of the partition, %d, so it was truncated; it is read from its beginning,"
            " and records that were handled before are recognised by their ids",
            high,
            extra=about,
        )
    return low <= position.offset <= high


def warn_created_again(group: str, topic: str) -> None:
    """Say that a topic of this name is another one."""
    log.warning(
        "the topic was deleted and created again; it is read from its beginning", extra=fields(group=group, topic=topic)
    )
