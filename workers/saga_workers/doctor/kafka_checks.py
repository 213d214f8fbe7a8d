"""The checks of `saga doctor` for a project that uses Kafka: what relay, triggers and consumers need."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from temporalio.client import Client as Temporal

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.topic_end import TopicEnd
from saga_workers.doctor.dead_letter_checks import check_dead_letters
from saga_workers.doctor.doctor_result import CHECK_TIMEOUT, DoctorResult, timed_check
from saga_workers.doctor.reader_checks import check_initial_positions, check_positions, reply_groups
from saga_workers.topics.topic_inventory import Access, event_topics, named_topics
from saga_workers.trigger.bulk_triggers import bulk_trigger_problem
from saga_workers.trigger.project_readers import project_readers
from sagas.errors import SagaError
from sagas.project import Project
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
            groups = [*project_readers(project), *await reply_groups(project)]
            findings.append(
                await check_initial_positions(project, temporal)
                or await timed_check("kafka triggers", lambda: check_positions(cluster, groups), timeout=30.0)
            )
        findings += await check_dead_letters(cluster, topics)
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
                help="the list of ACLs is in 'How do I connect to Kafka?' of the documentation",
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
    before = {name: cluster.offsets(name) for name in topics}
    open_topics = [
        name for name, offsets in before.items() if any(bounds.undecided_records for bounds in offsets.values())
    ]
    if open_topics:
        time.sleep(_OBSERVATION_PERIOD)
    stuck = [
        TopicEnd(name, cluster.settings.servers, offsets)
        for name in open_topics
        if (offsets := _unchanged(before[name], cluster.offsets(name)))
    ]
    if stuck:
        count = sum(offsets.undecided_records for end in stuck for offsets in end.offsets.values())
        raise KafkaOperationError(
            f"{', '.join(end.hidden_text() for end in stuck)}: at most {counted(count, 'record')} since cannot be read",
            help=f"a transaction of saga ends within {cluster.settings.transaction_timeout:.0f} s; for others: "
            f"{stuck[0].producer_advice()}",
        )
    return "no open transaction holds back records"


def _unchanged(
    before: Mapping[int, PartitionOffsets], after: Mapping[int, PartitionOffsets]
) -> dict[int, PartitionOffsets]:
    """The partitions whose open transaction is still the same one."""
    return {
        partition: offsets
        for partition, offsets in after.items()
        if offsets.undecided_records and partition in before and before[partition].last_stable == offsets.last_stable
    }
