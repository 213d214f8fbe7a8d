"""What the world tells the machine. ``at`` is always seconds since the epoch, UTC, from the caller's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.definition.model import Execution, Milestone, Retry
from sagas.protocol.outcomes import Outcome

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
    view: Mapping[str, Any] | None = None


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


MachineEvent = (
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


# What the machine asks the world to do. Commands are plain data; the machine performs none of them.

CallOperation = Literal["do", "undo", "confirm", "probe", "seal"]


@dataclass(frozen=True, slots=True)
class GuardSpec:
    """What the guard must do around the action; absent for an unguarded call.

    ``connection`` is the database of the rows. ``known_done`` tells an undo that the step is known to be done, so a
    missing ``do`` row is an error and not a step that never ran.
    ``mode`` ``decide`` is the whole protocol; ``mark`` decides an undo (or a confirm) here without an action, because
    the action lives elsewhere; ``own`` runs an action that was decided elsewhere under its own row.
    ``confirmed`` is the action that undoes the step if it was confirmed, with its arguments; None: there is none;
    ``elsewhere``: it lives in another place, so this guard only decides, and answers ``confirmed``.
    ``holds`` is the fact of that name about the operation, see :class:`sagas.definition.model.Operation`.
    """

    connection: str
    mode: Literal["decide", "mark", "own"] = "decide"
    known_done: bool = False
    confirmed: tuple[str, Mapping[str, Any]] | Literal["elsewhere"] | None = None
    holds: bool | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Run an action. Answered by one ``CallEnded`` with the same ``id``.

    ``id`` is unique among the calls in flight and readable: ``reserve#0``, ``reserve#0~undo``, ``charge~seal``.
    ``entry`` is the ledger id (``reserve#0``), ``key`` the idempotency key: never a run id, never an attempt.
    ``earlier_attempts`` is how many attempts of the same operation and key ended before this call.
    ``retry.max_attempts`` is finite; where the language says without limit the machine calls again.
    ``cancellable``: the caller may deliver a cancellation to a running attempt (never for a pivot).
    ``at_most_once``: never let the platform repeat this attempt on its own.
    """

    id: str
    entry: str
    step: str
    op: CallOperation
    key: str
    generation: int
    action: str
    arguments: Mapping[str, Any]
    summary: str
    timeout: float
    retry: Retry
    heartbeat: float | None = None
    task_queue: str | None = None
    priority: int | None = None
    fairness_key: str | None = None
    execution: Execution = "remote"
    guard: GuardSpec | None = None
    local: bool = True
    earlier_attempts: int = 0
    cancellable: bool = True
    at_most_once: bool = False


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Ask a call in flight to stop; it still ends with a ``CallEnded``. No new attempt of it may start."""

    id: str


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Fire ``TimerFired(id)`` after ``seconds``; ``summary`` is what people read meanwhile."""

    id: str
    seconds: float
    summary: str = ""


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """The timer is no longer needed. A ``TimerFired`` that comes anyway is ignored."""

    id: str


@dataclass(frozen=True, slots=True)
class StartSaga:
    """Start a nested saga. Answered by ``SagaEnded`` with the same ``id``; ``saga_id`` is the step's key."""

    id: str
    entry: str
    saga: str
    saga_id: str
    input: Any
    generation: int = 1


@dataclass(frozen=True, slots=True)
class CancelSaga:
    """Ask a nested saga to go backward (reason ``parent``); it still ends with a ``SagaEnded``."""

    id: str
    saga_id: str
    message: str


@dataclass(frozen=True, slots=True)
class UndoSaga:
    """Undo a committed nested saga. Answered by ``SagaEnded`` with the same ``id``."""

    id: str
    entry: str
    saga: str
    saga_id: str
    message: str


@dataclass(frozen=True, slots=True)
class ReportParked:
    """Tell the parent saga what waits for a person here; nothing answers it. Only nested sagas send it.

    ``waits`` has the parked operations of this saga and of those nested in it, each with the ``id`` and name of its
    ``saga``; empty: it goes on. ``blocked``: nothing else can run here.
    """

    state: str
    blocked: bool
    waits: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RecordState:
    """The state people search for has changed. Never sent on the plain path to COMPLETED."""

    state: str
    step: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell somebody, best effort. Nothing answers it, and the saga goes on whatever becomes of it.

    ``run`` is the id of the run that delivers it, ``intervals`` the waits (seconds) before attempt 2, 3 …, after the
    last of which it is given up. ``call`` is what an attempt does; None when it could not be made, for the reason in
    ``problem``.
    """

    id: str
    workflow_id: str
    milestone: Milestone
    uses: str
    intervals: tuple[float, ...]
    call: Call | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The saga is over; ``committed`` tells the two kinds of RESIDUE: past the commit point, or before it."""

    state: Literal["COMPLETED", "COMPENSATED", "RESIDUE"]
    committed: bool
    output: Any = None
    reason: Mapping[str, Any] | None = field(default=None)


Command = (
    Call
    | CancelCall
    | StartTimer
    | CancelTimer
    | StartSaga
    | CancelSaga
    | UndoSaga
    | ReportParked
    | RecordState
    | Notify
    | Finish
)


StepState = Literal[
    "PENDING",
    "RUNNING",
    "DONE",
    "REJECTED",
    "FAILED",
    "UNKNOWN",
    "SKIPPED",
    "COMPENSATING",
    "COMPENSATED",
    "NOTHING_TO_UNDO",
    "CONFIRMING",
    "CONFIRMED",
    "PARKED",
]


SagaState = Literal["RUNNING", "COMMITTED", "COMPENSATING", "PARKED", "COMPLETED", "COMPENSATED", "RESIDUE"]


Phase = Literal["forward", "committed", "backward"]


OperationStatus = Literal[
    "PENDING", "RUNNING", "DONE", "NOTHING_TO_UNDO", "REJECTED", "FAILED", "UNKNOWN", "PARKED", "SKIPPED"
]
