"""What a running saga knows about itself: small mutable records, and their JSON.

Nothing here decides anything. A record becomes JSON by leaving out what still has its default, so that the state of
a saga with thousands of finished items stays small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sagas.definition.model import Definition, StepDefinition
from sagas.definition.step_graph import ExecutionPlan
from sagas.protocol.messages import (
    CancelTimer,
    Command,
    OperationStatus,
    Phase,
    RecordState,
    SagaState,
    StartTimer,
    StepState,
)
from sagas.protocol.outcomes import OutcomeKind
from sagas.protocol.payloads import entry_id

EntryOperation = Literal["do", "undo", "confirm"]
FlightKind = Literal["call", "timer", "wait", "saga"]
CallKind = Literal["do", "probe", "seal", "write", "undo", "undo-mark", "confirm", "confirm-mark"]
"""What a flight asks for. ``write`` puts a person's `done` into the guard."""

LookupPurpose = Literal["", "retry", "end", "continue", "not_done", "pivot", "backward", "skip", "again", "compensate"]
"""Why an UNKNOWN step is being resolved, which decides how it goes on afterwards."""


@dataclass(slots=True)
class OperationState:
    """The compensation or the confirm of an entry. ``attempts`` None: unknown; ``made`` counts at least that many.

    ``marked``: the guard where the step ran has decided, the action itself lives elsewhere. ``tries_from``: the
    attempts that a person's retry does not count any more.
    """

    state: OperationStatus = "PENDING"
    attempts: int | None = 0
    made: int = 0
    tries_from: int = 0
    alternate: int = 0
    started_at: float | None = None
    error: dict[str, Any] | None = None
    ended_at: float | None = None
    arguments: dict[str, Any] | None = None
    override: dict[str, Any] | None = None
    marked: bool = False
    use_confirmed: bool = False
    result: Any = None


@dataclass(slots=True)
class LedgerEntry:
    """One row of the ledger: a step, or one item of a for_each.

    ``made`` counts the attempts of this generation at the least, ``attempts`` all of them (None: unknown).
    ``resolved``: nothing of the forward action is there, and nothing will be. ``asked``: a probe had its say going
    backward. ``tries_from``, ``tries_since``: what a person's retry does not count any more. ``uncounted``: how many
    attempts in a row have ended without counting. ``continued``: its failure is treated as if it had not run.
    ``decision``: what a person decided, until it is carried out.
    """

    id: str
    step: str
    index: int | None = None
    generation: int = 1
    state: StepState = "PENDING"
    outcome: OutcomeKind | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    word: str | None = None
    attempts: int | None = 0
    made: int = 0
    rounds: int = 0
    tries_from: int = 0
    tries_since: float | None = None
    uncounted: int = 0
    arguments: dict[str, Any] | None = None
    override: dict[str, Any] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    last_end: float | None = None
    resolved: bool = False
    asked: bool = False
    continued: bool = False
    flight: str | None = None
    decision: dict[str, Any] | None = None
    undo: OperationState | None = None
    confirm: OperationState | None = None


@dataclass(slots=True)
class Flight:
    """Something asked of the world that has not answered yet.

    ``background``: it goes on, but nobody needs to wait for it (probing a parked pivot).
    """

    id: str
    kind: FlightKind
    entry: str
    ask: CallKind
    since: float
    purpose: LookupPurpose = ""
    fires_at: float | None = None
    summary: str = ""
    background: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class StepRecord:
    """Where one step stands: its entries, and the counters that keep every event cheap."""

    id: str
    needs_open: int = 0
    items: list[Any] | None = None
    entries: list[LedgerEntry] = field(default_factory=list)
    running: int = 0
    closed: int = 0
    stopped: bool = False
    settled: bool = False
    begun: bool = False
    skipped: bool = False
    results: list[Any] | None = None
    dependants_open: int = 0
    undo_cursor: int | None = None
    undo_closed: bool = False
    confirm_open: int = 0
    confirm_cursor: int = 0
    confirms_running: int = 0
    confirm_closed: bool = False


@dataclass(slots=True)
class ParkedOperation:
    """An operation only a person can move on."""

    step: str
    op: EntryOperation
    since: float
    why: str


# What one part of the machine tells the others.
#
# The parts (forward, resolve, backward, commit …) do not call each other: each posts facts, and machine.py hands every
# fact to the part that it concerns. That keeps the imports free of circles and the stack flat.


LookupVerdict = Literal["done", "absent", "late", "unknown"]


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Make (another) forward attempt of this entry."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class ForwardFailed:
    """The retries of a forward entry have ended without success; its ``on_failure`` decides."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class EntrySettled:
    """Nothing more will be asked of a forward entry. ``ok``: its dependants may run."""

    entry: LedgerEntry
    ok: bool


@dataclass(frozen=True, slots=True)
class LookUpEffect:
    """Find out whether the effect of an entry is there, by the guard or by a probe."""

    entry: LedgerEntry
    purpose: LookupPurpose


@dataclass(frozen=True, slots=True)
class EffectLookedUp:
    """The answer to :class:`Resolve`."""

    entry: LedgerEntry
    purpose: LookupPurpose
    verdict: LookupVerdict


@dataclass(frozen=True, slots=True)
class StartRollback:
    """Something leads backward. ``cause`` becomes the saga's reason unless one was recorded earlier."""

    cause: Mapping[str, Any]
    entry: LedgerEntry | None = None


@dataclass(frozen=True, slots=True)
class PivotFailed:
    """The pivot has definitely not happened and never will: what was recorded meanwhile may lead backward now."""

    entry: LedgerEntry
    cause: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompensateStep:
    """Look at this step going backward: its dependants are all closed."""

    step: str


@dataclass(frozen=True, slots=True)
class CompensateEntry:
    """Compensate this entry."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class CompensationSettled:
    """The compensation of this entry is closed, one way or another."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class ReachCommitPoint:
    """The commit point is reached."""


@dataclass(frozen=True, slots=True)
class ConfirmEntry:
    """Confirm this entry."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class ConfirmSettled:
    """The confirm of this entry is closed."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class CarryOutDecision:
    """A person's decision about this entry can be carried out now."""

    entry: LedgerEntry
    decision: Mapping[str, Any]


InternalEvent = (
    StartAttempt
    | ForwardFailed
    | EntrySettled
    | LookUpEffect
    | EffectLookedUp
    | StartRollback
    | PivotFailed
    | CompensateStep
    | CompensateEntry
    | CompensationSettled
    | ReachCommitPoint
    | ConfirmEntry
    | ConfirmSettled
    | CarryOutDecision
)


# The whole mutable state of one saga, and the few things every part does with it.


OUTPUT_STEP = "output"
"""The pseudo-step that evaluates the saga's `output`."""

FORWARD_CALLS = frozenset({"do", "probe", "seal", "write"})


class SagaRun:
    """State of one saga. Only this object changes; definition and plan never do (but for a person's new definition)."""

    def __init__(
        self,
        definition: Definition,
        input: Any,
        saga_id: str,
        generation: int,
        variables: Mapping[str, Any],
        parent: str | None,
        plan: ExecutionPlan | None = None,
    ) -> None:
        self.definition = definition
        self.plan = plan or ExecutionPlan(definition)
        self.input = input
        self.saga_id = saga_id
        self.generation = generation
        self.variables = variables
        self.parent = parent

        self.state: SagaState = "RUNNING"
        self.phase: Phase = "forward"
        self.reason: dict[str, Any] | None = None
        self.recorded: dict[str, Any] | None = None
        """A cause that waits for the pivot in flight to decide."""
        self.recorded_entries: list[str] = []
        self.started_at: float | None = None
        self.committed_at: float | None = None
        self.ended_at: float | None = None
        self.deadline_at: float | None = None
        self.overdue = False
        self.cancel_requested = False
        self.rolling = False
        self.undoing_finished = False
        self.output: Any = None
        self.kept_bytes = 0
        """What the values that are kept take of the budget (budget.py)."""

        self.steps: dict[str, StepRecord] = {
            step.id: StepRecord(step.id, needs_open=len(step.needs)) for step in definition.steps
        }
        self.steps_open = len(definition.steps)
        self.undo_open = 0
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
        """What the parent saga was told last about parked operations; None: that there are none."""
        self.notifications: list[dict[str, Any]] = []
        """Who was told what, and when; what became of it only the runs that deliver know."""

        # Derived or of one event only: never part of a snapshot.
        self.now = 0.0
        self.commands: list[Command] = []
        self.agenda: deque[InternalEvent] = deque()
        self.ready: list[str] = [step.id for step in definition.steps if not step.needs]
        self.busy = 0
        self.forward_busy = 0
        self.step_values: dict[str, Any] = {}
        """What expressions see as ``steps``."""
        self.trouble_shown = False

    # --- where things are --------------------------------------------------------------------------------------

    def step(self, entry: LedgerEntry) -> StepDefinition:
        return self.plan.steps[entry.step]

    def record(self, entry: LedgerEntry) -> StepRecord:
        return self.steps[entry.step]

    def entry(self, id: str) -> LedgerEntry | None:
        """The entry of this ledger id, if it has begun."""
        step, mark, index = id.partition("#")
        record = self.steps.get(step)
        if record is None:
            return None
        at = int(index) if mark and index.isdigit() else 0
        if at < len(record.entries) and record.entries[at].id == id:
            return record.entries[at]
        return None

    def new_entry(self, record: StepRecord, index: int | None) -> LedgerEntry:
        entry = LedgerEntry(entry_id(record.id, index), record.id, index, self.generation)
        record.entries.append(entry)
        return entry

    @property
    def committed(self) -> bool:
        return self.phase == "committed"

    @property
    def finished(self) -> bool:
        return self.state in ("COMPLETED", "COMPENSATED", "RESIDUE")

    def replace_definition(self, definition: Definition) -> None:
        """Go on with a mended definition of the same steps."""
        self.definition = definition
        self.plan = ExecutionPlan(definition)

    # --- commands and facts ------------------------------------------------------------------------------------

    def emit(self, command: Command) -> None:
        self.commands.append(command)

    def post(self, fact: InternalEvent) -> None:
        self.agenda.append(fact)

    def change_state(self, state: SagaState, step: str | None = None) -> None:
        """Enter a state that people search for."""
        if self.state != state:
            self.state = state
            self.emit(RecordState(state, step, self.reason["kind"] if self.reason else None))

    # --- what is in flight -------------------------------------------------------------------------------------

    def start_flight(
        self,
        id: str,
        kind: FlightKind,
        entry: LedgerEntry,
        call_kind: CallKind,
        purpose: LookupPurpose = "",
        *,
        seconds: float | None = None,
        summary: str = "",
        background: bool = False,
    ) -> Flight:
        """Note that something is asked of the world for this entry; a timer is started here too."""
        fires_at = None if seconds is None else self.now + seconds
        flight = Flight(id, kind, entry.id, call_kind, self.now, purpose, fires_at, summary, background)
        self.flights[id] = flight
        entry.flight = id
        self._count_flight(flight, 1)
        if seconds is not None:
            self.emit(StartTimer(id, max(0.0, seconds), summary))
        return flight

    def restore_flight(self, flight: Flight) -> None:
        """A flight of a snapshot, when the run is restored."""
        self.flights[flight.id] = flight
        self._count_flight(flight, 1)

    def end_flight(self, flight: Flight) -> None:
        """It has answered, or is no longer waited for."""
        if self.flights.pop(flight.id, None) is not None:
            self._count_flight(flight, -1)
        entry = self.entry(flight.entry)
        if entry is not None and entry.flight == flight.id:
            entry.flight = None

    def bring_to_foreground(self, flight: Flight) -> None:
        """Something waits for it now."""
        self._count_flight(flight, -1)
        flight.background = False
        self._count_flight(flight, 1)

    def end_timer_flight(self, flight: Flight) -> None:
        self.end_flight(flight)
        if flight.fires_at is not None:
            self.emit(CancelTimer(flight.id))

    def _count_flight(self, flight: Flight, by: int) -> None:
        if flight.background:
            return
        self.busy += by
        if flight.ask in FORWARD_CALLS and flight.purpose != "backward":
            self.forward_busy += by

    def start_timer(self, id: str, seconds: float, summary: str) -> None:
        """A timer of the whole saga (deadline, warning)."""
        self.timers[id] = (self.now + seconds, summary)
        self.emit(StartTimer(id, seconds, summary))

    def cancel_timer(self, id: str) -> None:
        if self.timers.pop(id, None) is not None:
            self.emit(CancelTimer(id))

    # --- parking -----------------------------------------------------------------------------------------------

    def park(self, entry: LedgerEntry, op: EntryOperation, why: str) -> None:
        """Only a person can move this operation on."""
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

    def unpark(self, entry: LedgerEntry) -> ParkedOperation | None:
        """The operation moves again."""
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
