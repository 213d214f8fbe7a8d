"""What `saga doctor` looks at in a project that uses Kafka: what relay, triggers and consumers would miss."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from importlib.metadata import PackageNotFoundError, version

from saga_activities.kafka.topics import Cluster, KafkaProblem, Offsets
from saga_workers.asking import PATIENCE, asked
from saga_workers.finding import Finding
from saga_workers.kafka_use import Access, event_topics, named_topics
from sagas.errors import SagaError
from sagas.project import Project

_WATCHED = 2.0
"""Seconds over which a transaction has to stand still to count as stuck: those of a relay take a few milliseconds."""

_NEEDS: dict[Access, str] = {"read": "READ", "write": "WRITE"}


async def examine_kafka(project: Project) -> list[Finding]:
    """The package, the brokers, transactions, then each topic the project names, and how far it has been read."""
    try:
        found = f"confluent-kafka {version('confluent-kafka')}"
    except PackageNotFoundError:
        return [Finding("kafka", False, "not installed: confluent-kafka", "pip install 'saga-orchestrator[kafka]'")]
    try:
        cluster = Cluster(project.settings.kafka, patience=PATIENCE / 2)
    except SagaError as error:
        return [Finding("kafka", False, error.message, error.help)]
    brokers = await asked("kafka", lambda: f"{_brokers(cluster)}, {found}")
    if not brokers.ok:
        return [brokers]
    try:
        topics, events = named_topics(project), event_topics(project)
    except SagaError:
        topics, events = {}, {}  # the definitions are a finding of their own
    findings = [brokers, await asked("kafka transactions", lambda: _transactions(cluster))]
    if topics:
        findings.append(await asked("kafka topics", lambda: _topics(cluster, topics, events)))
        if findings[-1].ok:
            findings.append(await asked("kafka readers", lambda: _stuck(cluster, list(topics)), patience=30.0))
            findings.append(await asked("kafka triggers", lambda: _lag(cluster, project), patience=30.0))
    return findings


def _brokers(cluster: Cluster) -> str:
    count = cluster.brokers()
    return f"{cluster.settings.servers}, {count} broker{'' if count == 1 else 's'}"


def _transactions(cluster: Cluster) -> str:
    cluster.check_transactions()
    return f"allowed for ids that begin with {cluster.settings.prefix}"


def _topics(cluster: Cluster, topics: dict[str, frozenset[Access]], events: Collection[str]) -> str:
    if missing := cluster.missing(topics):
        name, reason = next(iter(missing.items()))
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise KafkaProblem(
            f"{name}: {reason}{more}", help="saga setup    (or saga setup --print, for somebody who may)"
        )
    for name, access in topics.items():
        allowed = cluster.allowed(name)
        lacking = sorted(_NEEDS[one] for one in access if _NEEDS[one] not in allowed)
        if lacking:
            raise KafkaProblem(
                f"{name}: this user has no ACL for {' and '.join(lacking)}", help="docs/how-to/kafka.md lists them all"
            )
        if name in events and "compact" in (cluster.describe(name).cleanup or ""):
            raise KafkaProblem(
                f"{name} is compacted: a later event of a key replaces the earlier one",
                help=f"kafka-configs.sh --alter --topic {name} --add-config cleanup.policy=delete",
            )
    return ", ".join(topics)


def _stuck(cluster: Cluster, topics: list[str]) -> str:
    """Readers wait where the last stable offset stands still below the high watermark."""
    before = _undecided(cluster, topics)
    if before:
        time.sleep(_WATCHED)
        after = _undecided(cluster, topics)
        for place, offsets in after.items():
            if place in before and before[place].stable == offsets.stable:
                name, partition = place
                raise KafkaProblem(
                    f"an open transaction holds back {offsets.undecided} records of {name}, partition {partition}",
                    help=f"it ends by itself in {cluster.settings.transaction_timeout:.0f} s if it is ours; "
                    f"otherwise: kafka-transactions.sh find-hanging --topic {name}",
                )
    return "no transaction holds back anything"


def _undecided(cluster: Cluster, topics: list[str]) -> dict[tuple[str, int], Offsets]:
    return {
        (name, partition): offsets
        for name in topics
        for partition, offsets in cluster.offsets(name).items()
        if offsets.undecided
    }


def _lag(cluster: Cluster, project: Project) -> str:
    told = []
    for who, topic, group in _readers(project, cluster.settings.prefix):
        reached = cluster.committed(group, topic)
        waiting = sum(
            offsets.stable - max(offsets.first, reached.get(partition, 0))
            for partition, offsets in cluster.offsets(topic).items()
        )
        if waiting and not reached:
            raise KafkaProblem(
                f"{_events(waiting)} of {topic} wait{'s' if waiting == 1 else ''} for {who}, and nobody has read any",
                help="saga trigger",
            )
        # What lies between includes the ends of transactions, which are no events; to tell them apart is to read them.
        told.append(f"{who} is at most {_events(waiting)} of {topic} behind")
    return ", ".join(told) or "there are none"


def _events(count: int) -> str:
    return f"{count} event{'' if count == 1 else 's'}"


def _readers(project: Project, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Who reads which topic as which group, as `saga trigger` does."""
    for definition in project.definitions.values():
        for topic in dict.fromkeys(trigger.topic for trigger in definition.triggers):
            yield definition.saga, topic, f"{prefix}-trigger-{definition.saga}-{topic}"
    for consumer in project.readers.consumers:
        yield consumer.name, consumer.topic, f"{prefix}-consumer-{consumer.name}"
    for bridge in project.readers.bridges:
        yield bridge.name, bridge.topic, f"{prefix}-bridge-{bridge.name}"
