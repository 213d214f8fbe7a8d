"""The checks of `saga doctor` for the readers of a project: where each stands in its topic, and whether it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import Client as Temporal

from saga_activities.connections import DatabaseConnections
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.range_reader import read_ranges
from saga_workers.client import Client
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.initial_positions import InitialPositions
from saga_workers.trigger.partition_assignment import truncated_positions
from saga_workers.trigger.project_readers import ProjectReader, TopicGroup, project_readers, reply_group
from saga_workers.trigger.replies import read_outbox_id, reply_topics
from saga_workers.trigger.retry import DependencyUnavailable
from sagas.errors import SagaError
from sagas.project import Project
from sagas.text.shell import saga_command
from sagas.text.shortening import counted

_OBSERVATION_PERIOD = 2.0
"""Seconds after which a first attempt that has not ended its process should be done."""


async def check_initial_positions(project: Project, temporal: Temporal | None) -> DoctorResult | None:
    """Report a reader that waits for a decision where it begins."""
    async with AsyncExitStack() as stack:
        databases = DatabaseConnections(project.settings.sql_connections())
        stack.push_async_callback(databases.close)
        positions = InitialPositions(project, databases, None if temporal is None else Client(temporal, project))
        stack.callback(positions.close)
        try:
            async with asyncio.timeout(60.0):
                for reader in project_readers(project):
                    with contextlib.suppress(DependencyUnavailable):  # the check of the database says why
                        if (undecided := await positions.look(reader)) is not None:
                            return DoctorResult("kafka triggers", False, undecided.message, undecided.help)
        except SagaError as error:
            return DoctorResult("kafka triggers", False, error.message, error.help)
        except TimeoutError:
            return DoctorResult("kafka triggers", False, "no answer within 60 s")
    return None


@dataclass(frozen=True, slots=True)
class _Standing:
    """The positions where the next start of a reader begins in each partition of its topic, and what they leave out.

    ``why``: its committed position is not where it begins, because of this. ``deleted``: offsets between its position
    and the first one that is left, by partition.
    """

    starts: Mapping[int, int]
    offsets: Mapping[int, PartitionOffsets]
    why: str
    deleted: Mapping[int, int]

    @property
    def waiting(self) -> int:
        return sum(bounds.high_watermark - self.starts[partition] for partition, bounds in self.offsets.items())


def _standing(cluster: KafkaAdmin, topic: str, positions: Mapping[int, tuple[int, str]]) -> _Standing:
    topic_id, offsets = cluster.topic_id(topic), cluster.offsets(topic)
    unread = truncated_positions(cluster, topic, topic_id, positions, offsets)
    starts: dict[int, int] = {}
    deleted: dict[int, int] = {}
    why = ""
    for partition, bounds in offsets.items():
        position, metadata = positions.get(partition, (bounds.log_start, ""))
        if (read_id := DeliveryMark.parse(metadata).topic_id) and topic_id and read_id != topic_id:
            position, why = bounds.log_start, f"{topic} was deleted and created again"
        elif partition in unread:
            end, position = position, unread[partition]
            why = f"{topic}[{partition}] was truncated before the position {end}, at {position}"
        elif position > bounds.high_watermark:
            end = bounds.high_watermark
            why = f"{topic}[{partition}] ends at {end}, before the position {position}: it was truncated"
            position = bounds.log_start
        elif position < bounds.log_start:
            deleted[partition] = bounds.log_start - position
        starts[partition] = min(max(position, bounds.log_start), bounds.high_watermark)
    return _Standing(starts, offsets, why, deleted)


async def reply_groups(project: Project) -> list[TopicGroup]:
    """The groups of the listener for replies; none if the outbox cannot be read, as the check of its database says."""
    kafka = project.settings.kafka
    topics = reply_topics(project.definitions, kafka.prefix)
    if not topics or kafka.outbox is None:
        return []
    databases = DatabaseConnections(project.settings.sql_connections())
    try:
        async with asyncio.timeout(15.0):
            outbox_id = await read_outbox_id(databases.engine(kafka.outbox))
    except (SagaError, SQLAlchemyError, OSError, TimeoutError):
        return []
    finally:
        await databases.close()
    return [reply_group(kafka.prefix, outbox_id, topic) for topic in topics]


def check_positions(cluster: KafkaAdmin, readers: Sequence[TopicGroup]) -> str:
    """How far each reader is behind. Raises KafkaOperationError for one that does not go on."""
    lags = []
    existing = cluster.topics()
    start = "saga dev up" if cluster.settings.embedded else "saga trigger"
    for reader in readers:
        who, topic, group = reader.name, reader.topic, reader.group
        if not isinstance(reader, ProjectReader):
            if topic not in existing:  # the default one, which no step names
                continue
            who = "the listener for replies"
        positions = cluster.committed_positions(group, topic)
        _refuse_crash_loop(cluster, reader, who, {partition: text for partition, (_, text) in positions.items()})
        standing = _standing(cluster, topic, positions)
        for partition, count in standing.deleted.items():
            # Transaction markers also have offsets.
            raise KafkaOperationError(
                f"at most {counted(count, 'event')} of {topic}[{partition}] "
                f"{'was' if count == 1 else 'were'} deleted before {who} had read them",
                help=f"{start}    (reads what is left; give the topic a longer retention.ms)",
            )
        waiting = standing.waiting
        if waiting and not positions:
            raise KafkaOperationError(
                f"{counted(waiting, 'event')} of {topic} wait{'s' if waiting == 1 else ''} for {who}, "
                "but nothing has been read",
                help=start,
            )
        if waiting and not cluster.has_members(group) and _has_unread(cluster, topic, standing):
            because = f", and all are read: {standing.why}" if standing.why else ""
            raise KafkaOperationError(
                f"at most {counted(waiting, 'event')} of {topic} wait for {who}, and no process reads them{because}",
                help=start,
            )
        # The offsets in between include transaction markers and records of aborted or open transactions.
        behind = f"is at most {counted(waiting, 'event')} of {topic} behind"
        lags.append(f"{who} {behind if waiting else f'has read all events of {topic}'}")
    return ", ".join(lags) or "none"


def _has_unread(cluster: KafkaAdmin, topic: str, standing: _Standing) -> bool:
    """Return whether a record is behind the positions: the offsets alone include those of transaction markers."""
    ranges = {
        partition: (standing.starts[partition], offsets.last_stable) for partition, offsets in standing.offsets.items()
    }
    with contextlib.closing(read_ranges(cluster.settings, topic, ranges)) as records:
        return next(records, None) is not None


def _refuse_crash_loop(cluster: KafkaAdmin, reader: TopicGroup, who: str, metadata: Mapping[int, str]) -> None:
    """Raise KafkaOperationError if a record is handled carefully because a process has ended, and does not get done."""
    marks = {partition: DeliveryMark.parse(text) for partition, text in metadata.items()}
    begun = {partition: mark for partition, mark in marks.items() if mark.attempts}
    if begun and all(mark.attempts == 1 for mark in begun.values()):  # it may be done in a moment
        time.sleep(_OBSERVATION_PERIOD)
        now = cluster.committed_positions(reader.group, reader.topic)
        begun = {partition: mark for partition, mark in begun.items() if DeliveryMark.parse(now[partition][1]) == mark}
    for partition, mark in begun.items():
        raise KafkaOperationError(
            f"a process was ended while {who} handled {reader.topic}[{partition}]@{mark.offset}, attempt"
            f" {mark.attempts} has not succeeded",
            help=f"after its `max_attempts` it is a dead letter; {saga_command('trigger', only=reader.name)}"
            " runs this reader apart",
        )
