"""The question whether a project uses Kafka, and whether `saga trigger` has something to do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from saga_workers.topics.declared_readers import declares_readers
from saga_workers.topics.topic_inventory import all_operations, literal_arguments
from sagas.builtins.messaging import REQUEST
from sagas.builtins.registry import BUILTINS
from sagas.builtins.spark import topics_read, topics_written
from sagas.definition.loader import find_definition_files
from sagas.definition.model import Definition, Operation
from sagas.errors import SagaError
from sagas.project import Project


def uses_kafka(project: Project) -> bool:
    """Return whether the settings have a Kafka table, a definition publishes, makes requests, is triggered or has Spark
    steps for topics, or there are consumers or bridges. False also if the project cannot be read, which the commands
    that need it report.
    """
    return project.settings.kafka.configured or _has_readers(project) or _definitions_use_kafka(project)


def needs_trigger(project: Project) -> bool:
    """Return whether `saga trigger` has something to do: triggers, replies, consumers or bridges."""
    return _has_readers(project) or any(
        definition.triggers or any(operation.uses == REQUEST for operation in all_operations(definition))
        for definition in _kafka_definitions(project)
    )


def _definitions_use_kafka(project: Project) -> bool:
    return any(
        definition.triggers or any(_uses_topic(operation) for operation in all_operations(definition))
        for definition in _kafka_definitions(project)
    )


def _kafka_definitions(project: Project) -> list[Definition]:
    # Loading a hundred definitions takes a second, and most projects never mention Kafka or a topic.
    if not _mentions(find_definition_files(project.settings.definitions), b"kafka", b"topic"):
        return []
    try:
        return list(project.definitions.values())
    except SagaError:
        return []


def _has_readers(project: Project) -> bool:
    """Judged by the source of the modules: importing them is the worker's task, and may take long."""
    root = project.settings.root
    modules = [root / (name if name.endswith(".py") else name.replace(".", "/")) for name in project.settings.actions]
    files = [module if module.suffix == ".py" else module.with_suffix(".py") for module in modules]
    return any(
        declares_readers(file) for file in [*files, *(file for module in modules for file in module.rglob("*.py"))]
    )


def _mentions(files: Iterable[Path], *words: bytes) -> bool:
    return any(word in text for text in map(_file_bytes, files) for word in words)


def _file_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # reported when the project is read


def _uses_topic(operation: Operation) -> bool:
    if operation.uses in BUILTINS and BUILTINS[operation.uses].executor == "kafka":
        return True
    given = literal_arguments(operation)
    return bool(topics_read(operation.uses, given) or topics_written(operation.uses, given))
