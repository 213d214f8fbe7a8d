"""What the world tells the machine. ``at`` is always seconds since the epoch, UTC, from the caller's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sagas.outcomes import Outcome

Decision = Literal["retry", "done", "skip", "compensate"]


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins."""

    at: float


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A ``Call`` is over: ``outcome`` is its last attempt's word, ``attempts`` how many it made (None: unknown)."""

    id: str
    outcome: Outcome
    at: float
    attempts: int | None = None


@dataclass(frozen=True, slots=True)
class SagaEnded:
    """A nested saga (or its undo) is over, or vanished. ``story`` is its `saga show` document, None if unknown."""

    id: str
    state: Literal["COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "REFUSED"]
    at: float
    story: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChildParked:
    """A nested saga (or its undo) reports what waits for a person in it; see :class:`ReportParked`."""

    saga_id: str
    undo: bool
    state: str
    blocked: bool
    waits: Sequence[Mapping[str, Any]]
    at: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer has fired."""

    id: str
    at: float


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody wants the saga undone. ``kind`` becomes the reason: a person's ``cancelled``, ``parent``, or
    ``terminated`` for a run that Temporal has ended and that is taken up again."""

    at: float
    kind: Literal["cancelled", "parent", "terminated"] = "cancelled"
    who: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A message for a `wait`. Early ones are kept, the first of a name counts; ``reject`` refuses with this text."""

    name: str
    at: float
    data: Any = None
    who: str | None = None
    reject: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A person decided about a stuck operation. ``definition`` replaces the snapshot (a bug in it was mended)."""

    step: str
    decision: Decision
    reason: str
    who: str
    at: float
    arguments: Mapping[str, Any] | None = None
    definition: Mapping[str, Any] | None = None
    result: Any = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True)
class UndoRequested:
    """A finished saga is to be undone; sent to a machine restored from the snapshot of a COMPLETED run."""

    at: float
    reason: str
    who: str


Event = (
    Started
    | CallEnded
    | SagaEnded
    | ChildParked
    | TimerFired
    | CancelRequested
    | SignalReceived
    | DecisionMade
    | UndoRequested
)
