"""What the machine asks the world to do. Commands are plain data; the machine performs none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.definition.model import Execution, Moment, Retry

Op = Literal["do", "undo", "confirm", "probe", "seal"]


@dataclass(frozen=True, slots=True)
class Guard:
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
    op: Op
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
    guard: Guard | None = None
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
class Record:
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
    run: str
    moment: Moment
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
    | Record
    | Notify
    | Finish
)
