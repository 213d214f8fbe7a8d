"""The whole mutable state of one saga, and the few things every part does with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from sagas.definition.model import Definition, Step
from sagas.machine.commands import CancelTimer, Command, Record, StartTimer
from sagas.machine.facts import Fact
from sagas.machine.keys import entry_id
from sagas.machine.plan import Plan
from sagas.machine.state import Ask, Entry, EntryOp, Flight, FlightKind, Parked, Phase, Purpose, SagaState, StepRecord

OUTPUT = "output"
"""The pseudo-step that evaluates the saga's `output`."""

FORWARD_ASKS = frozenset({"do", "probe", "seal", "write"})


class Run:
    """State of one saga. Only this object changes; definition and plan never do (but for a person's new definition)."""

    def __init__(
        self,
        definition: Definition,
        input: Any,
        saga_id: str,
        generation: int,
        variables: Mapping[str, Any],
        parent: str | None,
        plan: Plan | None = None,
    ) -> None:
        self.definition = definition
        self.plan = plan or Plan(definition)
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
        self.parked: dict[str, Parked] = {}
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
        self.out: list[Command] = []
        self.agenda: deque[Fact] = deque()
        self.ready: list[str] = [step.id for step in definition.steps if not step.needs]
        self.busy = 0
        self.forward_busy = 0
        self.view: dict[str, Any] = {}
        """What expressions see as ``steps``."""
        self.trouble_shown = False

    # --- where things are --------------------------------------------------------------------------------------

    def step(self, entry: Entry) -> Step:
        return self.plan.steps[entry.step]

    def record(self, entry: Entry) -> StepRecord:
        return self.steps[entry.step]

    def entry(self, id: str) -> Entry | None:
        """The entry of this ledger id, if it has begun."""
        step, mark, index = id.partition("#")
        record = self.steps.get(step)
        if record is None:
            return None
        at = int(index) if mark and index.isdigit() else 0
        if at < len(record.entries) and record.entries[at].id == id:
            return record.entries[at]
        return None

    def new_entry(self, record: StepRecord, index: int | None) -> Entry:
        entry = Entry(entry_id(record.id, index), record.id, index, self.generation)
        record.entries.append(entry)
        return entry

    @property
    def committed(self) -> bool:
        return self.phase == "committed"

    @property
    def finished(self) -> bool:
        return self.state in ("COMPLETED", "COMPENSATED", "RESIDUE")

    def adopt(self, definition: Definition) -> None:
        """Go on with a mended definition of the same steps."""
        self.definition = definition
        self.plan = Plan(definition)

    # --- commands and facts ------------------------------------------------------------------------------------

    def emit(self, command: Command) -> None:
        self.out.append(command)

    def post(self, fact: Fact) -> None:
        self.agenda.append(fact)

    def change(self, state: SagaState, step: str | None = None) -> None:
        """Enter a state that people search for."""
        if self.state != state:
            self.state = state
            self.emit(Record(state, step, self.reason["kind"] if self.reason else None))

    # --- what is in flight -------------------------------------------------------------------------------------

    def depart(
        self,
        id: str,
        kind: FlightKind,
        entry: Entry,
        ask: Ask,
        purpose: Purpose = "",
        *,
        seconds: float | None = None,
        summary: str = "",
        background: bool = False,
    ) -> Flight:
        """Note that something is asked of the world for this entry; a timer is started here too."""
        fires_at = None if seconds is None else self.now + seconds
        flight = Flight(id, kind, entry.id, ask, self.now, purpose, fires_at, summary, background)
        self.flights[id] = flight
        entry.flight = id
        self._count(flight, 1)
        if seconds is not None:
            self.emit(StartTimer(id, max(0.0, seconds), summary))
        return flight

    def rejoin(self, flight: Flight) -> None:
        """A flight of a snapshot, when the run is restored."""
        self.flights[flight.id] = flight
        self._count(flight, 1)

    def land(self, flight: Flight) -> None:
        """It has answered, or is no longer waited for."""
        if self.flights.pop(flight.id, None) is not None:
            self._count(flight, -1)
        entry = self.entry(flight.entry)
        if entry is not None and entry.flight == flight.id:
            entry.flight = None

    def foreground(self, flight: Flight) -> None:
        """Something waits for it now."""
        self._count(flight, -1)
        flight.background = False
        self._count(flight, 1)

    def drop_timer(self, flight: Flight) -> None:
        self.land(flight)
        if flight.fires_at is not None:
            self.emit(CancelTimer(flight.id))

    def _count(self, flight: Flight, by: int) -> None:
        if flight.background:
            return
        self.busy += by
        if flight.ask in FORWARD_ASKS and flight.purpose != "backward":
            self.forward_busy += by

    def start_timer(self, id: str, seconds: float, summary: str) -> None:
        """A timer of the whole saga (deadline, warning)."""
        self.timers[id] = (self.now + seconds, summary)
        self.emit(StartTimer(id, seconds, summary))

    def cancel_timer(self, id: str) -> None:
        if self.timers.pop(id, None) is not None:
            self.emit(CancelTimer(id))

    # --- parking -----------------------------------------------------------------------------------------------

    def park(self, entry: Entry, op: EntryOp, why: str) -> None:
        """Only a person can move this operation on."""
        if entry.id not in self.parked:
            self.parked[entry.id] = Parked(entry.id, op, self.now, why)
        if op == "do":
            entry.state = "PARKED"
        elif op == "undo" and entry.undo is not None:
            entry.state = "PARKED"
            entry.undo.state = "PARKED"
        elif op == "confirm" and entry.confirm is not None:
            entry.state = "PARKED"
            entry.confirm.state = "PARKED"

    def unpark(self, entry: Entry) -> Parked | None:
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
