"""Runs one saga to its end as a discrete-event simulation: in-memory participants execute the machine's commands.

Every call takes a millisecond, whatever its retries; timers cost no real time. A nested saga runs its own machine next
to its parent's. The run ends when the saga ends, or when only an operator can continue it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sagas.definition.input_validation import invalid_input, validate_input
from sagas.definition.model import Definition, Probe
from sagas.errors import UsageError
from sagas.machine.locking.locks import TIMERS as LOCK_TIMERS
from sagas.machine.machine import Machine
from sagas.protocol.messages import (
    AcquireLocks,
    Call,
    CallEnded,
    CancelRequested,
    CancelSaga,
    CancelTimer,
    Command,
    LocksAnswered,
    MachineEvent,
    Notify,
    SagaEnded,
    SignalReceived,
    Started,
    StartSaga,
    StartTimer,
    TimerFired,
    UndoRequested,
    UndoSaga,
)
from sagas.protocol.saga_view import ReasonView, SagaView
from sagas.simulation.participants import Participants, attempts_made, find_inconsistencies
from sagas.simulation.samples import DIGIT_STRING, sample_input_of, sample_results
from sagas.simulation.script import Environment, Script, SimulatedRun, names_entry
from sagas.text.exact_json import decode_json, encode_json

START_TIME = 1_767_225_600.0
"""1 January 2026, 00:00 UTC: the start of every simulated run, so that runs are reproducible."""

CALL_SECONDS = 0.001
MAX_EVENTS = 200_000
SAGA_TIMERS = ("deadline", "warn_after", *LOCK_TIMERS)
OTHER_SAGA = "another-saga"
"""Holds the locks, if the script says that they are not free."""


def simulate(
    definition: Definition, input: Any, script: Script | None = None, environment: Environment | None = None
) -> SimulatedRun:
    """Run a saga in memory. The same arguments always produce the same run.

    Raises UsageError when the input does not match the saga's schema, or the script names an unknown step or outcome.
    """
    return simulate_calls(definition, input, script, environment)[0]


def simulate_calls(
    definition: Definition,
    input: Any,
    script: Script | None = None,
    environment: Environment | None = None,
    *,
    saga_id: str | None = None,
    participants: Participants | None = None,
) -> tuple[SimulatedRun, list[Call]]:
    """Simulate as :func:`simulate` does; also return the saga's own calls in their order, with keys and arguments.

    ``participants`` perform the calls of a run under a ``saga_id`` of its own; None: in memory.
    """
    script, environment = script or Script(), environment or Environment()
    script.validate(definition, environment.definitions.values())
    filled, problems = validate_input(definition, input)
    if problems:
        raise UsageError(invalid_input(definition.saga, problems))
    saga_id = saga_id or f"{definition.saga}-simulated"
    simulation = _Simulation(definition, filled, script, environment, saga_id, participants or Participants())
    run = simulation.run()
    if run.document["steps_omitted"] is None:
        script.check_items(run.steps)
    return run, simulation.calls


@dataclass(slots=True)
class _SimulatedSaga:
    """One machine. ``path`` is empty for the saga itself, ``buy/`` for the saga of its step ``buy``."""

    machine: Machine
    saga_id: str
    path: str
    ended: Callable[[SagaEnded], None] | None = None
    id: str = ""
    sample_results: dict[str, Any] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    calls_made: dict[str, int] = field(default_factory=dict)
    has_waits: bool = False
    answered_waits: set[str] = field(default_factory=set)


class _Simulation:
    def __init__(
        self,
        definition: Definition,
        input: Any,
        script: Script,
        outside: Environment,
        saga_id: str,
        participants: Participants,
    ) -> None:
        self.script, self.environment = script, outside
        self.participants = participants
        self.now = START_TIME
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = itertools.count()
        self.busy = 0
        self.actors: dict[str, _SimulatedSaga] = {}
        self.interrupted = False
        self.notifications: list[dict[str, Any]] = []
        self.calls: list[Call] = []
        self.root = self._add_saga(definition, input, saga_id, "")

    def run(self) -> SimulatedRun:
        self._feed(self.root, Started(self.now))
        self._run_until_over()
        if self.script.undo_at_end and self.root.machine.undo_refusal is None:
            self._request_undo(self.root, "simulated")
            self._run_until_over()
        self.participants.deliver_late_attempts()
        view = self.root.machine.view()
        views = {actor.path: actor.machine.view() for actor in self.actors.values()}
        parked = [{**row.to_json(), "step": path + row.step} for path, ended in views.items() for row in ended.parked]
        state = "PARKED" if parked and not self.root.machine.finished else view.state
        residue = [row.to_json() for row in (*view.residue, *find_inconsistencies(views, self.participants))]
        return SimulatedRun(state, self.participants.undone, residue, view.to_json(), parked, self.notifications)

    def _run_until_over(self) -> None:
        for _ in range(MAX_EVENTS):
            if self._is_over() or not self.queue:
                break
            self.now, _, happen = heapq.heappop(self.queue)
            happen()

    def _is_over(self) -> bool:
        if self.busy:
            return False
        if self.root.machine.finished or self.root.machine.state == "PARKED":
            return True
        stuck = any(actor.machine.state == "PARKED" for actor in self.actors.values())
        return stuck and all(timer in SAGA_TIMERS for actor in self.actors.values() for timer in actor.timers)

    # --- machines ----------------------------------------------------------------------------------------------

    def _add_saga(self, definition: Definition, input: Any, saga_id: str, path: str) -> _SimulatedSaga:
        machine = Machine(_without_probe_expressions(definition), input, saga_id, variables=self.environment.variables)
        actor = _SimulatedSaga(
            machine, saga_id, path, sample_results=sample_results(definition, self.environment.result_schemas)
        )
        actor.has_waits = any(step.do.uses == "wait" for step in definition.steps)
        self.actors[saga_id] = actor
        return actor

    def _feed(self, actor: _SimulatedSaga, event: MachineEvent) -> None:
        if actor.machine.finished and not isinstance(event, UndoRequested):
            return
        for command in actor.machine.next(event):
            self._execute(actor, command)
        if actor.has_waits:
            self._answer_waits(actor)
        if actor.machine.finished and actor.ended is not None:
            ended, actor.ended = actor.ended, None
            view = actor.machine.view()
            ended(SagaEnded(actor.id, view.state, self.now, view))  # pyright: ignore[reportArgumentType]

    def _execute(self, actor: _SimulatedSaga, command: Command) -> None:
        match command:
            case Call():
                if actor is self.root:
                    self.calls.append(command)
                begin = command.op == "do"
                self._schedule(self._delay(actor, command.entry, begin=begin), lambda: self._end_call(actor, command))
            case StartSaga():
                self._start(actor, command)
            case CancelSaga():
                child = self.actors.get(command.saga_id)
                if child is not None:
                    self._feed(child, CancelRequested(self.now, "parent", message=command.message))
            case UndoSaga():
                self._undo(actor, command)
            case AcquireLocks():
                self._schedule(CALL_SECONDS, lambda: self._feed(actor, self._lock_answer(actor, command)))
            case StartTimer():
                self._start_timer(actor, command)
            case CancelTimer():
                actor.timers.pop(command.id, None)
            case Notify() if actor is self.root:
                given = None if command.call is None else dict(command.call.arguments)
                notification = {"id": command.id, "when": command.milestone, "uses": command.uses, "with": given}
                self.notifications.append({**notification, "problem": command.problem})
            case _:
                pass  # other commands only publish state that is read from the machine here

    def _schedule(self, seconds: float, happen: Callable[[], None]) -> None:
        self.busy += 1

        def happens() -> None:
            self.busy -= 1
            happen()

        heapq.heappush(self.queue, (self.now + seconds, next(self.sequence), happens))

    def _start_timer(self, actor: _SimulatedSaga, command: StartTimer) -> None:
        number = next(self.sequence)
        actor.timers[command.id] = number

        def fires() -> None:
            if actor.timers.get(command.id) == number:
                del actor.timers[command.id]
                self._feed(actor, TimerFired(command.id, self.now))

        heapq.heappush(self.queue, (self.now + command.seconds, number, fires))

    def _delay(self, actor: _SimulatedSaga, entry: str, *, begin: bool) -> float:
        """Duration in seconds of a call, wait or nested saga; the script's cancel or deadline occurs within it."""
        if begin and not self.interrupted and names_entry(self.script.cancel_at, actor.path, entry):
            self.interrupted = True
            self._schedule(
                CALL_SECONDS / 2, lambda: self._feed(self.root, CancelRequested(self.now, message="simulated"))
            )
        if begin and not self.interrupted and names_entry(self.script.deadline_at, actor.path, entry):
            self.interrupted = True
            limit = self.root.machine.definition.deadline
            if limit is not None:
                return max(CALL_SECONDS, START_TIME + limit + CALL_SECONDS - self.now)
        return CALL_SECONDS

    # --- results of calls and waits ----------------------------------------------------------------------------

    def _end_call(self, actor: _SimulatedSaga, call: Call) -> None:
        machine = actor.machine
        suffix = {"undo": "/undo", "confirm": "/confirm"}.get(call.op, "")
        call_number = 0
        if call.op not in ("seal", "probe") and not (call.guard is not None and call.guard.mode == "mark"):
            call_number = actor.calls_made.get(call.entry + suffix, 0)
            actor.calls_made[call.entry + suffix] = call_number + 1
        endless = machine.phase == "committed"
        scripted = self.script.outcome_of_call(actor.path, call.entry, suffix, call_number, without_limit=endless)
        given, result = self.script.result(actor.path, call.entry)
        result = result if given else actor.sample_results.get(call.step)
        outcome = self.participants.perform(machine.definition, actor.path, actor.saga_id, call, scripted, result)
        step = machine.definition.step(call.step)
        if call.op == "do" and scripted == "late" and step.probe is not None and not step.do.guarded:
            # `settle` promises that no attempt arrives after it, and a probe relies on that.
            arrives = (self.now + step.settle / 2, next(self.sequence))
            heapq.heappush(
                self.queue, (*arrives, lambda: self.participants.deliver_late_attempts(actor.saga_id, call.entry))
            )
        made = attempts_made(scripted, call) if outcome.kind != "late" else 1
        self._feed(actor, CallEnded(call.id, outcome, self.now, made))

    def _lock_answer(self, actor: _SimulatedSaga, command: AcquireLocks) -> LocksAnswered:
        if not self.script.locked or actor is not self.root:
            return LocksAnswered("granted", self.now)
        blocker = {"key": command.keys[0], "owner": OTHER_SAGA, "since": START_TIME}
        return LocksAnswered("waiting" if command.waits else "refused", self.now, [blocker])

    def _answer_waits(self, actor: _SimulatedSaga) -> None:
        """Signal every wait at once, unless the script gives it an outcome without a signal."""
        snapshot = actor.machine.snapshot()
        entries = {entry["id"]: entry for step in snapshot["steps"] for entry in step.get("entries", ())}
        for flight in snapshot["flights"]:
            name = (entries[flight["entry"]].get("arguments") or {}).get("signal")
            if flight["kind"] != "wait" or flight["entry"] in actor.answered_waits:
                continue
            actor.answered_waits.add(flight["entry"])
            delay = self._delay(actor, flight["entry"], begin=True)
            outcome = self.script.outcome_of_call(actor.path, flight["entry"], "", 0, without_limit=False)
            if name is None or outcome in ("failed", "unknown", "late"):
                continue
            reject = f"{name} is refused" if outcome == "rejected" else None
            event = SignalReceived(str(name), self.now + delay, self.script.signals.get(str(name)), "simulated", reject)
            self._schedule(delay, lambda event=event: self._feed(actor, event))

    # --- nested sagas ------------------------------------------------------------------------------------------

    def _start(self, actor: _SimulatedSaga, command: StartSaga) -> None:
        outcome = self.script.outcome_of_call(actor.path, command.entry, "", 0, without_limit=False)
        given, result = self.script.result(actor.path, command.entry)
        definition = self.environment.definitions.get(command.saga)
        delay = self._delay(actor, command.entry, begin=True)

        def ends(ended: SagaEnded) -> None:
            self._schedule(max(0.0, delay - CALL_SECONDS), lambda: self._feed(actor, ended))

        def answers(state: Any, output: Any = None, reason: ReasonView | None = None) -> None:
            shown = "FAILED" if state == "REFUSED" else state
            view = SagaView(id=command.saga_id, saga=command.saga, state=shown, output=output, reason=reason)
            self._schedule(delay, lambda: self._feed(actor, SagaEnded(command.id, state, self.now, view)))

        def refuse(message: str) -> None:
            answers("REFUSED", reason=ReasonView(kind="rejected", message=message))

        if outcome in ("rejected", "failed"):
            reason = ReasonView(kind=outcome, type=outcome.capitalize(), message=f"{command.saga} ends {outcome}")
            answers("COMPENSATED", reason=reason)
        elif outcome == "unknown":
            answers("TERMINATED")
        elif given:
            answers("COMPLETED", result)
        elif definition is None:
            refuse(f"there is no valid saga {command.saga}")
        else:
            filled, problems = validate_input(definition, command.input)
            if problems and self.script.input_is_sample:
                answers("COMPLETED", actor.sample_results.get(command.entry.partition("#")[0]))
                return
            if problems:
                refuse(invalid_input(command.saga, problems))
                return
            child = self._add_saga(definition, filled, command.saga_id, f"{actor.path}{command.entry}/")
            child.ended, child.id = ends, command.id
            self._feed(child, Started(self.now))

    def _undo(self, actor: _SimulatedSaga, command: UndoSaga) -> None:
        outcome = self.script.outcome_of_call(actor.path, command.entry, "/undo", 0, without_limit=False)
        child = self.actors.get(command.saga_id)

        def ends(ended: SagaEnded) -> None:
            if ended.state == "COMPENSATED":
                self.participants.undone.append(actor.path + command.entry)
            self._schedule(CALL_SECONDS, lambda: self._feed(actor, ended))

        if outcome != "done" or (child is not None and child.machine.undo_refusal is not None):
            ends(SagaEnded(command.id, "REFUSED", self.now))
        elif child is None:
            ends(SagaEnded(command.id, "COMPENSATED", self.now))
        else:
            child.ended, child.id = ends, command.id
            self._request_undo(child, command.message)

    def _request_undo(self, actor: _SimulatedSaga, message: str) -> None:
        """Undo a finished saga. It is restored from its stored snapshot, as in `saga undo`."""
        actor.machine = Machine.restore(decode_json(encode_json(actor.machine.snapshot())))
        self._feed(actor, UndoRequested(self.now, message, "simulated"))


def _without_probe_expressions(definition: Definition) -> Definition:
    """Replace the conditions of probes by ones on simulated responses, as the real responses are not known here.

    A probe without `done`, or without `absent`, still cannot return that verdict.
    """
    steps = tuple(
        replace(step, probe=_bare(step.probe)) if step.probe is not None else step for step in definition.steps
    )
    return replace(definition, steps=steps)


def _bare(probe: Probe) -> Probe:
    if probe.done is None and probe.absent is None:
        return probe
    return replace(
        probe,
        done="response.probe == 'done'" if probe.done is not None else None,
        absent="response.probe == 'absent'" if probe.absent is not None else None,
        result="response.result",
    )


def sample_input(definition: Definition, environment: Environment | None = None) -> Any:
    """Generate an input from the schema; deterministic for a definition.

    Strings are the names of their properties if the saga completes with them, else digits: a definition that calls
    ``decimal(input.amount)`` needs an amount. The input may violate a schema with conditions or patterns.
    """
    named = sample_input_of(definition, None)
    if validate_input(definition, named)[1]:
        return sample_input_of(definition, DIGIT_STRING)
    run = simulate(definition, named, Script(input_is_sample=True), environment)
    return named if run.state == "COMPLETED" else sample_input_of(definition, DIGIT_STRING)
