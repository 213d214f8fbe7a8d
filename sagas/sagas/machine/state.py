"""The mutable state of a running saga: `SagaRun` and its records.

This module makes no decisions. A record's JSON leaves out fields that have their default (see snapshot.py), so that
the state of a saga with thousands of finished items stays small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, StepDefinition, StepState
from sagas.expressions.limits import WorkMeter
from sagas.machine.earlier_runs import EarlierRuns
from sagas.machine.lock_state import LockState
from sagas.protocol.messages import CancelCall, CancelTimer, Command, RecordState, StartTimer
from sagas.protocol.outcomes import Outcome, OutcomeKind, mask_failure
from sagas.protocol.payloads import entry_id
from sagas.protocol.saga_view import (
    EntryOperation,
    OperationStatus,
    Phase,
    SagaState,
)
from sagas.protocol.size_limits import omitted
from sagas.protocol.standing_pause import StandingPause
from sagas.text.exact_json import encode_json

FlightKind = Literal["call", "timer", "wait", "saga"]
CallKind = Literal["do", "probe", "seal", "write", "undo", "undo-mark", "skip", "confirm", "confirm-mark"]
"""The kind of call in flight. ``write`` records an operator's `done` in the guard, ``skip`` the `skip` of an automatic
compensation."""

LookupPurpose = Literal[
    "", "retry", "end", "continue", "not_done", "pivot", "backward", "skip", "again", "compensate", "given_up", "ahead"
]
"""Why the effect of an UNKNOWN step is looked up, which determines how the saga continues afterwards."""


@dataclass(slots=True)
class OperationState:
    """The compensation or the confirm of an entry. ``attempts`` is None if unknown; ``min_attempts`` is a lower bound.

    ``outcome`` joins those of all attempts of its key. ``retry_baseline``: attempts that no longer count after
    an operator's retry. ``guard_decided``: the step's guard has decided; the action itself runs on another connection.
    ``undoes_confirmed``: ``compensate.confirmed`` is in use instead of an alternate. ``as_written``: an operator has
    let it run with the arguments of the definition, although those of its step were corrected. ``left_to``: the entries
    whose undos restore rows of this one.
    """

    state: OperationStatus = "PENDING"
    outcome: OutcomeKind | None = None
    attempts: int | None = 0
    min_attempts: int = 0
    retry_baseline: int = 0
    alternate: int = 0
    started_at: float | None = None
    error: dict[str, Any] | None = None
    ended_at: float | None = None
    arguments: dict[str, Any] | None = None
    override: dict[str, Any] | None = None
    guard_decided: bool = False
    undoes_confirmed: bool = False
    as_written: bool = False
    left_to: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Entry:
    """The state of a step, or of one item of a for_each.

    ``min_attempts`` is a lower bound of the attempts of this generation, ``attempts`` the total (None: unknown).
    ``failure_kind`` is the kind of the last attempt's own outcome, or ``definition``. ``resolved``: the forward action
    has no effect and will have none. ``looked_up``: a rollback need not look up the effect again. ``retry_baseline``
    (attempts) and ``retry_baseline_at`` (time): what came before no longer counts after an operator's retry; an attempt
    that a circuit breaker does not charge is one of them. ``uncounted``: consecutive attempts that the retry policy did
    not count. ``row_locked_at``: since when rows of another saga are in the way. ``result_size``: the compressed bytes
    of a result that was too large for its call. ``failure_ignored``: dependants run as if the step had not run.
    ``decision``: an operator's decision that is not carried out yet. ``ahead``: this run has not come to it, see
    :mod:`sagas.machine.earlier.unknown_steps`; nor to one that is ``taken_over`` from an earlier run.
    """

    id: str
    step: str
    index: int | None = None
    generation: int = 1
    state: StepState = "PENDING"
    outcome: OutcomeKind | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    failure_kind: str | None = None
    attempts: int | None = 0
    min_attempts: int = 0
    probe_rounds: int = 0
    retry_baseline: int = 0
    retry_baseline_at: float | None = None
    uncounted: int = 0
    row_locked_at: float | None = None
    result_size: int = 0
    arguments: dict[str, Any] | None = None
    override: dict[str, Any] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    last_attempt_ended_at: float | None = None
    resolved: bool = False
    looked_up: bool = False
    failure_ignored: bool = False
    ahead: bool = False
    taken_over: bool = False
    flight: str | None = None
    decision: dict[str, Any] | None = None
    undo: OperationState | None = None
    confirm: OperationState | None = None


@dataclass(slots=True)
class Flight:
    """A call, timer, wait or nested saga that has not ended yet.

    ``background``: the saga does not wait for it (probing a parked pivot). ``attempts_made``: attempts of a call that
    were made in a bulk workflow; the next must not begin before ``due_at``.
    """

    id: str
    kind: FlightKind
    entry: str
    call_kind: CallKind
    started_at: float
    purpose: LookupPurpose = ""
    fires_at: float | None = None
    summary: str = ""
    background: bool = False
    cancelled: bool = False
    attempts_made: int = 0
    due_at: float | None = None


@dataclass(slots=True)
class StepRecord:
    """The progress of one step: its entries, and counters that keep the cost of every event constant.

    ``generation``: that of new entries, from the second run of the step on; 0: that of the saga. ``repetitions``: how
    often what follows this savepoint was run again. ``corrections``: those of entries before that, see
    :mod:`sagas.machine.corrections`.
    """

    id: str
    needs_open: int = 0
    items: list[Any] | None = None
    entries: list[Entry] = field(default_factory=list)
    running: int = 0
    closed: int = 0
    stopped: bool = False
    settled: bool = False
    begun: bool = False
    results: list[Any] | None = None
    dependants_open: int = 0
    undo_cursor: int | None = None
    undo_closed: bool = False
    confirm_open: int = 0
    confirm_cursor: int = 0
    confirms_running: int = 0
    confirm_closed: bool = False
    generation: int = 0
    repetitions: int = 0
    corrections: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class ParkedOperation:
    """An operation that waits for an operator's decision."""

    step: str
    op: EntryOperation
    since: float
    why: str


class InternalEvent:
    """An event that one module posts for another, see :meth:`sagas.machine.machine.Machine.next`."""

    __slots__ = ()


OUTPUT_STEP = "output"
"""The pseudo-step that evaluates the saga's `output`."""

_MAX_SHOWN_ARGUMENTS = 4_096
"""Bytes of the arguments of a call, or of a decision, that the view shows."""


def shown_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the view shows them, if they are not large."""
    size = len(encode_json(dict(arguments)))
    return omitted(size) if size > _MAX_SHOWN_ARGUMENTS else dict(arguments)


FORWARD_CALLS = frozenset({"do", "probe", "seal", "write"})


class SagaRun:
    """State of one saga. Definition and plan are immutable; only an operator's new definition replaces them."""

    def __init__(
        self,
        definition: Definition,
        input: Any,
        saga_id: str,
        generation: int,
        variables: Mapping[str, Any],
        parent: str | None,
        plan: ExecutionPlan | None = None,
        undo_scope: str = "",
    ) -> None:
        self.definition = definition
        self.plan = plan or ExecutionPlan(definition)
        self.input = input
        self.saga_id = saga_id
        self.generation = generation
        self.variables = variables
        self.parent = parent
        self.earlier = EarlierRuns()
        self.undo_scope, self.root_start = undo_scope, ""
        """See :class:`sagas.protocol.messages.GuardSpec` and :class:`sagas.protocol.origin.Origin`."""

        self.state: SagaState = "RUNNING"
        self.phase: Phase = "forward"
        self.reason: dict[str, Any] | None = None
        self.pending_cause: dict[str, Any] | None = None
        """A cause of rollback that waits for the outcome of the pivot in flight."""
        self.pending_entries: list[str] = []
        self.started_at: float | None = None
        self.committed_at: float | None = None
        self.ended_at: float | None = None
        self.deadline_at: float | None = None
        self.overdue = False
        self.cancel_requested = False
        self.compensating = False
        self.savepoint: str | None = None
        """The savepoint at which the rollback stops; None: everything is undone."""
        self.finished_by: str | None = None
        """The step `finish` that completes the saga with :attr:`output` as soon as nothing is left to run."""
        self.undoing_finished = False
        self.output: Any = None
        self.kept_bytes = 0
        """The part of the state budget in use, in estimated compressed bytes."""
        self.result_rooms: dict[str, int] = {}
        """The rest that calls in flight are promised, by entry id; see :mod:`sagas.machine.result_rooms`."""

        self.steps: dict[str, StepRecord] = {
            step.id: StepRecord(step.id, needs_open=len(step.needs)) for step in definition.steps
        }
        self.steps_open = len(definition.steps)
        self.compensations_open = 0
        self.confirm_steps_open = 0
        self.flights: dict[str, Flight] = {}
        self.timers: dict[str, tuple[float, str]] = {}
        self.parked: dict[str, ParkedOperation] = {}
        self.signals: dict[str, dict[str, Any]] = {}
        self.operator: list[dict[str, Any]] = []
        self.residue: list[dict[str, Any]] = []
        self.not_done: list[str] = []
        self.children: dict[str, dict[str, Any]] = {}
        self.reported: dict[str, Any] | None = None
        """The last report of parked operations to the parent saga; None if nothing is parked."""
        self.notifications: list[dict[str, Any]] = []
        """The notifications sent; only the runs that deliver them know their status."""
        self.redelivery: dict[str, Any] | None = None
        """The waits after which the event of the saga starts it again if it is compensated (``intervals``, in seconds),
        and how many have ``passed``; ``at``: when the next start is due, once it is ordered."""
        self.locks: LockState | None = None
        self.child_row_locks: list[str] = []
        self.operator_pause_at: float | None = None

        # Derived, or valid for one event only. Only `now` and `retrying_recorded` are part of a snapshot.
        self.now = 0.0
        self.commands: list[Command] = []
        self.agenda: deque[InternalEvent] = deque()
        self.ready: list[str] = [step.id for step in definition.steps if not step.needs]
        self.busy = 0
        self.forward_busy = 0
        self.step_values: dict[str, Any] = {}
        """The value of `steps` in expressions."""
        self.retrying_recorded = False
        self.input_digest = ""
        """Computed when an address of a callback needs it."""
        self.work = WorkMeter()
        """The evaluations of the current workflow task, for which Temporal allows two seconds."""
        self.may_pause = False
        """The caller announces workflow tasks. Without them everything is evaluated at once."""
        self.paused = False
        self.held_calls: dict[str, tuple[str, StandingPause]] = {}
        """The entry of a call that is held back, and the pause for which it waits, by flight."""

    # --- lookup ------------------------------------------------------------------------------------------------

    def step(self, entry: Entry) -> StepDefinition:
        return self.plan.steps[entry.step]

    def record(self, entry: Entry) -> StepRecord:
        return self.steps[entry.step]

    def entry(self, id: str) -> Entry | None:
        """The entry with this entry id; None when it has not begun."""
        step, mark, index = id.partition("#")
        record = self.steps.get(step)
        if record is None:
            return None
        number = int(index) if mark and index.isdigit() else 0
        if number < len(record.entries) and record.entries[number].id == id:
            return record.entries[number]
        return None

    def flight_of(self, id: str) -> tuple[Flight, Entry] | tuple[None, None]:
        """The flight with this id and its entry; None for both when it has ended already."""
        flight = self.flights.get(id)
        entry = self.entry(flight.entry) if flight is not None else None
        return (None, None) if flight is None or entry is None else (flight, entry)

    def without_sensitive_texts(self, outcome: Outcome) -> Outcome:
        """The outcome, whose failure quotes no `x-sensitive` value of the input."""
        return outcome if outcome.kind == "done" else mask_failure(outcome, self.plan.sensitive_texts(self.input))

    def new_entry(self, record: StepRecord, index: int | None) -> Entry:
        id = entry_id(record.id, index)
        generation = max(record.generation or self.generation, self.earlier.generations.get(id, 1))
        entry = Entry(id, record.id, index, generation)
        record.entries.append(entry)
        return entry

    @property
    def committed(self) -> bool:
        return self.phase == "committed"

    @property
    def is_irrevocable(self) -> bool:
        """True if the pivot is done, so that nothing may be undone; see :class:`EarlierRuns`."""
        return self.committed or self.earlier.pivot_in_place

    @property
    def finished(self) -> bool:
        return self.state in ("COMPLETED", "COMPENSATED", "RESIDUE")

    def is_cut_off(self, step: str) -> bool:
        """True for a step below the `finish` that completes the saga."""
        return self.finished_by is not None and step in self.plan.finishes[self.finished_by]

    def must_wait_for_commit(self, step: str) -> bool:
        """True for a step that runs only past the commit point and its confirms."""
        if self.plan.steps[step].kind != "retriable" and step not in self.plan.after_pivot:
            return False
        return not self.committed or self.confirm_steps_open > 0

    def begun_entries(self, id: str) -> int:
        """The number of entries of the step that this run has begun: none of a step that it has left out, whose list is
        empty or could not be evaluated, and no item that waits.
        """
        step, entries = self.plan.steps[id], self.steps[id].entries
        for number, entry in enumerate(entries):
            is_left_out = entry.state == "SKIPPED" and entry.index is None  # an operator has skipped an item
            if entry.state == "PENDING" or is_left_out or (step.for_each is not None and entry.index is None):
                return number
        return len(entries)

    def replace_definition(self, definition: Definition) -> None:
        """Continue with a corrected definition of the same steps."""
        self.definition = definition
        self.plan = ExecutionPlan(definition)

    # --- commands and internal events --------------------------------------------------------------------------

    def emit(self, command: Command) -> None:
        self.commands.append(command)

    def post(self, event: InternalEvent) -> None:
        self.agenda.append(event)

    def change_state(self, state: SagaState, step: str | None = None) -> None:
        """Enter a state and record it for search."""
        if self.state != state:
            self.state = state
            self.emit(RecordState(state, step, self.reason["kind"] if self.reason else None))

    # --- flights and timers ------------------------------------------------------------------------------------

    def start_flight(
        self,
        id: str,
        kind: FlightKind,
        entry: Entry,
        call_kind: CallKind,
        purpose: LookupPurpose = "",
        *,
        seconds: float | None = None,
        summary: str = "",
        background: bool = False,
    ) -> Flight:
        """Register a flight for this entry; with ``seconds`` also start its timer."""
        fires_at = None if seconds is None else self.now + seconds
        flight = Flight(id, kind, entry.id, call_kind, self.now, purpose, fires_at, summary, background)
        self.flights[id] = flight
        entry.flight = id
        self._count_flight(flight, 1)
        if seconds is not None:
            self.emit(StartTimer(id, max(0.0, seconds), summary))
        return flight

    def restore_flight(self, flight: Flight) -> None:
        """Register a flight of a snapshot when the run is restored."""
        self.flights[flight.id] = flight
        self._count_flight(flight, 1)

    def end_flight(self, flight: Flight) -> None:
        """Remove a flight that has ended or is no longer waited for."""
        if self.flights.pop(flight.id, None) is not None:
            self._count_flight(flight, -1)
        entry = self.entry(flight.entry)
        if entry is not None and entry.flight == flight.id:
            entry.flight = None

    def bring_to_foreground(self, flight: Flight) -> None:
        """Wait for a background flight from now on."""
        self._count_flight(flight, -1)
        flight.background = False
        self._count_flight(flight, 1)

    def end_timer_flight(self, flight: Flight) -> None:
        self.end_flight(flight)
        if flight.fires_at is not None:
            self.emit(CancelTimer(flight.id))

    def cancel_call(self, flight: Flight) -> None:
        """Request the end of a call in flight, once; its outcome still counts."""
        if not flight.cancelled:
            flight.cancelled = True
            self.emit(CancelCall(flight.id))

    def _count_flight(self, flight: Flight, by: int) -> None:
        if flight.background:
            return
        self.busy += by
        if flight.call_kind in FORWARD_CALLS and flight.purpose != "backward":
            self.forward_busy += by

    def start_timer(self, id: str, seconds: float, summary: str) -> None:
        """Start a timer of the whole saga (deadline, warning)."""
        self.timers[id] = (self.now + seconds, summary)
        self.emit(StartTimer(id, seconds, summary))

    def cancel_timer(self, id: str) -> None:
        if self.timers.pop(id, None) is not None:
            self.emit(CancelTimer(id))

    # --- parking -----------------------------------------------------------------------------------------------

    def park(self, entry: Entry, op: EntryOperation, why: str) -> None:
        """Park this operation until an operator decides."""
        if entry.id not in self.parked:
            self.parked[entry.id] = ParkedOperation(entry.id, op, self.now, why)
        if op == "do":
            entry.state = "PARKED"
        elif op == "undo" and entry.undo is not None:
            entry.state = "PARKED"
            entry.undo.state = "PARKED"
        elif op == "confirm" and entry.confirm is not None:
            entry.state = "PARKED"
            entry.confirm.state = "PARKED"

    def unpark(self, entry: Entry) -> ParkedOperation | None:
        """Resume the parked operation of this entry, if any, and return it."""
        parked = self.parked.pop(entry.id, None)
        if parked is None or entry.state != "PARKED":
            return parked
        if parked.op == "do":
            entry.state = "RUNNING"
        elif parked.op == "undo" and entry.undo is not None:
            entry.state = "COMPENSATING"
            entry.undo.state = "RUNNING"
        elif entry.confirm is not None:
            entry.state = "CONFIRMING"
            entry.confirm.state = "RUNNING"
        return parked
