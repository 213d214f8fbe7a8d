"""The internal events of the machine.

The modules of the machine (forward, effect_lookup, rollback, commit …) post them, and machine.py passes each to the
responsible module. This avoids deep call stacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sagas.machine.state import Entry, InternalEvent, LookupPurpose

LookupVerdict = Literal["done", "absent", "late", "unknown"]


@dataclass(frozen=True, slots=True)
class StartAttempt(InternalEvent):
    """Start a forward attempt of this entry, the first or another one."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class ForwardFailed(InternalEvent):
    """The retries of a forward entry are exhausted; its ``on_failure`` decides."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class EntrySettled(InternalEvent):
    """The forward operation of an entry is final. ``ok``: its dependants may run."""

    entry: Entry
    ok: bool


@dataclass(frozen=True, slots=True)
class LookUpEffect(InternalEvent):
    """Determine whether an entry had its effect, by a seal in the guard or by a probe."""

    entry: Entry
    purpose: LookupPurpose


@dataclass(frozen=True, slots=True)
class EffectLookedUp(InternalEvent):
    """The result of :class:`LookUpEffect`."""

    entry: Entry
    purpose: LookupPurpose
    verdict: LookupVerdict


@dataclass(frozen=True, slots=True)
class PivotFoundDone(InternalEvent):
    """The pivot, to which this run has not come yet, was done by an earlier run."""


@dataclass(frozen=True, slots=True)
class RequestRollback(InternalEvent):
    """A rollback is requested. ``cause`` becomes the saga's reason unless one is pending already."""

    cause: Mapping[str, Any]
    entry: Entry | None = None


@dataclass(frozen=True, slots=True)
class PivotFailed(InternalEvent):
    """The pivot had no effect and never will: a pending rollback may start now."""

    entry: Entry
    cause: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompensateStep(InternalEvent):
    """Compensate this step in the rollback: all its dependants are closed."""

    step: str


@dataclass(frozen=True, slots=True)
class CompensateEntry(InternalEvent):
    """Compensate this entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class CompensationSettled(InternalEvent):
    """The undo of this entry is closed: done, skipped or not needed."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class ReachCommitPoint(InternalEvent):
    """The commit point is reached."""


@dataclass(frozen=True, slots=True)
class ConfirmEntry(InternalEvent):
    """Confirm this entry."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class ConfirmSettled(InternalEvent):
    """The confirm of this entry is closed."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class CarryOutDecision(InternalEvent):
    """An operator's decision about this entry can be carried out now."""

    entry: Entry
    decision: Mapping[str, Any]
