"""The readers of a project: its consumers, its bridges, the triggers of each saga on each topic, and its replies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sagas.actions.consumers import Bridge, Consumer
from sagas.definition.model import Definition
from sagas.project import Project

ReaderSource = Consumer | Bridge | Definition


REPLIES = "replies"
"""The name of the listener for replies in `--only`."""


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """A topic and the consumer group that reads it. ``name``: that of its reader in `--only`."""

    name: str
    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class ProjectReader(TopicGroup):
    """``source`` declares it: the triggers of a saga on one topic share a reader."""

    source: ReaderSource

    @property
    def kind(self) -> str:
        return reader_kind(self.source)


def reader_kind(source: ReaderSource) -> str:
    """`trigger`, `consumer` or `bridge`."""
    return "trigger" if isinstance(source, Definition) else "consumer" if isinstance(source, Consumer) else "bridge"


def project_reader(prefix: str, source: ReaderSource, topic: str) -> ProjectReader:
    """The reader of this topic that ``source`` declares. ``prefix``: that of `[kafka]`."""
    start = f"{prefix}-{reader_kind(source)}-"
    if isinstance(source, Definition):
        return ProjectReader(source.saga, topic, f"{start}{source.saga}-{topic}", source)
    return ProjectReader(source.name, topic, f"{start}{source.name}", source)


def project_readers(project: Project) -> Iterator[ProjectReader]:
    """Every reader of the project, as `saga trigger` runs it."""
    prefix = project.settings.kafka.prefix
    for definition in project.definitions.values():
        for topic in dict.fromkeys(trigger.topic for trigger in definition.triggers):
            yield project_reader(prefix, definition, topic)
    for handler in (*project.message_handlers.consumers, *project.message_handlers.bridges):
        yield project_reader(prefix, handler, handler.topic)


def reply_group(prefix: str, outbox_id: str, topic: str) -> TopicGroup:
    """The group of the listener for replies. Outboxes that share a reply topic all receive every reply."""
    return TopicGroup(REPLIES, topic, f"{prefix}-replies-{outbox_id}-{topic}")
