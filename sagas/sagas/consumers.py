"""What a project reads from Kafka: the `@consumer` and `@bridge` decorators, and the registry of them.

As with actions, a decorator only leaves a note on the function; :class:`Readers` collects the notes of the modules
a project names under ``actions``. `saga trigger` runs them (workers/trigger).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sagas.actions import load_modules
from sagas.errors import UsageError

NOTE = "__saga_reader__"
MAX_NAME = 200
"""Characters of a consumer's name: it is part of a key in the inbox."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Consumer:
    """A handler of one topic's messages in the database ``connection``. ``timeout`` (seconds) is for one attempt."""

    name: str
    topic: str
    connection: str
    function: Callable[..., Any]
    max_attempts: int = 5
    timeout: float = 30.0

    @cached_property
    def asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


@dataclass(frozen=True)
class Bridge:
    """A way from topic to topic, exactly once inside Kafka."""

    name: str
    topic: str
    to: str
    function: Callable[..., Any]
    max_attempts: int = 5


Reader = Consumer | Bridge


def consumer(
    topic: str, *, connection: str, name: str | None = None, max_attempts: int = 5, timeout: float = 30.0
) -> Callable[[F], F]:
    """Make a function the handler of a topic's messages: ``async def handle(message: Message)``, or a plain `def`.

    Args:
        topic: the topic it reads.
        connection: SQL connection of saga.toml; ``message.sql`` is the transaction that also holds the inbox row.
        name: of the consumer, default the function's; its consumer group and its inbox go by it.
        max_attempts: attempts until the message goes to the dead letters.
        timeout: seconds one attempt may take.

    Raises UsageError for a name that is too long, or numbers that allow no attempt.
    """

    def mark(function: F) -> F:
        found = Consumer(_name(name, function), topic, connection, function, max_attempts, timeout)
        if max_attempts < 1 or timeout <= 0:
            raise UsageError(f"the consumer {found.name} needs at least one attempt and some time for it")
        setattr(function, NOTE, found)
        return function

    return mark


def bridge(topic: str, *, to: str, name: str | None = None, max_attempts: int = 5) -> Callable[[F], F]:
    """Make a plain function of a message the way from ``topic`` to the topic ``to``.

    It returns the value for ``to`` (key and headers stay), an ``Event`` or a list of them for topics of its choice, or
    None to leave the message out. What is written and how far was read are one transaction of Kafka.

    Raises UsageError for a coroutine, which would have to wait for something outside of that transaction.
    """

    def mark(function: F) -> F:
        found = Bridge(_name(name, function), topic, to, function, max_attempts)
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"the bridge {found.name} must be a plain `def`: it has nothing to wait for")
        setattr(function, NOTE, found)
        return function

    return mark


def _name(name: str | None, function: Callable[..., Any]) -> str:
    found = name or function.__name__
    if len(found) > MAX_NAME:
        raise UsageError(f"the name {found[:40]}… is longer than {MAX_NAME} characters")
    return found


class Readers:
    """The consumers and bridges of one project. Raises UsageError when two of a kind have one name."""

    def __init__(self, readers: Iterable[Reader] = ()) -> None:
        self._readers: dict[tuple[type, str], Reader] = {}
        for one in readers:
            other = self._readers.setdefault((type(one), one.name), one)
            if other.function is not one.function:
                kind = type(one).__name__.lower()
                raise UsageError(
                    f"two {kind}s are called {one.name}: in {other.function.__module__} and {one.function.__module__}",
                    help=f"give one of them another name: @{kind}(…, name=…)",
                )

    @property
    def consumers(self) -> list[Consumer]:
        return [one for one in self._readers.values() if isinstance(one, Consumer)]

    @property
    def bridges(self) -> list[Bridge]:
        return [one for one in self._readers.values() if isinstance(one, Bridge)]


def load_readers(names: Sequence[str], root: Path) -> Readers:
    """The consumers and bridges in the modules of ``actions``. Raises UsageError, as ``load_actions`` does."""
    values = [value for _, module in load_modules(names, root) for value in vars(module).values()]
    return Readers(note for value in values if isinstance(note := getattr(value, NOTE, None), Consumer | Bridge))
