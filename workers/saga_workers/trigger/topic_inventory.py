"""The use that a project makes of Kafka: whether it does at all, which topics it names, and how to create them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from sagas.builtins.messaging import REQUEST, default_reply_topic, events_of
from sagas.builtins.registry import BUILTINS
from sagas.builtins.spark import topics_read, topics_written
from sagas.definition.loader import find_definition_files
from sagas.definition.model import Definition, Operation, StepDefinition
from sagas.errors import SagaError, UsageError
from sagas.settings import KafkaSettings, Settings
from sagas.settings.project import Project
from sagas.text.shell import shell_command

Access = Literal["read", "write"]

DEAD_LETTER_SUFFIX = ".dlq"
"""Suffix of a dead letter topic."""


def uses_kafka(project: Project) -> bool:
    """Return whether the settings have a Kafka table, a definition publishes, makes requests, is triggered or has Spark
    steps for topics, or there are consumers or bridges. False also if the project cannot be read, which the commands
    that need it report.
    """
    return project.settings.kafka.configured or _has_readers(project) or _definitions_use_kafka(project)


def needs_trigger(project: Project) -> bool:
    """Return whether `saga trigger` has something to do: triggers, replies, consumers or bridges."""
    return _has_readers(project) or any(
        definition.triggers or any(operation.uses == REQUEST for operation in _all_operations(definition))
        for definition in _kafka_definitions(project)
    )


def operations_of(step: StepDefinition) -> list[Operation]:
    """All operations of a step, forward and backward, and its probe."""
    return [*step.operations, *([step.probe.operation] if step.probe else [])]


def named_topics(project: Project) -> dict[str, frozenset[Access]]:
    """The topics that definitions, consumers, bridges and settings name, and their dead letter topics, with the access.

    An expression names no topic before it is evaluated. Raises SagaError if the project cannot be read.
    """
    accesses = {name: set(access) for name, access in event_topics(project).items()}
    for definition in project.definitions.values():
        for operation in _all_operations(definition):
            for topic in _literal_topics(*topics_read(operation.uses, _arguments(operation))):
                accesses.setdefault(topic, set()).add("read")
            for topic in _literal_topics(*topics_written(operation.uses, _arguments(operation))):
                accesses.setdefault(topic, set()).add("write")
    return {topic: frozenset(access) for topic, access in sorted(accesses.items())}


def event_topics(project: Project) -> dict[str, frozenset[Access]]:
    """Return those of them whose records are events, as opposed to rows of Spark steps."""
    accesses: dict[str, set[Access]] = {}

    def note(read: list[str], written: list[str]) -> None:
        dead = [topic + DEAD_LETTER_SUFFIX for topic in read]  # read, so that none is written twice
        for topic in (*read, *dead):
            accesses.setdefault(topic, set()).add("read")
        for topic in (*written, *dead):
            accesses.setdefault(topic, set()).add("write")

    for definition in project.definitions.values():
        read = [trigger.topic for trigger in definition.triggers]
        written: list[str] = []
        for operation in _all_operations(definition):
            given = _arguments(operation)
            if operation.uses == REQUEST:
                written += _literal_topics(given.get("topic"))
                read += _literal_topics(given.get("reply_topic") or default_reply_topic(project.settings.kafka.prefix))
            for event in events_of(operation.uses, given):
                written += _literal_topics(event.get("topic") if isinstance(event, dict) else None)
        note(read, written)
    note([], list(project.settings.kafka.topics))
    for consumer in project.message_handlers.consumers:
        note([consumer.topic], [])
    for bridge in project.message_handlers.bridges:
        note([bridge.topic], [bridge.to])
        accesses[bridge.to].add("read")
    return {topic: frozenset(access) for topic, access in sorted(accesses.items())}


def _arguments(operation: Operation) -> dict[str, Any]:
    return operation.with_ if isinstance(operation.with_, dict) else {}


def _literal_topics(*topics: Any) -> list[str]:
    return [topic for topic in topics if isinstance(topic, str) and "${{" not in topic]


def _all_operations(definition: Definition) -> Iterator[Operation]:
    for step in definition.steps:
        yield from operations_of(step)
    yield from (notification.do for notification in definition.notify)


def _definitions_use_kafka(project: Project) -> bool:
    return any(
        definition.triggers or any(_uses_topic(operation) for operation in _all_operations(definition))
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
    given = _arguments(operation)
    return bool(topics_read(operation.uses, given) or topics_written(operation.uses, given))


# Detection of consumers and bridges in a module's source, without importing it.
_DECORATORS = ("consumer", "bridge", "participant")
_MODULES = ("sagas", "sagas.actions.consumers", "sagas.actions.participants")


def declares_readers(file: Path) -> bool:
    """Return whether ``file`` calls `consumer` or `bridge` of the package `sagas`, under whatever name it imports them.

    False also for a file that cannot be read or is not valid Python; the import reports that.
    """
    try:
        source = file.read_bytes()
        # Most action modules have none, and a large one takes long to parse.
        if b"sagas" not in source or not any(decorator.encode() in source for decorator in _DECORATORS):
            return False
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return False
    names = set(_decorator_names(tree))
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in names for node in ast.walk(tree))


def _decorator_names(tree: ast.Module) -> Iterator[str]:
    """The names of the decorators in this module: `consumer`, `sagas.bridge`, or an alias."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES and not node.level:
            yield from (imported.asname or imported.name for imported in node.names if imported.name in _DECORATORS)
        elif isinstance(node, ast.Import):
            modules = (imported.asname or imported.name for imported in node.names if imported.name in _MODULES)
            yield from (f"{name}.{maker}" for name in modules for maker in _DECORATORS)


# Event topics must be deleted by age and never compacted: compaction keeps only the newest event of a key.
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
    words += ["--if-not-exists", "--topic", topic, "--config", "cleanup.policy=delete"]
    return shell_command(*words, "--config", f"retention.ms={round(kafka.retention * 1000)}")


def bulk_trigger_problem(settings: Settings, triggers: Iterable[tuple[Definition, str]]) -> UsageError | None:
    """Return what a project lacks whose triggers share workflows."""
    sagas = {
        definition.saga
        for definition, topic in triggers
        if any(trigger.bulk and trigger.topic == topic for trigger in definition.triggers)
    }
    if not sagas or settings.ledger.connection is not None:
        return None
    return UsageError(
        f"the trigger of {min(sagas)} has `bulk`, which needs a ledger",
        help="set [ledger] connection in saga.toml, and run saga setup",
    )
