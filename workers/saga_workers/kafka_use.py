"""What a project wants of Kafka: whether it needs any, and which topics it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from saga_workers.reader_modules import declares_readers
from sagas.builtins import BUILTINS
from sagas.builtins_messaging import events_of
from sagas.builtins_request import REQUEST, default_reply_topic
from sagas.builtins_spark import topics_read, topics_written
from sagas.definition.files import find_files
from sagas.definition.model import Definition, Operation, Step
from sagas.errors import SagaError
from sagas.project import Project

Access = Literal["read", "write"]

DEAD_LETTERS = ".dlq"
"""What the topic of events that nobody could process adds to the name of theirs."""


def uses_kafka(project: Project) -> bool:
    """True when the settings have a table for Kafka, when a definition publishes, asks, is triggered or has Spark steps
    for topics, or when there are consumers. False also where the project cannot be read: whoever needs it complains of
    that.
    """
    return project.settings.kafka.written or _has_readers(project) or _in_definitions(project)


def listens(project: Project) -> bool:
    """True when there is something to do for `saga trigger`: events or replies to wait for, consumers, bridges."""
    return _has_readers(project) or any(
        definition.triggers or any(operation.uses == REQUEST for operation in _operations(definition))
        for definition in _kafka_definitions(project)
    )


def operations_of(step: Step) -> list[Operation]:
    """All that a step may do, forward and backward."""
    undo = step.compensate
    several = [*undo.alternates, undo.confirmed] if undo else []
    return [one for one in (step.do, *several, step.confirm, step.probe and step.probe.operation) if one]


def named_topics(project: Project) -> dict[str, frozenset[Access]]:
    """The topics that definitions, consumers, bridges and settings name, those of dead letters too, with what is done.

    An expression names no topic before it is evaluated. Raises SagaError: the project cannot be read.
    """
    found = {name: set(access) for name, access in event_topics(project).items()}
    for definition in project.definitions.values():
        for operation in _operations(definition):
            for topic in _literal(*topics_read(operation.uses, _arguments(operation))):
                found.setdefault(topic, set()).add("read")
            for topic in _literal(*topics_written(operation.uses, _arguments(operation))):
                found.setdefault(topic, set()).add("write")
    return {topic: frozenset(access) for topic, access in sorted(found.items())}


def event_topics(project: Project) -> dict[str, frozenset[Access]]:
    """Those of them whose records are events, and no more than the rows of Spark steps."""
    found: dict[str, set[Access]] = {}

    def note(read: list[str], written: list[str]) -> None:
        for topic in read:
            found.setdefault(topic, set()).add("read")
        for topic in (*written, *(topic + DEAD_LETTERS for topic in read)):
            found.setdefault(topic, set()).add("write")

    for definition in project.definitions.values():
        read = [trigger.topic for trigger in definition.triggers]
        written: list[str] = []
        for operation in _operations(definition):
            given = _arguments(operation)
            if operation.uses == REQUEST:
                written += _literal(given.get("topic"))
                read += _literal(given.get("reply_topic") or default_reply_topic(project.settings.kafka.prefix))
            for event in events_of(operation.uses, given):
                written += _literal(event.get("topic") if isinstance(event, dict) else None)
        note(read, written)
    note([], list(project.settings.kafka.topics))
    for consumer in project.readers.consumers:
        note([consumer.topic], [])
    for bridge in project.readers.bridges:
        note([bridge.topic], [bridge.to])
    return {topic: frozenset(access) for topic, access in sorted(found.items())}


def _arguments(operation: Operation) -> dict[str, Any]:
    return operation.with_ if isinstance(operation.with_, dict) else {}


def _literal(*topics: Any) -> list[str]:
    return [topic for topic in topics if isinstance(topic, str) and "${{" not in topic]


def _operations(definition: Definition) -> Iterator[Operation]:
    for step in definition.steps:
        yield from operations_of(step)
    yield from (notification.do for notification in definition.notify)


def _in_definitions(project: Project) -> bool:
    return any(
        definition.triggers or any(_is_kafka(operation) for operation in _operations(definition))
        for definition in _kafka_definitions(project)
    )


def _kafka_definitions(project: Project) -> list[Definition]:
    # Reading a hundred definitions takes a second: most projects never speak of Kafka, or of a topic for Spark.
    if not _says(find_files(project.settings.definitions), b"kafka", b"topic"):
        return []
    try:
        return list(project.definitions.values())
    except SagaError:
        return []


def _has_readers(project: Project) -> bool:
    """By the text of the modules alone: to import them is the worker's business, and may take long."""
    root = project.settings.root
    modules = [root / (name if name.endswith(".py") else name.replace(".", "/")) for name in project.settings.actions]
    files = [module if module.suffix == ".py" else module.with_suffix(".py") for module in modules]
    return any(declares_readers(file) for file in [*files, *(file for one in modules for file in one.rglob("*.py"))])


def _says(files: Iterable[Path], *words: bytes) -> bool:
    return any(word in text for text in map(_text, files) for word in words)


def _text(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # whoever reads the project says what is wrong with it


def _is_kafka(operation: Operation) -> bool:
    if operation.uses in BUILTINS and BUILTINS[operation.uses].where == "kafka":
        return True
    given = _arguments(operation)
    return bool(topics_read(operation.uses, given) or topics_written(operation.uses, given))
