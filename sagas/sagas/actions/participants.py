"""Participants that take commands: the `@participant` decorator and `Command`.

`saga trigger` serves one from its topic, `http_app` over HTTP; activities/participants.py has the promises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from sagas.actions.consumers import HANDLER_ATTRIBUTE, Consumer, consumer
from sagas.actions.registry import Action, Actions
from sagas.actions.step import Step
from sagas.errors import UsageError

OPERATIONS = ("do", "undo", "confirm")
"""The methods of a participant; only the last may be missing."""

C = TypeVar("C", bound=type)


@dataclass
class Command(Step):
    """One attempt to carry out a command of a participant.

    ``key`` is the idempotency key of the forward command in all three methods, so an undo and a confirm find by it what
    `do` has created. ``op`` is ``do``, ``undo`` or ``confirm``; ``sql`` and ``emit`` as in :class:`sagas.Step`.
    """


@dataclass(frozen=True)
class Participant(Consumer):
    """A class that carries out commands; ``function`` is the class."""

    @property
    def place(self) -> str:
        return f"the participant {self.function.__name__}"

    @cached_property
    def actions(self) -> Actions:
        """The methods of one new instance, by operation. Raises UsageError for a class that is not a participant."""
        instance = self.function()
        actions = [
            Action(name, method, self.connection)
            for name in OPERATIONS
            if (method := getattr(instance, name, None)) is not None
        ]
        for action in actions:
            if action.signature.step is None:
                raise UsageError(f"{self.place}: the first parameter of {action.name} must be `command: Command`")
        return Actions(actions)


def participant(
    topic: str, *, connection: str, name: str | None = None, max_attempts: int | None = None, timeout: float = 30.0
) -> Callable[[C], C]:
    """Declare a class as a participant: ``async def do(self, command: Command, …)``, `undo` and, optional, `confirm`.

    The arguments of the methods are the fields of the command's value. Everything a participant promises about a key is
    built in: a command that comes again gets the stored reply, an undo that comes first refuses its command.

    Args:
        topic: the topic of its commands.
        connection: SQL connection of saga.toml; ``command.sql`` is the transaction that also writes the guard's row.
        name: name of the participant, by default that of the class; its rows and its consumer group have it.
        max_attempts: attempts before a command is rejected, and goes to the dead-letter topic, by default 5.
        timeout: seconds that one attempt may take.

    Raises UsageError for a class without `do` or `undo`, and as :func:`sagas.consumer`.
    """

    def mark(cls: C) -> C:
        for operation in OPERATIONS[:2]:
            if not inspect.isfunction(getattr(cls, operation, None)):
                raise UsageError(f"the participant {cls.__name__} has no method {operation}")
        given = consumer(
            topic, connection=connection, name=name or cls.__name__, max_attempts=max_attempts, timeout=timeout
        )
        note: Consumer = getattr(given(lambda _: None), HANDLER_ATTRIBUTE)
        setattr(cls, HANDLER_ATTRIBUTE, Participant(note.name, topic, connection, cls, max_attempts, timeout))
        return cls

    return mark
