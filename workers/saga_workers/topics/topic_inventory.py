"""The topics that a project names, and how it accesses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from sagas.builtins.messaging import REQUEST, default_reply_topic, events_of
from sagas.builtins.spark import topics_read, topics_written
from sagas.definition.model import Definition, Operation
from sagas.project import Project

Access = Literal["read", "write"]

DEAD_LETTER_SUFFIX = ".dlq"
"""Suffix of a dead letter topic."""


def named_topics(project: Project) -> dict[str, frozenset[Access]]:
    """The topics that definitions, consumers, bridges and settings name, and their dead letter topics, with the access.

    An expression names no topic before it is evaluated. Raises SagaError if the project cannot be read.
    """
    accesses = {name: set(access) for name, access in event_topics(project).items()}
    for definition in project.definitions.values():
        for operation in all_operations(definition):
            for topic in _literal_topics(*topics_read(operation.uses, literal_arguments(operation))):
                accesses.setdefault(topic, set()).add("read")
            for topic in _literal_topics(*topics_written(operation.uses, literal_arguments(operation))):
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
        for operation in all_operations(definition):
            given = literal_arguments(operation)
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


def literal_arguments(operation: Operation) -> dict[str, Any]:
    return operation.with_ if isinstance(operation.with_, dict) else {}


def _literal_topics(*topics: Any) -> list[str]:
    return [topic for topic in topics if isinstance(topic, str) and "${{" not in topic]


def all_operations(definition: Definition) -> Iterator[Operation]:
    for step in definition.steps:
        yield from step.operations_and_probe
    yield from (notification.do for notification in definition.notify)
