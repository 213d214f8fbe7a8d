"""Kafka message handlers of a project: the `@consumer` and `@bridge` decorators, their registry, and `Message`.

As with actions, a decorator only sets an attribute on the function; :func:`load_message_handlers` collects the
decorated functions of the modules under ``actions``. `saga trigger` runs them (workers/trigger).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sagas.actions.events import EventLog, new_event
from sagas.actions.message_headers import expression_headers
from sagas.actions.registry import load_modules
from sagas.actions.signature import function_place
from sagas.builtins.messaging import MAX_SOURCE_TOPIC, topic_problem
from sagas.errors import UsageError
from sagas.text.digests import sha256_hex

HANDLER_ATTRIBUTE = "__saga_reader__"
MAX_NAME_LENGTH = 200
"""Maximum characters of a consumer's name, which is part of a key in the inbox."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Consumer:
    """A handler of one topic's messages with a transaction on ``connection``; ``timeout``: seconds per attempt.

    ``max_attempts``: None if its author has set no limit.
    """

    name: str
    topic: str
    connection: str
    function: Callable[..., Any]
    max_attempts: int | None = None
    timeout: float = 30.0

    @cached_property
    def asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def place(self) -> str:
        """The function and its file, for messages."""
        return function_place(self.function) or f"the consumer {self.name}"


@dataclass(frozen=True)
class Bridge:
    """A topic-to-topic transformation, exactly once within Kafka."""

    name: str
    topic: str
    to: str
    function: Callable[..., Any]
    max_attempts: int = 5


MessageHandler = Consumer | Bridge


def consumer(
    topic: str, *, connection: str, name: str | None = None, max_attempts: int | None = None, timeout: float = 30.0
) -> Callable[[F], F]:
    """Declare a function as the handler of a topic's messages: ``async def handle(message: Message)`` or a plain `def`.

    Args:
        topic: the topic to consume.
        connection: SQL connection of saga.toml; ``message.sql`` is the transaction that also writes the inbox row.
        name: name of the consumer, by default the function's; it identifies the consumer group and the inbox rows.
        max_attempts: attempts before the message goes to the dead-letter topic, by default 5, and 3 for a conflict
            with a unique, foreign key or exclusion constraint.
        timeout: seconds that one attempt may take.

    Raises UsageError for an invalid topic, a name that is too long, or limits that allow no attempt.
    """

    def mark(function: F) -> F:
        consumer = Consumer(_handler_name(name, function), topic, connection, function, max_attempts, timeout)
        _check_source(topic)
        if not (max_attempts is None or _is_attempts(max_attempts)):
            raise UsageError(f"max_attempts of the consumer {consumer.name} must be at least 1")
        if not isinstance(timeout, int | float) or timeout <= 0:
            raise UsageError(f"timeout of the consumer {consumer.name} must be a number of seconds above 0")
        setattr(function, HANDLER_ATTRIBUTE, consumer)
        return function

    return mark


def bridge(topic: str, *, to: str, name: str | None = None, max_attempts: int = 5) -> Callable[[F], F]:
    """Declare a plain function of a message as the bridge from ``topic`` to the topic ``to``.

    The function returns the value for ``to`` (key and headers are kept), an ``Event`` or a list of them for topics of
    its choice, or None to drop the message. The output records and the consumed offsets are committed in one Kafka
    transaction.

    Raises UsageError for a coroutine function, which would wait for something outside that transaction, for an invalid
    topic, one topic as both, and a limit that allows no attempt.
    """

    def mark(function: F) -> F:
        bridge = Bridge(_handler_name(name, function), topic, to, function, max_attempts)
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"the bridge {bridge.name} must be a plain `def`, without I/O to wait for")
        _check_source(topic)
        _check_topic(to)
        if topic == to:
            raise UsageError(f"the bridge {bridge.name} would read what it writes: name another topic in `to`")
        if not _is_attempts(max_attempts):
            raise UsageError(f"max_attempts of the bridge {bridge.name} must be at least 1")
        setattr(function, HANDLER_ATTRIBUTE, bridge)
        return function

    return mark


def _is_attempts(number: object) -> bool:
    return isinstance(number, int) and number >= 1


def _check_topic(topic: object) -> None:
    if problem := topic_problem(topic):
        raise UsageError(problem)


def _check_source(topic: object) -> None:
    _check_topic(topic)
    if len(str(topic)) > MAX_SOURCE_TOPIC:
        raise UsageError(
            f"a topic to read has at most {MAX_SOURCE_TOPIC} characters: that of its dead letters has more"
        )


def _handler_name(name: str | None, function: Callable[..., Any]) -> str:
    handler_name = name or function.__name__
    if len(handler_name) > MAX_NAME_LENGTH:
        raise UsageError(f"the name {handler_name[:40]}… is longer than {MAX_NAME_LENGTH} characters")
    return handler_name


class MessageHandlers:
    """The consumers and bridges of one project. Raises UsageError when two of a kind have the same name."""

    def __init__(self, handlers: Iterable[MessageHandler] = ()) -> None:
        self._handlers: dict[tuple[bool, str], MessageHandler] = {}
        for handler in handlers:
            other = self._handlers.setdefault((isinstance(handler, Bridge), handler.name), handler)
            if other.function is not handler.function:
                kind = type(handler).__name__.lower()
                raise UsageError(
                    f"two {kind}s are named {handler.name}: in {other.function.__module__} and"
                    f" {handler.function.__module__}",
                    help=f"give one of them another name: @{kind}(…, name=…)",
                )

    @property
    def consumers(self) -> list[Consumer]:
        return [handler for handler in self._handlers.values() if isinstance(handler, Consumer)]

    @property
    def bridges(self) -> list[Bridge]:
        return [handler for handler in self._handlers.values() if isinstance(handler, Bridge)]


def load_message_handlers(names: Sequence[str], root: Path) -> MessageHandlers:
    """Load the consumers and bridges from the modules of ``actions``. Raises UsageError, as ``load_actions``."""
    values = [value for _, module in load_modules(names, root) for value in vars(module).values()]
    return MessageHandlers(
        note for value in values if isinstance(note := getattr(value, HANDLER_ATTRIBUTE, None), Consumer | Bridge)
    )


MAX_ID_LENGTH = 200
"""Maximum characters of a message's id, which is a key of the inbox."""


@dataclass
class Message:
    """A committed Kafka record, as consumers, bridges and triggers receive it.

    ``value`` is the decoded JSON, ``timestamp`` is RFC 3339. ``headers`` are strings, None for null; one that is not
    UTF-8, or is there twice with different values, raises UsageError where it is read, and the message becomes a dead
    letter. ``id`` is the same for every delivery: ``ce_id`` with ``ce_source``, else topic, partition, offset and
    the topic's id. ``attempt`` counts from 1.
    """

    id: str
    topic: str
    partition: int
    offset: int
    timestamp: str
    key: str | None
    value: Any
    headers: Mapping[str, str | None]
    attempt: int = 1
    events: EventLog = field(default_factory=EventLog)
    _sql: Any = None
    _newer: Callable[[str, int], Any] | None = None

    @property
    def sql(self) -> Any:
        """The transaction that writes the inbox row; like ``step.sql``. Raises UsageError outside of a consumer."""
        if self._sql is None:
            raise UsageError("only a consumer has a database; a bridge and a trigger have none")
        return self._sql

    def emit(
        self,
        topic: str,
        *,
        key: str | None = None,
        value: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish an event if, and only if, this message's transaction commits.

        Raises UsageError outside of a consumer, and for a header that the engine writes itself; AttemptOver once the
        handler has returned.
        """
        _ = self.sql
        self.events.add(new_event(topic, key, value, headers, False, None))

    def newer(self, entity: str, version: int) -> Any:
        """True when ``version`` is higher than any version of ``entity`` this consumer has seen; stored in ``sql``.

        In an ``async def`` the call is awaited. When a cancel (version 2) overtakes its create (version 1), the
        create is not newer. Raises UsageError outside of a consumer, and for a version that is not a 64-bit integer.
        """
        if self._newer is None:
            raise UsageError("only a consumer stores versions; a bridge and a trigger have no database")
        return self._newer(entity, version)

    def as_trigger(self) -> dict[str, Any]:
        """The value of ``trigger`` in expressions."""
        return {
            "value": self.value,
            "key": self.key,
            "headers": expression_headers(self.headers),
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
        }


def message_id(headers: Mapping[str, str | None], topic: str, partition: int, offset: int, topic_id: str = "") -> str:
    """The id of a record, see :class:`Message`: unique across topics and usable as part of a saga id.

    ``ce_id`` and ``ce_source`` are compared exactly as they are written, with their white space.

    ``topic_id``: the offsets of a topic that is created again also begin at 0.
    """
    given = headers.get("ce_id")
    if not given:
        return _shortened(f"{topic}-{partition}-{offset}-{_mark('topic', topic_id)}")
    source = headers.get("ce_source") or ""
    # CloudEvents: an id is unique within its source only, whatever it looks like. Two services may give their events
    # the id of one order, and the digest of the content is the same wherever the content is.
    return _shortened(f"{given}-{_mark('source', source)}" if source or _MARKED.search(given) else given)


_MARK_LENGTH = 32
"""Hexadecimal digits, 128 bits: nobody finds two texts with the same mark, also among texts of his choice."""

_MARKED = re.compile(f"-[0-9a-f]{{{_MARK_LENGTH}}}$")
"""An id that ends like one with a mark gets a mark of its own, so that it is no other's."""


def _mark(kind: str, text: str) -> str:
    """The part of an id that stands for a text. Texts of different kinds have different marks."""
    return sha256_hex(f"{kind}\0{text}")[:_MARK_LENGTH]


def _shortened(text: str) -> str:
    if len(text) <= MAX_ID_LENGTH and "\0" not in text:
        return text
    return f"{text[: MAX_ID_LENGTH - _MARK_LENGTH - 1]}-{_mark('id', text)}".replace("\0", "")
