"""The place where a reader begins whose group has no position in its topic, or a bridge one beyond a partition's end.

At the beginning, unless a predecessor has read the topic: the reader under another name or prefix, or before its group
was deleted or expired. Then it would repeat all effects, so it waits for a decision: `name=`, or `--from`. What tells
of a predecessor is what it has left: the inbox of a consumer, the output of a bridge, the sagas that events have
started, and the committed positions of groups that belong to no reader any more.

A bridge does not recognise what it reads again, so it waits, too, where its partition was truncated: it ends before the
position, and whether the records before its end are those that the bridge has read, nobody knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.connections import DatabaseConnections
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.errors import classify_kafka_error
from saga_activities.kafka.range_reader import read_ranges
from saga_activities.kafka.truncation import ReadPlace
from saga_activities.messaging import inbox
from saga_workers.client import Client
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.logs import fields
from saga_workers.topics.topic_inventory import DEAD_LETTER_SUFFIX
from saga_workers.trigger.bridge_output import output_positions
from saga_workers.trigger.committed_positions import commit_position
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.partition_assignment import is_beyond
from saga_workers.trigger.project_readers import ProjectReader, project_readers
from saga_workers.trigger.retry import DependencyUnavailable, retry_until_done
from saga_workers.trigger.saga_trigger import started_saga
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas.actions.consumers import Bridge, Consumer
from sagas.definition.model import Definition
from sagas.errors import InfrastructureError, SagaError
from sagas.project import Project
from sagas.text.shell import saga_command
from sagas.text.shortening import counted

log = logging.getLogger("saga.trigger")

EARLIEST, LATEST = "earliest", "latest"

PROBED_RECORDS = 10
"""Records at each end of a partition of which a trigger looks whether they have started a saga."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Undecided:
    """A reader that would repeat records, and the decisions that there are."""

    message: str
    help: str


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic in which a reader has no position. ``beyond``: those that it has, in partitions that end before them; the
    other partitions are none of its decision then.
    """

    id: str
    offsets: Mapping[int, PartitionOffsets]
    beyond: Mapping[int, int] = field(default_factory=dict)


class InitialPositions:
    """Decides where the readers of a project begin. Closed with the process.

    ``client``: that of the sagas, None if there are no triggers or Temporal is unavailable. ``start_from``: the
    decision: `earliest`, `latest`, or the group whose positions a reader takes over.
    """

    def __init__(
        self,
        project: Project,
        databases: DatabaseConnections,
        client: Client | None,
        start_from: str | None = None,
        *,
        metrics: TriggerMetrics | None = None,
    ) -> None:
        self._metrics = metrics or TriggerMetrics()
        self._project = project
        self._settings = project.settings.kafka
        self._databases = databases
        self._client = client
        self._from = start_from
        self._cluster = KafkaAdmin(self._settings)
        self._threads = ThreadPoolExecutor(4, "initial-positions")
        self._undecided: dict[str, Undecided] = {}  # by group
        self._waits: dict[str, str] = {}  # why a reader has not begun, by group

    def close(self) -> None:
        """Shut the threads down without waiting for requests in flight."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def health(self) -> str | None:
        """Why a reader reads nothing; None if it reads."""
        return next(iter(self._waits.values()), None)

    async def settle(self, reader: ProjectReader, stop: asyncio.Event) -> None:
        """Wait until the reader may begin. Raises ProcessStopping."""
        logged: list[str] = []

        def log_wait(reason: str, about: dict[str, Any]) -> None:
            self._waits[reader.group] = reason
            self._metrics.waits_to_begin(reader.group, reader.topic, reader.group not in self._undecided)
            if reason not in logged:
                logged.append(reason)
                log.warning("the reader waits: %s", reason, extra=about)

        async def attempt(_: int) -> None:
            try:
                undecided = await self.look(reader)
            except KafkaOperationError as error:
                raise DependencyUnavailable(error.message) from error
            if undecided is not None:
                self._undecided[reader.group] = undecided
                self._metrics.undecided(reader.group, reader.topic, True)
                raise DependencyUnavailable(f"{undecided.message}; {undecided.help}")

        about = fields(group=reader.group, topic=reader.topic)
        await retry_until_done(attempt, about=about, stop=stop, max_attempts=1_000_000, log_wait=log_wait)
        self._waits.pop(reader.group, None)
        self._metrics.waits_to_begin(reader.group, reader.topic, False)
        if self._undecided.pop(reader.group, None) is not None:
            self._metrics.undecided(reader.group, reader.topic, False)

    async def look(self, reader: ProjectReader) -> Undecided | None:
        """The decision that is missing; None if the reader has a position, or nobody has read before.

        Raises KafkaOperationError, and DependencyUnavailable if a predecessor cannot be excluded.
        """
        topic = await self._in_thread(lambda: self._without_position(reader))
        if topic is None:
            return None
        if self._from is not None and await self._in_thread(lambda: self._begin_at_decision(reader, topic)):
            return None
        if topic.beyond and isinstance(reader.source, Bridge):
            return _truncated(reader, reader.source, topic)
        return self._undecided.get(reader.group) or await self._find_predecessor(reader, topic)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _without_position(self, reader: ProjectReader) -> _Topic | None:
        """The topic, if it has records, and the reader has no position there, or a bridge none that it can use."""
        if self._cluster.unusable_topics([reader.topic]):
            return None  # the reader waits for the topic, and says why
        positions = self._cluster.committed_positions(reader.group, reader.topic)
        if positions and not isinstance(reader.source, Bridge):
            return None
        if positions:
            topic_id, offsets = self._cluster.topic_id(reader.topic), self._cluster.offsets(reader.topic)
            beyond = {
                partition: offset
                for partition, (offset, metadata) in positions.items()
                if partition in offsets and is_beyond(offset, metadata, topic_id, offsets[partition].high_watermark)
            }
            return _Topic(topic_id, offsets, beyond) if beyond else None
        offsets = self._cluster.offsets(reader.topic)
        if all(bounds.log_start == bounds.high_watermark for bounds in offsets.values()):
            return None
        return _Topic(self._cluster.topic_id(reader.topic), offsets)

    def _begin_at_decision(self, reader: ProjectReader, topic: _Topic) -> bool:
        """Commit the positions that were decided on; False if the group of the decision has none that can be used."""
        if self._from in (EARLIEST, LATEST):
            taken: Mapping[int, int] = {}
        elif topic.beyond or not (taken := self._positions_of(str(self._from), reader, topic)):
            return False
        at_end = self._from == LATEST
        positions = {
            partition: taken.get(partition, bounds.high_watermark if at_end else bounds.log_start)
            for partition, bounds in topic.offsets.items()
            if not topic.beyond or partition in topic.beyond
        }
        _commit(self._cluster, reader, topic, positions)
        about = fields(group=reader.group, topic=reader.topic, positions=positions)
        log.warning("reading begins where --from %s says", self._from, extra=about)
        return True

    def _positions_of(self, group: str, reader: ProjectReader, topic: _Topic) -> Mapping[int, int]:
        """The positions a group has committed for this topic, or else the ends of the output of this bridge."""
        committed = self._committed(group, reader.topic, topic.id)
        if committed or not isinstance(reader.source, Bridge):
            return committed
        return self._output_positions(reader.source, topic.id, group.__eq__).get(group, {})

    def _committed(self, group: str, topic: str, topic_id: str) -> dict[int, int]:
        positions = self._cluster.committed_positions(group, topic)
        return {
            partition: offset
            for partition, (offset, metadata) in positions.items()
            if DeliveryMark.parse(metadata).topic_id in ("", topic_id)
        }

    def _output_positions(
        self, bridge: Bridge, topic_id: str, is_needed: Callable[[str], bool]
    ) -> dict[str, dict[int, int]]:
        written = (bridge.to, bridge.topic + DEAD_LETTER_SUFFIX)
        return output_positions(self._settings, written, bridge.topic, topic_id, is_needed)

    async def _find_predecessor(self, reader: ProjectReader, topic: _Topic) -> Undecided | None:
        match reader.source:
            case Consumer():
                undecided = await self._find_in_inbox(reader, reader.source, topic)
            case Bridge():
                undecided = await self._in_thread(partial(self._find_in_output, reader, reader.source, topic))
            case Definition():
                undecided = None
        if undecided is None:
            undecided = await self._in_thread(lambda: self._find_group(reader, topic))
        if undecided is None and isinstance(reader.source, Definition):
            undecided = await self._find_sagas(reader, reader.source, topic)
        return undecided

    async def _find_in_inbox(self, reader: ProjectReader, consumer: Consumer, topic: _Topic) -> Undecided | None:
        engine = self._databases.engine(consumer.connection)
        uses = await _from_database(consumer.connection, inbox.topic_uses(engine, reader.topic, topic.id))
        existing = {other.name for other in self._project.message_handlers.consumers}
        for use in uses:
            if use.consumer == consumer.name:
                return Undecided(
                    f"{consumer.name} has no position in {reader.topic}, but the inbox of {consumer.connection} has"
                    f" {use.messages} of its messages, the last one of {_time_text(use.last_at)}: {_lost(reader)}",
                    f"{_decision(reader, EARLIEST)} handles those that the inbox does not have, and"
                    f" {_decision(reader, LATEST)} leaves out all that are there now",
                )
        for use in uses:
            if use.consumer not in existing:
                return Undecided(
                    f"{consumer.name} has no position in {reader.topic}, but the inbox of {consumer.connection} knows a"
                    f" consumer {use.consumer} that no longer exists, with "
                    f"{counted(use.messages, 'message')} of this topic, the"
                    f" last one of {_time_text(use.last_at)}",
                    _renamed_help(reader, use.consumer, "handles all of them again"),
                )
        return None

    def _find_in_output(self, reader: ProjectReader, bridge: Bridge, topic: _Topic) -> Undecided | None:
        existing = {other.group for other in project_readers(self._project)} - {reader.group}
        positions = self._output_positions(bridge, topic.id, lambda group: group not in existing)
        repeats = f"{_decision(reader, EARLIEST)} writes it again"
        if reader.group in positions:
            return Undecided(
                f"{bridge.name} has no position in {reader.topic}, but {bridge.to} has its output of"
                f" {_reached_text(positions[reader.group])}: {_lost(reader)}",
                f"{_decision(reader, reader.group)} goes on after that output, {repeats}, and"
                f" {_decision(reader, LATEST)} leaves out all that is there now",
            )
        for group, reached in sorted(positions.items()):
            if group not in existing:
                return Undecided(
                    f"{bridge.name} has no position in {reader.topic}, but {bridge.to} has output of the group {group},"
                    f" which no longer exists, of {_reached_text(reached)}",
                    f"{_name_advice(reader, group)}{_decision(reader, group)} goes on after that output, {repeats}, and"
                    f" {_decision(reader, LATEST)} leaves out all that is there now",
                )
        return None

    def _find_group(self, reader: ProjectReader, topic: _Topic) -> Undecided | None:
        """Undecided if a group that belongs to no reader any more has read this topic: a reader may have a new name."""
        existing = {other.group for other in project_readers(self._project)}
        end = f"-{reader.topic}" if isinstance(reader.source, Definition) else ""
        for group in self._cluster.groups(f"{self._settings.prefix}-{reader.kind}-"):
            if group in existing or not group.endswith(end):
                continue
            if reached := self._committed(group, reader.topic, topic.id):
                return Undecided(
                    f"{reader.name} has no position in {reader.topic}, but the group {group}, which belongs to no"
                    f" {reader.kind} any more, has read {_reached_text(reached)}",
                    f"{_name_advice(reader, group)}{_decision(reader, group)} goes on where it was,"
                    f" {_decision(reader, EARLIEST)} repeats all, and {_decision(reader, LATEST)} leaves out all"
                    " that is there now",
                )
        return None

    async def _find_sagas(self, reader: ProjectReader, definition: Definition, topic: _Topic) -> Undecided | None:
        if self._client is None:
            return None
        records = await self._in_thread(lambda: self._sample(reader.topic, topic))
        saga_id = await started_saga(self._client, definition, records)
        if saga_id is None:
            return None
        return Undecided(
            f"{reader.name} has no position in {reader.topic}, but its events have started sagas before, such as"
            f" {saga_id}: {_lost(reader)}",
            f"{_decision(reader, EARLIEST)} starts those that neither Temporal nor the ledger knows, and"
            f" {_decision(reader, LATEST)} leaves out all that are there now",
        )

    def _sample(self, name: str, topic: _Topic) -> list[ConsumedRecord]:
        """The first and the last records of each partition."""
        firsts = {
            partition: (bounds.log_start, min(bounds.log_start + PROBED_RECORDS, bounds.last_stable))
            for partition, bounds in topic.offsets.items()
        }
        lasts = {
            partition: (max(firsts[partition][1], bounds.last_stable - PROBED_RECORDS), bounds.last_stable)
            for partition, bounds in topic.offsets.items()
        }
        messages = (message for ranges in (lasts, firsts) for message in read_ranges(self._settings, name, ranges))
        return [ConsumedRecord(message, topic.id) for message in messages]


def _commit(cluster: KafkaAdmin, reader: ProjectReader, topic: _Topic, positions: Mapping[int, int]) -> None:
    """Commit initial positions for a group without members. Raises KafkaOperationError: it may have members by now."""
    from confluent_kafka import Consumer as Member
    from confluent_kafka import KafkaException

    def mark(partition: int) -> DeliveryMark:
        end = topic.offsets[partition]
        return DeliveryMark(topic.id, read=ReadPlace(end.high_watermark, end.epoch))

    offsets = [commit_position(reader.topic, *place, mark(place[0])) for place in positions.items()]
    member = Member({**consumer_config(cluster.settings, reader.group), "log_level": 0})
    try:
        committed = member.commit(offsets=offsets, asynchronous=False)
        errors = [position.error for position in committed if position.error is not None]
    except KafkaException as error:
        errors = [error.args[0]]
    finally:
        member.close()
    if errors:
        reason = classify_kafka_error(errors[0]).reason
        raise KafkaOperationError(f"the position of the group {reader.group} cannot be set: {reason}")


async def _from_database(connection: str, work: Awaitable[T]) -> T:
    try:
        return await work
    except (SQLAlchemyError, InfrastructureError, OSError, TimeoutError) as error:
        raise DependencyUnavailable(f"{connection}: {driver_message(error)}") from error
    except SagaError as error:
        raise DependencyUnavailable(error.message) from error


def _decision(reader: ProjectReader, start_from: str) -> str:
    return saga_command("trigger", only=reader.name, _from=start_from)


def _truncated(reader: ProjectReader, bridge: Bridge, topic: _Topic) -> Undecided:
    places = ", ".join(
        f"{reader.topic}[{partition}] ends at {topic.offsets[partition].high_watermark}, before its position {offset}"
        for partition, offset in sorted(topic.beyond.items())
    )
    return Undecided(
        f"{bridge.name} does not know which records of a truncated partition it has read: {places}",
        f"{_decision(reader, EARLIEST)} writes the output of all that is left there, and {_decision(reader, LATEST)}"
        " leaves out all that is there now",
    )


def _lost(reader: ProjectReader) -> str:
    return f"its group {reader.group} was deleted or has expired, or had another [kafka] prefix"


def _renamed_help(reader: ProjectReader, name: str, repeated: str) -> str:
    return (
        f'name="{name}" goes on with its position, {_decision(reader, EARLIEST)} {repeated}, and'
        f" {_decision(reader, LATEST)} leaves out all that are there now"
    )


def _name_advice(reader: ProjectReader, group: str) -> str:
    """The setting with which to go on as a group of this prefix; the name of a saga is not to be changed for that."""
    start = f"-{reader.kind}-"
    if isinstance(reader.source, Definition) or start not in group:
        return ""
    return f'name="{group.split(start, 1)[1]}" or '


def _time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _reached_text(positions: Mapping[int, int]) -> str:
    """The records that were read, by partition and last offset."""
    return ", ".join(f"partition {partition} up to {offset - 1}" for partition, offset in sorted(positions.items()))
