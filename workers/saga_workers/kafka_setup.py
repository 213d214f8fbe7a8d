"""The topics a project names, made as topics of events have to be: deleted by age, never compacted.

Compaction keeps the newest event of a key and loses those before it; and a reader that comes late finds gaps.
"""

from __future__ import annotations

import shlex

from saga_activities.kafka.topics import Cluster, KafkaProblem
from saga_workers.kafka_use import named_topics, uses_kafka
from sagas.project import Project
from sagas.settings import KafkaSettings


def make_topics(project: Project) -> list[str]:
    """Make those that are missing; returns them. Blocks.

    Raises:
        SagaError: the project cannot be read, or Kafka cannot be used.
    """
    names = _names(project)
    if not names:
        return []
    cluster = Cluster(project.settings.kafka)
    try:
        return [name for name in names if cluster.ensure(name)]
    except KafkaProblem as problem:
        if problem.help:
            raise
        raise KafkaProblem(
            problem.message,
            help="saga setup --print    shows the commands for somebody who may",
            failure=problem.failure,
        ) from None


def commands(project: Project) -> list[str]:
    """The same for a person, with Kafka's own program. Raises SagaError: the project cannot be read."""
    return [_command(project.settings.kafka, name) for name in _names(project)]


def _names(project: Project) -> list[str]:
    # Whoever sets up databases alone need not have what the actions import.
    return list(named_topics(project)) if uses_kafka(project) else []


def _command(kafka: KafkaSettings, topic: str) -> str:
    words = ["kafka-topics.sh", "--bootstrap-server", kafka.bootstrap_servers or "HOST:9092", "--create"]
    words += ["--if-not-exists", "--topic", topic, "--config", "cleanup.policy=delete"]
    return shlex.join([*words, "--config", f"retention.ms={round(kafka.retention * 1000)}"])
