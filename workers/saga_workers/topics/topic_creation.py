"""Creation of the topics of a project, or the commands for it."""

from __future__ import annotations

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_workers.topics.kafka_use import uses_kafka
from saga_workers.topics.topic_inventory import named_topics
from sagas.project import Project
from sagas.settings import KafkaSettings
from sagas.text.shell import shell_command

REPLY_PARTITIONS = 4
"""Partitions of a topic of replies that is created: as many processes can handle them at the same time."""


def create_topics(project: Project) -> list[str]:
    """Create the missing topics and return their names. Blocks.

    Raises:
        SagaError: the project cannot be read, or Kafka cannot be used.
    """
    names = _topic_names(project)
    if not names:
        return []
    cluster = KafkaAdmin(project.settings.kafka)
    try:
        return [name for name in names if cluster.ensure_topic(name)]
    except KafkaOperationError as problem:
        if problem.help:
            raise
        raise KafkaOperationError(
            problem.message,
            help="saga setup --print    prints the commands for an administrator",
            error_info=problem.error_info,
        ) from None


def create_topic_commands(project: Project) -> list[str]:
    """The CLI commands that create the topics, for an operator. Raises SagaError if the project cannot be read."""
    return [_create_command(project.settings.kafka, name) for name in _topic_names(project)]


def _topic_names(project: Project) -> list[str]:
    # Without Kafka the action modules are not imported: setting up databases alone must not need their dependencies.
    return list(named_topics(project)) if uses_kafka(project) else []


def _create_command(kafka: KafkaSettings, topic: str) -> str:
    words = ["kafka-topics.sh", "--bootstrap-server", kafka.bootstrap_servers or "HOST:9092", "--create"]
    # Compaction keeps only the newest event of a key.
    words += ["--if-not-exists", "--topic", topic, "--config", "cleanup.policy=delete"]
    return shell_command(*words, "--config", f"retention.ms={round(kafka.retention * 1000)}")
