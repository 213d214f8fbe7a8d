"""The saga machine: events in, commands out, and nothing else.

It has no clock, no randomness and no input or output of its own, so the same events always give the same commands:
Temporal replays it, `saga simulate` plays with it, and the tests drive it through every fault. The rules it keeps are
numbered in docs/explanation/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sagas.definition.model import Definition
from sagas.machine import (
    answers,
    arguments,
    asking_again,
    backward,
    budget,
    calls,
    commit,
    compensate,
    decisions,
    forward,
    nested,
    permission,
    resolve,
    stored,
    waits,
)
from sagas.machine.arguments import DefinitionFault
from sagas.machine.commands import Command
from sagas.machine.events import (
    CallEnded,
    CancelRequested,
    DecisionMade,
    Event,
    SagaEnded,
    SignalReceived,
    Started,
    TimerFired,
    UndoRequested,
)
from sagas.machine.facts import (
    Begin,
    Closed,
    Commit,
    Confirm,
    ConfirmClosed,
    Decide,
    Fact,
    Failed,
    GoBack,
    PivotFailed,
    Resolve,
    Resolved,
    Roll,
    Undo,
    Undone,
)
from sagas.machine.plan import Plan
from sagas.machine.run import Run
from sagas.machine.state import Entry
from sagas.machine.story import story as tell

CancelAnswer = Literal["accepted", "recorded", "already", "past the point of no return", "finished"]


class Machine:
    """One saga. Feed it every event; carry out every command it returns."""

    def __init__(
        self,
        definition: Definition,
        input: Any,
        saga_id: str,
        *,
        generation: int = 1,
        variables: Mapping[str, Any] | None = None,
        parent: str | None = None,
        plan: Plan | None = None,
    ) -> None:
        """``plan`` is the plan of this very definition, if the caller has made it already; machines may share it."""
        self._run = Run(definition, input, saga_id, generation, variables or {}, parent, plan)

    # --- what callers see --------------------------------------------------------------------------------------

    @property
    def definition(self) -> Definition:
        return self._run.definition

    @property
    def state(self) -> str:
        """RUNNING, COMMITTED, COMPENSATING, PARKED, COMPLETED, COMPENSATED or RESIDUE."""
        return self._run.state

    @property
    def phase(self) -> str:
        """forward, committed or backward."""
        return self._run.phase

    @property
    def finished(self) -> bool:
        return self._run.finished

    @property
    def started_at(self) -> float | None:
        """When the saga began, seconds since the epoch; None before it did."""
        return self._run.started_at

    @property
    def child_running(self) -> bool:
        """A nested saga is in flight; it reports to this very run, so the run must not continue as a new one."""
        return any(flight.kind == "saga" for flight in self._run.flights.values())

    @property
    def can_undo(self) -> bool:
        """`saga undo` would be accepted now (rule 15)."""
        return permission.can_undo(self._run)

    @property
    def size(self) -> int:
        """How many rows the story has at most."""
        return sum(max(1, len(record.items or ())) for record in self._run.steps.values())

    def labels(self) -> dict[str, str]:
        """The labels people search for. Raises DefinitionFault when they cannot be made from this input."""
        return arguments.labels(self._run)

    def cancel_answer(self) -> CancelAnswer:
        """What a cancel that came now would be told (rule 6)."""
        run = self._run
        if run.finished:
            return "finished"
        if run.committed or (run.started_at is None and run.plan.forward_only):
            return "past the point of no return"
        if run.phase == "backward" or run.cancel_requested:
            return "already"
        return "recorded" if backward.must_wait(run) else "accepted"

    def check_decision(self, decision: DecisionMade) -> str | None:
        """Why this decision cannot be accepted, in one sentence; None when it can."""
        return permission.refusal(self._run, decision)

    def story(self, at: float) -> dict[str, Any]:
        """The `saga show` document, without what only the platform knows."""
        return tell(self._run, at)

    def snapshot(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return stored.dump(self._run)

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Machine:
        """The machine of a snapshot. Ask :meth:`outstanding` what was in flight."""
        machine = cls.__new__(cls)
        machine._run = stored.load(snapshot)
        return machine

    def outstanding(self, at: float) -> list[Command]:
        """Everything that is in flight, asked again; timers with the time that remains."""
        return asking_again.outstanding(self._run, at)

    # --- events ------------------------------------------------------------------------------------------------

    def next(self, event: Event) -> list[Command]:
        """Take in one event and say what is to be done. Events that no longer matter give no commands."""
        run = self._run
        run.now, run.out = event.at, []
        self._take(event)
        self._settle()
        commands, run.out = run.out, []
        return commands

    def _take(self, event: Event) -> None:
        match event:
            case Started():
                self._started()
            case CallEnded():
                self._call_ended(event)
            case SagaEnded():
                self._saga_ended(event)
            case TimerFired():
                self._timer_fired(event)
            case CancelRequested():
                self._cancel(event)
            case SignalReceived():
                self._signal(event)
            case DecisionMade():
                self._decision(event)
            case UndoRequested():
                self._undo(event)

    def _started(self) -> None:
        run = self._run
        if run.started_at is not None:
            return
        run.started_at = run.now
        run.kept_bytes = budget.size(run.input)
        if run.plan.forward_only:
            run.phase, run.state, run.committed_at = "committed", "COMMITTED", run.now
        elif run.definition.deadline is not None:
            run.deadline_at = run.now + run.definition.deadline
            run.start_timer("deadline", run.definition.deadline, "deadline")
        if run.definition.warn_after is not None:
            run.start_timer("warn_after", run.definition.warn_after, "warn when overdue")

    def _call_ended(self, event: CallEnded) -> None:
        run = self._run
        flight = run.flights.get(event.id)
        entry = run.entry(flight.entry) if flight is not None else None
        if flight is None or entry is None or flight.kind != "call":
            return  # a duplicate, or the end of something that no longer matters
        run.land(flight)
        outcome = event.outcome
        match flight.ask:
            case "do":
                forward.attempt_ended(run, entry, outcome, event.attempts)
            case "probe":
                resolve.probed(run, entry, outcome, flight)
            case "seal":
                resolve.sealed(run, entry, outcome, flight.purpose)
            case "write":
                decisions.written(run, entry, outcome, flight.purpose, event.attempts)
            case "undo-mark":
                compensate.marked(run, entry, outcome)
            case "undo":
                compensate.ended(run, entry, outcome, event.attempts)
            case "confirm" | "confirm-mark":
                commit.ended(run, entry, outcome, event.attempts, mark=flight.ask == "confirm-mark")
        if entry.decision is not None and entry.id in run.parked:
            run.post(Decide(entry, entry.decision))

    def _saga_ended(self, event: SagaEnded) -> None:
        run = self._run
        flight = run.flights.get(event.id)
        entry = run.entry(flight.entry) if flight is not None else None
        if flight is None or entry is None or flight.kind != "saga":
            return
        run.land(flight)
        outcome = nested.ended(run, entry, event, flight)
        if flight.ask == "undo":
            compensate.ended(run, entry, outcome, 1)
        else:
            forward.attempt_ended(run, entry, outcome, 1)

    def _timer_fired(self, event: TimerFired) -> None:
        run = self._run
        if event.id in run.timers:
            del run.timers[event.id]
            if event.id == "warn_after":
                run.overdue = True
            else:
                run.post(GoBack(_cause("deadline", "Deadline", "the deadline has passed", {})))
            return
        flight = run.flights.get(event.id)
        entry = run.entry(flight.entry) if flight is not None else None
        if flight is None or entry is None or flight.fires_at is None:
            return
        run.land(flight)
        if flight.kind == "wait":
            forward.attempt_ended(run, entry, waits.fired(run, entry), 1)
        elif flight.ask == "do":
            run.post(Begin(entry))
        elif flight.ask in ("seal", "probe"):
            resolve.timer_fired(run, entry, flight)
        elif flight.ask == "write":
            calls.send(run, entry, "write", flight.purpose)
        elif flight.ask == "confirm":
            commit.begin(run, entry)
        else:
            compensate.again(run, entry)

    def _cancel(self, event: CancelRequested) -> None:
        run = self._run
        if run.finished or run.committed or run.cancel_requested:
            return
        run.cancel_requested = True
        message = event.message or "somebody asked for it"
        run.post(GoBack(_cause(event.kind, "Cancelled", message, {"who": event.who} if event.who else {})))

    def _signal(self, event: SignalReceived) -> None:
        run = self._run
        if run.finished:
            return
        for entry in waits.signalled(run, event):
            forward.attempt_ended(run, entry, waits.answer(run.signals[event.name]), 1)

    def _decision(self, event: DecisionMade) -> None:
        run = self._run
        if permission.refusal(run, event) is None:
            decisions.receive(run, event)

    def _undo(self, event: UndoRequested) -> None:
        run = self._run
        if permission.can_undo(run):
            run.ended_at = None
            run.undoing_finished = True
            backward.start(run, _cause("undone", "Undone", event.reason, {"who": event.who}))

    # --- facts -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Work off what the parts told each other, until nothing more follows from it."""
        run = self._run
        while True:
            while run.agenda:
                self._handle(run.agenda.popleft())
            if run.finished or run.started_at is None:
                return
            forward.advance(run)
            backward.roll_when_settled(run)
            if not run.agenda and not self._conclude():
                return

    def _conclude(self) -> bool:
        """The end, the commit point, or PARKED. True when more may follow from it."""
        run = self._run
        if run.phase == "backward":
            if run.rolling and run.undo_open == 0:
                backward.finish(run)
                return False
        elif run.steps_open == 0:
            if not run.committed:
                run.post(Commit())
                return True
            if run.confirm_steps_open == 0 and not run.parked:
                commit.finish(run)
                if run.finished:
                    return False
        working = "COMPENSATING" if run.phase == "backward" else "COMMITTED" if run.committed else "RUNNING"
        if run.parked and run.busy == 0:
            run.change("PARKED", next(iter(run.parked)))
        elif run.state == "PARKED":
            run.change(working)
        return False

    def _handle(self, fact: Fact) -> None:
        run = self._run
        match fact:
            case Begin(entry):
                forward.begin(run, entry)
            case Failed(entry):
                forward.failed(run, entry)
            case Closed(entry, ok):
                forward.closed(run, entry, ok)
            case Resolve(entry, purpose):
                resolve.begin(run, entry, purpose)
            case Resolved(entry, purpose, verdict):
                answers.resolved(run, entry, purpose, verdict)
            case GoBack(cause, entry):
                backward.request(run, cause, entry)
            case PivotFailed(entry, cause):
                backward.pivot_failed(run, entry, cause)
            case Roll(step):
                backward.roll(run, step)
            case Undo(entry):
                compensate.begin(run, entry)
            case Undone(entry):
                answers.undone(run, entry)
            case Commit():
                commit.commit(run)
            case Confirm(entry):
                commit.begin(run, entry)
            case ConfirmClosed(entry):
                commit.closed(run, entry)
            case Decide(entry, decision):
                self._decide(entry, decision)

    def _decide(self, entry: Entry, decision: Mapping[str, Any]) -> None:
        try:
            decisions.decide(self._run, entry, decision)
        except DefinitionFault as error:
            decisions.catch(self._run, entry, error)


def _cause(kind: str, type: str, message: str, details: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "step": None, "type": type, "message": message, "details": details}


__all__ = ["CancelAnswer", "Machine"]
