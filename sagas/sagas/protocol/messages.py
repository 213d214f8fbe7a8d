"""The events and commands of the machine. Commands are plain data.

``at`` is always in seconds since the epoch (UTC), from the caller's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.definition.model import Execution, Milestone, Retry
from sagas.protocol.outcomes import Outcome
from sagas.protocol.saga_view import Decision, SagaView


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins. ``began_at``: when the saga was first started, which is not when its first task ran."""

    at: float
    began_at: float | None = None


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A ``Call`` has ended. ``outcome``: that of its last attempt; ``attempts``: their number (None: unknown)."""

    id: str
    outcome: Outcome
    at: float
    attempts: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptsMade:
    """A ``Call`` goes on in another workflow; ``attempts`` of it were made.

    ``unsure``: one of them may have had its effect. ``due_at``: the next attempt must not begin earlier.
    ``uncharged``: how many of them use up none of those that the operation may make.
    """

    id: str
    attempts: int
    at: float
    due_at: float | None = None
    unsure: bool = True
    uncharged: int = 0


ChildState = Literal["COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "REFUSED"]
"""How a nested saga, or its undo, has ended."""


@dataclass(frozen=True, slots=True)
class SagaEnded:
    """A nested saga (or its undo) has ended or vanished. ``view`` is None if unknown."""

    id: str
    state: ChildState
    at: float
    view: SagaView | None = None


@dataclass(frozen=True, slots=True)
class ChildParked:
    """A nested saga (or its undo) reports its parked operations; see :class:`ReportParked`."""

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
    """A cancel of the saga is requested. ``kind`` becomes the kind of its reason.

    ``cancelled``: requested by a client; ``parent``: by the parent saga; ``terminated``: a new run continues and
    undoes a run that was terminated in Temporal. ``closed``: how that was, while ``who`` and ``message`` tell who has
    resumed the saga, and why.
    """

    at: float
    kind: Literal["cancelled", "parent", "terminated"] = "cancelled"
    who: str | None = None
    message: str = ""
    closed: str = ""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A signal for a `wait`. Early signals are stored; only the first of a name counts. ``reject``: the message with
    which the wait is rejected.
    """

    name: str
    at: float
    data: Any = None
    who: str | None = None
    reject: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """An operator's decision about a stuck operation. ``definition``: a corrected one that replaces the snapshot."""

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
    """Undo a finished saga; sent to a machine restored from the snapshot of a COMPLETED run."""

    at: float
    reason: str
    who: str


@dataclass(frozen=True, slots=True)
class LocksAnswered:
    """The lock database has answered an ``AcquireLocks``.

    ``granted``: all keys are held. ``waiting``: the request has its place in the order of arrival; ``blockers`` are the
    keys that others hold or wait for before it (``key``, ``owner``, ``since`` in seconds since the epoch, and
    ``parked`` if that is known of the owner).
    ``refused``: nothing is held and nothing waits. ``late``: the locks of this request were released before.
    """

    answer: Literal["granted", "waiting", "refused", "late"]
    at: float
    blockers: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class LocksChanged:
    """The locks that the saga waits for may be granted: another saga has released its own. It asks again."""

    at: float


@dataclass(frozen=True, slots=True)
class RunWasReset:
    """A reset in Temporal has put the saga back into an earlier state; the guards and the runs before know of more.

    ``generations``: the highest generation that an entry has reached, by entry id; 1 where it is missing. Never
    missing are the last item of a `for_each` that a guard knows, and a nested saga that has left traces.
    ``commit_point``: whether the saga is past it, with its effects in place, or nobody knows. ``records`` are the steps
    as the runs before the reset have left them, in the form of a snapshot, and ``children`` their nested sagas, by
    entry id.
    ``state_is_lost``: one of these runs is deleted, so that nobody knows what it had begun. ``in_guards``: the entries
    that a guard has recorded, each with the generation of its open effect, or 0. ``undone``, ``undecided_undos`` and
    ``decisions``: see :class:`sagas.machine.earlier_runs.EarlierRuns`. ``residue``, ``operator`` and
    ``reason``: those of the runs before.
    """

    at: float
    generations: Mapping[str, int]
    commit_point: Literal["past", "before", "unknown"] = "before"
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    children: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    state_is_lost: bool = False
    in_guards: Mapping[str, int] = field(default_factory=dict[str, int])
    undone: Mapping[str, int] = field(default_factory=dict[str, int])
    undecided_undos: Mapping[str, int] = field(default_factory=dict[str, int])
    decisions: Mapping[str, bool] = field(default_factory=dict[str, bool])
    residue: Sequence[dict[str, Any]] = ()
    operator: Sequence[dict[str, Any]] = ()
    reason: dict[str, Any] | None = None


MachineEvent = (
    Started
    | CallEnded
    | AttemptsMade
    | SagaEnded
    | ChildParked
    | TimerFired
    | CancelRequested
    | SignalReceived
    | DecisionMade
    | UndoRequested
    | LocksAnswered
    | LocksChanged
    | RunWasReset
)


CallOperation = Literal["do", "undo", "confirm", "probe", "seal"]


@dataclass(frozen=True, slots=True)
class GuardSpec:
    """The guard's part in a call; absent for an unguarded call.

    ``connection`` is the database of the guard rows. ``known_done``: the step is known to be done, so for its undo a
    missing ``do`` row is an error and not a step that never ran.
    ``mode``: ``decide`` is the whole protocol; ``mark`` decides an undo (or a confirm) without running its action,
    which uses another connection; ``own`` runs an action that another guard has decided, under its own row.
    ``confirmed`` is the action that undoes the step if it was confirmed, with its arguments; None if there is none;
    ``elsewhere``: it uses another connection, so this guard only decides, and returns ``confirmed``.
    ``holds``, ``images``, ``two_phase``: see :class:`sagas.definition.model.Operation`.
    ``undo_scope``: see :mod:`sagas.protocol.undo_scopes`. ``undone_steps``: only these steps are sure to be undone
    together with this one; None if the whole saga is.
    ``forward_hash``: :func:`sagas.protocol.payloads.arguments_hash` of the effect to undo; None: whatever they were.
    ``room``: see :mod:`sagas.protocol.result_room`; None: no limit but those of a single result.
    """

    connection: str
    mode: Literal["decide", "mark", "own"] = "decide"
    known_done: bool = False
    confirmed: tuple[str, Mapping[str, Any]] | Literal["elsewhere"] | None = None
    holds: bool | None = None
    images: bool = False
    two_phase: bool = False
    undo_scope: str = ""
    undone_steps: tuple[str, ...] | None = None
    forward_hash: str | None = None
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Run an action. It ends with one ``CallEnded`` with the same ``id``.

    ``id`` is unique among the calls in flight and readable: ``reserve#0``, ``reserve#0~undo``, ``charge~seal``.
    ``entry`` is the entry id (``reserve#0``); ``key`` is the idempotency key, which contains no run id or attempt.
    ``earlier_attempts`` is the number of attempts of the same operation and key that ended before this call.
    ``retry.max_attempts`` is finite; for retries without limit the machine issues further calls. ``delay``: seconds
    before the first attempt, if it goes on with a call of another workflow.
    ``cancellable``: a cancellation may be delivered to a running attempt (never for a pivot).
    ``at_most_once``: the platform must not retry this attempt on its own.
    ``returns_failure``: nor one that certainly had no effect, if it is the first of the call. The machine repeats it.
    ``remembers_rejections``: a rejection holds for all attempts of the key, so the platform makes no further one.
    ``reads``: it has no effect, so nobody has to know how it ends.
    ``own_retry``: `retry` is written at the operation, and its `max_attempts` counts here.
    ``sensitive_texts``: texts that no message may quote, the `x-sensitive` values of the input.
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
    returns_failure: bool = False
    remembers_rejections: bool = False
    reads: bool = False
    own_retry: bool = False
    sensitive_texts: tuple[str, ...] = ()
    delay: float = 0.0

    @property
    def refuses_writes(self) -> bool:
        """True for the SQL of a step without an effect, of which the database must refuse every write."""
        return self.reads and self.op == "do" and self.action == "sql"


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Request cancellation of a call in flight; it still ends with a ``CallEnded``. No new attempt of it may start."""

    id: str


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Fire ``TimerFired(id)`` after ``seconds``; ``summary`` is shown in the Web UI."""

    id: str
    seconds: float
    summary: str = ""


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel a timer. A ``TimerFired`` that arrives anyway is ignored."""

    id: str


@dataclass(frozen=True, slots=True)
class StartSaga:
    """Start a nested saga. It ends with a ``SagaEnded`` with the same ``id``; ``saga_id`` is the step's key.

    ``undo_scope``: see :class:`GuardSpec`. ``repeats``: it may have been started before, by an earlier run of this saga
    or by an attempt of which nobody knows how it has ended; ``since``: then at this time or later, in seconds since the
    epoch; None if an operator says that nothing of it is left. ``cancelled``: the reason with which it is cancelled
    before its first step. ``sensitive``: the places of its input that have `x-sensitive` values of this saga.
    """

    id: str
    entry: str
    saga: str
    saga_id: str
    input: Any
    generation: int = 1
    undo_scope: str = ""
    repeats: bool = False
    since: float | None = None
    cancelled: str = ""
    sensitive: tuple[tuple[str | None, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CancelSaga:
    """Request the rollback of a nested saga (reason ``parent``); it still ends with a ``SagaEnded``."""

    id: str
    saga_id: str
    message: str


@dataclass(frozen=True, slots=True)
class RollBackSaga:
    """Wait for the end of a nested saga that an earlier run of this saga has started, and cancel it if it runs. It ends
    with a ``SagaEnded`` with the same ``id``.
    """

    id: str
    entry: str
    saga: str
    saga_id: str
    message: str


@dataclass(frozen=True, slots=True)
class UndoSaga:
    """Undo a committed nested saga. It ends with a ``SagaEnded`` with the same ``id``.

    ``repeats``: the undo may have been started before, see :class:`StartSaga`. ``again``: the start of one
    whose run was deleted: it starts again only to be undone. None if nobody knows its input.
    """

    id: str
    entry: str
    saga: str
    saga_id: str
    message: str
    repeats: bool = False
    again: StartSaga | None = None


@dataclass(frozen=True, slots=True)
class ReportParked:
    """Report the parked operations to the parent saga; it has no response. Only nested sagas send it.

    ``waits`` has the parked operations of this saga and of those nested in it, each with the ``id`` and name of its
    ``saga``; empty: nothing is parked. ``blocked``: nothing else can run in this saga.
    """

    state: str
    blocked: bool
    waits: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RecordState:
    """Record a changed state for search. Not sent when a saga runs to COMPLETED without incident."""

    state: str
    step: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Notify:
    """Send a best-effort notification. It has no response and does not affect the saga.

    ``workflow_id`` is the id of the run that delivers it; ``intervals`` are the delays in seconds before attempt 2,
    3 …, and after the last attempt it is given up. ``call`` is made by each attempt; None when its arguments could not
    be evaluated, for the reason in ``problem``.
    """

    id: str
    workflow_id: str
    milestone: Milestone
    uses: str
    intervals: tuple[float, ...]
    call: Call | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Redeliver:
    """Start the next ``generation`` of the saga after the wait of ``intervals`` that follows those that have
    ``passed``, for the event that has started this one. It has no response.

    If all of them have passed, that is recorded as a run that fails. ``workflow_id`` is the id of the run that does it.
    """

    workflow_id: str
    generation: int
    intervals: Sequence[float]
    passed: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The saga has ended. ``committed`` distinguishes a RESIDUE past the commit point from one before it."""

    state: Literal["COMPLETED", "COMPENSATED", "RESIDUE"]
    committed: bool
    output: Any = None
    reason: Mapping[str, Any] | None = field(default=None)


@dataclass(frozen=True, slots=True)
class AcquireLocks:
    """Request the locks ``keys`` (sorted), all or none. It ends with a ``LocksAnswered``, however long that takes.

    ``owner`` is the id of the root saga: what it holds, its nested sagas and its undo need not wait for. ``holder`` is
    the part of it that requests, and releases what it was granted itself. The same request may be repeated. ``waits``:
    take a place in the order of arrival if a key is not free. ``connection`` is the database of the locks. ``start``
    tells the owner from others with its id, see :func:`sagas.protocol.origin.start_of`.
    """

    connection: str
    keys: tuple[str, ...]
    owner: str
    holder: str
    waits: bool = True
    start: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseLocks:
    """Release what a saga holds, and withdraw what it waits for. It has no response and may be repeated.

    It is sent at the commit point or with the end of the saga; the run does not close before it is carried out, however
    long that takes. ``connection`` and ``holder`` are those of its ``AcquireLocks``; None if it has none.
    ``row_locks`` are the connections on which ``owner`` has row locks of automatic compensations. ``undo_scope`` is
    that of a nested saga, whose rows belong to the scope around it from now on; empty: all rows of the root saga.
    ``start``: as of ``AcquireLocks``.
    """

    owner: str
    holder: str
    connection: str | None = None
    row_locks: tuple[str, ...] = ()
    undo_scope: str = ""
    start: str = ""


Command = (
    Call
    | CancelCall
    | StartTimer
    | CancelTimer
    | StartSaga
    | CancelSaga
    | RollBackSaga
    | UndoSaga
    | ReportParked
    | RecordState
    | Notify
    | Redeliver
    | AcquireLocks
    | ReleaseLocks
    | Finish
)
