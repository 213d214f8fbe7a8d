"""Exceptions that actions raise, and errors that the engine reports to users.

The docstring of an exception is its default message. Every error shown to a user is a :class:`SagaError`: one
sentence, lower case, without a full stop, with what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def _default_message(error: type[Exception]) -> str:
    """The first line of the docstring in the form of a message."""
    line = (error.__doc__ or error.__name__).strip().splitlines()[0].rstrip(".")
    return line[:1].lower() + line[1:]


class SagaError(Exception):
    """An error that a user can act on: ``message`` says what is wrong, ``help`` what to do.

    ``more``: further messages, if there is more than one mistake.
    """

    exit_code = 1
    more: Sequence[str] = ()

    def __init__(self, message: str | None = None, *, help: str | None = None) -> None:
        self.message = message or _default_message(type(self))
        self.help = help
        super().__init__(self.message)
        if help:
            self.add_note(f"help: {help}")  # a program that does not catch it shows a traceback with the help below


class UsageError(SagaError):
    """The command or the settings are wrong; nothing was started."""

    exit_code = 2


class Unequipped(UsageError):
    """The machine or the settings of a process lack what an attempt needs, which another worker may have. Nothing
    happened.
    """


def errors_together(errors: Sequence[SagaError]) -> SagaError:
    """One error with the messages of several that do not depend on each other."""
    if len(errors) == 1:
        return errors[0]
    lines = [
        line
        for each in errors
        for line in (each.message if each.help is None else f"{each.message}; {each.help}", *each.more)
    ]
    together = SagaError(lines[0])
    together.more = lines[1:]
    codes = {each.exit_code for each in errors}
    together.exit_code = codes.pop() if len(codes) == 1 else SagaError.exit_code
    return together


class AttemptOver(SagaError):
    """The attempt of this action has ended: it accepts no more statements and no more events."""


class RefusedError(SagaError):
    """The saga refuses this: it is past the point of no return, or the id belongs to another run."""

    exit_code = 9


class SagaJustEnded(RefusedError):
    """The saga has just ended."""


class Rejected(Exception):
    """A definite business refusal: nothing happened, and nothing will under this key.

    Raise it from an action. It is never retried. ``details`` are shown to operators and are available to
    compensations as ``saga.reason.details``. What JSON cannot express becomes text, and a sentence takes the place of
    what is nested deeper than 100 levels.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class AlreadyCompensated(Exception):
    """The step has already been undone or sealed, so a late attempt was refused."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or _default_message(type(self)))


class InfrastructureError(Exception):
    """A database or a network failed; the attempt is retried and says nothing about the business.

    ``details`` are shown with the attempt.
    """

    def __init__(self, *args: object, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(*args)
        self.details = details or {}


class Unavailable(InfrastructureError):
    """Raised when the process that runs the action did not start, or was lost; nothing happened, and this counts as no
    attempt.
    """


class RowLocked(Exception):
    """A row that an attempt would change belongs to another saga; nothing was changed.

    ``row`` names the row (``the row sku=A of stock``), ``owner`` is the id of the saga that has it, ``since`` a
    timestamp.
    """

    def __init__(self, row: str, owner: str, since: str) -> None:
        super().__init__(f"{row} is locked by the saga {owner} since {since}")
        self.details = {"row": row, "owner": owner, "since": since}


class DefiniteFailure(Exception):
    """An attempt that did nothing, and whose repetition would fail the same way.

    ``type`` is the failure type, ``details`` are shown to operators.
    """

    def __init__(self, type: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.type = type
        self.details = details


class NeedsOperator(Exception):
    """An operator must decide; nothing was changed.

    ``why`` is the short reason shown with the parked step, ``details`` are shown with it.
    """

    def __init__(self, why: str, **details: Any) -> None:
        super().__init__(why)
        self.why = why
        self.details = details


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The known name that resembles this one most, whatever its case; None if none is close."""
    names = {other.lower(): other for other in candidates}
    near = difflib.get_close_matches(name.lower(), list(names), n=1)
    return names[near[0]] if near else None


def did_you_mean(name: str, names: Mapping[str, Any] | tuple[str, ...]) -> str:
    """The end of an error message: the nearest known name as a suggestion, or nothing."""
    near = nearest(name, names)
    return f"; did you mean {near}?" if near else ""
