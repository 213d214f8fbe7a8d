"""The checks of `saga doctor` for a project that uses Kafka: what relay, triggers and consumers need."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version

from temporalio.client import Client as Temporal

from saga_activities.connections import DatabaseConnections
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.range_reader import read_ranges
from saga_workers.client import Client
from saga_workers.doctor.doctor_result import CHECK_TIMEOUT, DoctorResult, timed_check
from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.first_position import FirstPositions
from saga_workers.trigger.project_readers import project_readers
from saga_workers.trigger.retry import DependencyUnavailable
from saga_workers.trigger.topic_inventory import Access, bulk_trigger_problem, event_topics, named_topics
from sagas.errors import SagaError
from sagas.settings.project import Project
from sagas.text.shell import shell_command
from sagas.text.shortening import and_more, counted

_OBSERVATION_PERIOD = 2.0
"""Seconds over which a transaction must not progress to count as stuck; a relay's take a few milliseconds."""

_REQUIRED_ACLS: dict[Access, str] = {"read": "READ", "write": "WRITE"}


async def check_kafka(project: Project, temporal: Temporal | None = None) -> list[DoctorResult]:
    """Return what triggers need, the client package, brokers, transactions, topics, and the lag of readers.

    ``temporal``: None if it is unavailable.
    """
    return [*check_bulk_triggers(project), *await _check_cluster(project, temporal)]


def check_bulk_triggers(project: Project) -> Iterator[DoctorResult]:
    try:
        triggers = [
            (definition, trigger.topic)
            for definition in project.definitions.values()
            for trigger in definition.triggers
        ]
    except SagaError:
        return  # reported by the check of the definitions
    if (problem := bulk_trigger_problem(project.settings, triggers)) is not None:
        yield DoctorResult("bulk triggers", False, problem.message, problem.help)


async def _check_cluster(project: Project, temporal: Temporal | None) -> list[DoctorResult]:
    try:
        version_text = f"confluent-kafka {version('confluent-kafka')}"
    except PackageNotFoundError:
        return [
            DoctorResult("kafka", False, "not installed: confluent-kafka", "pip install 'saga-orchestrator[kafka]'")
        ]
    try:
        cluster = KafkaAdmin(project.settings.kafka, timeout=CHECK_TIMEOUT / 2)
    except SagaError as error:
        return [DoctorResult("kafka", False, error.message, error.help)]
    brokers = await timed_check("kafka", lambda: f"{_check_brokers(cluster)}, {version_text}")
    if not brokers.ok:
        return [brokers]
    try:
        topics, events = named_topics(project), event_topics(project)
    except SagaError:
        topics, events = {}, {}  # reported by the check of the definitions
    findings = [brokers, await timed_check("kafka transactions", lambda: _check_transactions(cluster))]
    if topics:
        findings.append(await timed_check("kafka topics", lambda: _check_topics(cluster, topics, events)))
        if findings[-1].ok:
            findings.append(
                await timed_check(
                    "kafka readers", lambda: _check_open_transactions(cluster, list(topics)), timeout=30.0
                )
            )
            findings.append(
                await _check_first_positions(project, temporal)
                or await timed_check("kafka triggers", lambda: _check_lag(cluster, project), timeout=30.0)
            )
    return findings


def _check_brokers(cluster: KafkaAdmin) -> str:
    count = cluster.broker_count()
    return f"{cluster.settings.servers}, {count} broker{'' if count == 1 else 's'}"


def _check_transactions(cluster: KafkaAdmin) -> str:
    cluster.check_transactions()
    return f"allowed for transactional ids that begin with {cluster.settings.prefix}"


def _check_topics(cluster: KafkaAdmin, topics: dict[str, frozenset[Access]], events: Collection[str]) -> str:
    if missing := cluster.unusable_topics(topics):
        name, reason = next(iter(missing.items()))
        raise KafkaOperationError(
            f"{name}: {reason}{and_more(len(missing) - 1)}",
            help="saga setup    (or saga setup --print, for an administrator)",
        )
    for name, access in topics.items():
        allowed = cluster.authorized_operations(name)
        lacking = sorted(_REQUIRED_ACLS[right] for right in access if _REQUIRED_ACLS[right] not in allowed)
        if lacking:
            raise KafkaOperationError(
                f"{name}: this user has no ACL for {' and '.join(lacking)}",
                help="see the list of ACLs in docs/how-to/kafka.md",
            )
        if name in events and "compact" in (cluster.describe(name).cleanup_policy or ""):
            raise KafkaOperationError(
                f"{name} is compacted: a later event of a key replaces the earlier one",
                help=shell_command(
                    "kafka-configs.sh", "--alter", "--topic", name, "--add-config", "cleanup.policy=delete"
                ),
            )
    return ", ".join(topics)


def _check_open_transactions(cluster: KafkaAdmin, topics: list[str]) -> str:
    """Raise KafkaOperationError if a last stable offset stays below the high watermark: consumers wait there."""
    before = _open_transactions(cluster, topics)
    if before:
        time.sleep(_OBSERVATION_PERIOD)
        after = _open_transactions(cluster, topics)
        for position, offsets in after.items():
            if position in before and before[position].last_stable == offsets.last_stable:
                name, partition = position
                raise KafkaOperationError(
                    f"an open transaction holds back {counted(offsets.undecided_records, 'record')} of {name}, "
                    f"partition {partition}",
                    help=f"a transaction of saga ends within {cluster.settings.transaction_timeout:.0f} s; "
                    f"for others: {shell_command('kafka-transactions.sh', 'find-hanging', '--topic', name)}",
                )
    return "no open transaction holds back records"


def _open_transactions(cluster: KafkaAdmin, topics: list[str]) -> dict[tuple[str, int], PartitionOffsets]:
    return {
        (name, partition): offsets
        for name in topics
        for partition, offsets in cluster.offsets(name).items()
        if offsets.undecided_records
    }


async def _check_first_positions(project: Project, temporal: Temporal | None) -> DoctorResult | None:
    """Report a reader that waits for a decision where it begins."""
    async with AsyncExitStack() as stack:
        databases = DatabaseConnections(project.settings.sql_connections())
        stack.push_async_callback(databases.close)
        positions = FirstPositions(project, databases, None if temporal is None else Client(temporal, project))
        stack.callback(positions.close)
        try:
            async with asyncio.timeout(60.0):
                for reader in project_readers(project):
                    with contextlib.suppress(DependencyUnavailable):  # the check of the database says why
                        if (undecided := await positions.look(reader)) is not None:
                            return DoctorResult("kafka triggers", False, undecided.message, undecided.help)
        except (SagaError, TimeoutError) as error:
            return DoctorResult("kafka triggers", False, str(error) or "no answer within 60 s")
    return None


def _check_lag(cluster: KafkaAdmin, project: Project) -> str:
    lags = []
    for reader in project_readers(project):
        who, topic, group = reader.name, reader.topic, reader.group
        positions = cluster.committed_positions(group, topic)
        reached = {partition: offset for partition, (offset, _) in positions.items()}
        _refuse_crash_loop(cluster, who, topic, group, {partition: text for partition, (_, text) in positions.items()})
        waiting = sum(
            offsets.last_stable - max(offsets.log_start, reached.get(partition, 0))
            for partition, offsets in cluster.offsets(topic).items()
        )
        if waiting and not reached:
            raise KafkaOperationError(
                f"{_events_text(waiting)} of {topic} wait{'s' if waiting == 1 else ''} for {who}, "
                "but nothing has been read",
                help="saga trigger",
            )
        if waiting and not cluster.has_members(group) and _has_unread(cluster, topic, reached):
            raise KafkaOperationError(
                f"at most {_events_text(waiting)} of {topic} wait for {who}, and no process reads them",
                help="saga trigger",
            )
        # The offsets in between include transaction markers, which only reading could tell from events.
        lags.append(f"{who} is at most {_events_text(waiting)} of {topic} behind")
    return ", ".join(lags) or "none"


def _has_unread(cluster: KafkaAdmin, topic: str, reached: Mapping[int, int]) -> bool:
    """Return whether a record is behind the positions: the offsets alone include those of transaction markers."""
    ranges = {
        partition: (max(offsets.log_start, reached.get(partition, 0)), offsets.last_stable)
        for partition, offsets in cluster.offsets(topic).items()
    }
    with contextlib.closing(read_ranges(cluster.settings, topic, ranges)) as records:
        return next(records, None) is not None


def _refuse_crash_loop(cluster: KafkaAdmin, who: str, topic: str, group: str, metadata: Mapping[int, str]) -> None:
    """Raise KafkaOperationError if a record is handled carefully because a process has ended, and does not get done."""
    marks = {partition: DeliveryMark.parse(text) for partition, text in metadata.items()}
    begun = {partition: mark for partition, mark in marks.items() if mark.attempts}
    if begun and all(mark.attempts == 1 for mark in begun.values()):  # it may be done in a moment
        time.sleep(_OBSERVATION_PERIOD)
        now = cluster.committed_positions(group, topic)
        begun = {partition: mark for partition, mark in begun.items() if DeliveryMark.parse(now[partition][1]) == mark}
    for partition, mark in begun.items():
        raise KafkaOperationError(
            f"a process was ended while {who} handled {topic}[{partition}]@{mark.offset}, attempt {mark.attempts} has"
            " not succeeded",
            help=f"after its `max_attempts` it is a dead letter; {shell_command('saga', 'trigger', '--only', who)}"
            " runs this reader apart",
        )


def _events_text(count: int) -> str:
    return f"{count} event{'' if count == 1 else 's'}"
