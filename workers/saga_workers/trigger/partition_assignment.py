"""The positions at which a member of a consumer group begins to read. They belong to a topic and its id.

Kafka keeps the committed offsets of a name. After the topic was deleted and created again they would skip its first
records, so each commit carries the id of the topic in its metadata (`delivery.py`), and another id means: from the
beginning. Positions that the partition does not have any more are named, because records are lost or read again. The
records before a position may also be other ones than those that were read: each commit carries the leader epoch of the
newest record, which tells where such a partition is read again (`truncation.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.truncation import UNKNOWN_PLACE, ReadPlace, first_unread
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
    """A position is beyond the end of its partition, where the records that were read end is not known, and to read
    it from its beginning would repeat what was done.
    """


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
    begins: list[Any] = []
    positions = client.committed(
        [TopicPartition(partition.topic, partition.partition) for partition in partitions], REQUEST_TIMEOUT
    )
    offsets = cluster.offsets(positions[0].topic) if positions else {}
    committed = {each.partition: (each.offset, each.metadata) for each in positions}
    unread = truncated_positions(cluster, positions[0].topic, topic_id, committed, offsets) if positions else {}
    for position in positions:
        topic, partition, offset = position.topic, position.partition, position.offset
        mark = replace(DeliveryMark.parse(position.metadata), topic_id=topic_id)
        bounds = _bounds(offsets, position)
        if repeats and is_beyond(offset, position.metadata, topic_id, bounds.high_watermark):
            raise PartitionTruncated(
                f"the position {offset} of {topic}[{partition}] is beyond the end of the partition,"
                f" {bounds.high_watermark}: it was truncated, and what is left would be written again",
                help="saga doctor    names the decisions that there are",
            )
        if partition in unread:
            warn_truncated(group, position, unread[partition])
            offset = unread[partition]
            mark = replace(mark.between_records(), read=ReadPlace(offset, mark.read.epoch))
        elif not _is_usable(group, position, topic_id, bounds):
            offset, mark = bounds.log_start, DeliveryMark(topic_id)
        # Reading begins behind the newest record: control records may be of later epochs than it, and a client that
        # has the epoch of its place compares it with each new leader, also while there is nothing to read.
        place = mark.place(offset)
        begins.append(
            TopicPartition(topic, partition, OFFSET_BEGINNING if offset <= bounds.log_start else offset)
            if place.epoch < 0 or place.offset < bounds.log_start
            else TopicPartition(topic, partition, place.offset, leader_epoch=place.epoch)
        )
        _warn_unfinished(group, position, mark, reader)
        starts.append(AssignedPosition(topic, partition, offset, mark.taken_over(reader), bounds.high_watermark))
    if starts:
        marked = [commit_position(start.topic, start.partition, start.offset, start.mark) for start in starts]
        client.commit(offsets=marked, asynchronous=False)
    (client.incremental_assign if is_cooperative else client.assign)(begins)
    return starts


def truncated_positions(
    cluster: KafkaAdmin,
    topic: str,
    topic_id: str,
    committed: Mapping[int, tuple[int, str | None]],
    offsets: Mapping[int, PartitionOffsets],
) -> dict[int, int]:
    """Partitions that were truncated before their committed position (offset and metadata), with the offset at which
    reading goes on: all records before it are those that were read. Those in which that is not known are left out.

    Raises KafkaOperationError.
    """
    marks = {partition: (offset, DeliveryMark.parse(metadata)) for partition, (offset, metadata) in committed.items()}
    places = {
        partition: mark.place(offset)
        for partition, (offset, mark) in marks.items()
        if mark.topic_id in ("", topic_id) and mark.read.epoch >= 0 and partition in offsets
    }
    ends = {partition: offsets[partition].high_watermark for partition in places}
    beyond = {partition: end for partition, end in ends.items() if committed[partition][0] > end}
    return {**beyond, **first_unread(cluster, topic, places, offsets)}


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


def _is_usable(group: str, committed: Any, topic_id: str, bounds: PartitionOffsets) -> bool:
    if committed.offset < 0:
        return False  # nothing was committed: the first start
    committed_id = DeliveryMark.parse(committed.metadata).topic_id
    if topic_id and committed_id and committed_id != topic_id:
        warn_created_again(group, committed.topic)
        return False
    return _is_within(group, committed, bounds)


def is_beyond(offset: int, metadata: str | None, topic_id: str, end: int) -> bool:
    """True if a committed position is beyond the end of its partition in the topic with this id, and which of the
    records before that end were read is not known.
    """
    mark = DeliveryMark.parse(metadata)
    return offset > end and mark.topic_id in ("", topic_id) and mark.read.epoch < 0


def place_to_go_on(cluster: KafkaAdmin, group: str, position: Any, read: ReadPlace) -> ReadPlace:
    """Say what it means that the partition does not have this position any more, or other records before it.

    Returns the place behind those that were read and are left; unknown if it is to be read from its beginning.
    ``read``: the place behind the newest one that was read.
    """
    try:
        offsets = cluster.offsets(position.topic)
        unread = first_unread(cluster, position.topic, {position.partition: read}, offsets)
        if position.partition not in unread:
            _is_within(group, position, _bounds(offsets, position))
            return UNKNOWN_PLACE
    except KafkaOperationError:
        about = fields(group=group, topic=position.topic, partition=position.partition, position=position.offset)
        log.warning("the position does not hold any more; the partition is read from its beginning", extra=about)
        return UNKNOWN_PLACE
    warn_truncated(group, position, unread[position.partition])
    return ReadPlace(unread[position.partition], read.epoch)


def _bounds(offsets: Mapping[int, PartitionOffsets], position: Any) -> PartitionOffsets:
    """The ends of a partition. The client of a read_committed member would take the last stable offset for the end."""
    if position.partition not in offsets:
        raise PartitionMissing(position.topic, position.partition)
    return offsets[position.partition]


def _is_within(group: str, position: Any, bounds: PartitionOffsets) -> bool:
    """False if the partition does not have this position; the log then says what that means."""
    about = fields(group=group, topic=position.topic, partition=position.partition, position=position.offset)
    low, high = bounds.log_start, bounds.high_watermark
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


def warn_truncated(group: str, position: Any, first_unread: int) -> None:
    """Say that the last records before this position are not there any more, or other ones."""
    log.warning(
        "the partition was truncated: the records from %d on are not those that were read; reading goes on there",
        first_unread,
        extra=fields(group=group, topic=position.topic, partition=position.partition, position=position.offset),
    )


def warn_created_again(group: str, topic: str) -> None:
    """Say that a topic of this name is another one."""
    log.warning(
        "the topic was deleted and created again; it is read from its beginning", extra=fields(group=group, topic=topic)
    )
