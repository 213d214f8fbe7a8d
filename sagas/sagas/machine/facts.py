"""What one part of the machine tells the others.

The parts (forward, resolve, backward, commit …) do not call each other: each posts facts, and machine.py hands every
fact to the part that it concerns. That keeps the imports free of circles and the stack flat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sagas.machine.state import Entry, Purpose

Verdict = Literal["done", "absent", "late", "unknown"]


@dataclass(frozen=True, slots=True)
class Begin:
    """Make (another) forward attempt of this entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Failed:
    """The retries of a forward entry have ended without success; its ``on_failure`` decides."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing more will be asked of a forward entry. ``ok``: its dependants may run."""

    entry: Entry
    ok: bool


@dataclass(frozen=True, slots=True)
class Resolve:
    """Find out whether the effect of an entry is there, by the guard or by a probe."""

    entry: Entry
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Resolved:
    """The answer to :class:`Resolve`."""

    entry: Entry
    purpose: Purpose
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GoBack:
    """Something leads backward. ``cause`` becomes the saga's reason unless one was recorded earlier."""

    cause: Mapping[str, Any]
    entry: Entry | None = None


@dataclass(frozen=True, slots=True)
class PivotFailed:
    """The pivot has definitely not happened and never will: what was recorded meanwhile may lead backward now."""

    entry: Entry
    cause: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Roll:
    """Look at this step going backward: its dependants are all closed."""

    step: str


@dataclass(frozen=True, slots=True)
class Undo:
    """Compensate this entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Undone:
    """The compensation of this entry is closed, one way or another."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit point is reached."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Confirm this entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class ConfirmClosed:
    """The confirm of this entry is closed."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Decide:
    """A person's decision about this entry can be carried out now."""

    entry: Entry
    decision: Mapping[str, Any]


Fact = (
    Begin
    | Failed
    | Closed
    | Resolve
    | Resolved
    | GoBack
    | PivotFailed
    | Roll
    | Undo
    | Undone
    | Commit
    | Confirm
    | ConfirmClosed
    | Decide
)
