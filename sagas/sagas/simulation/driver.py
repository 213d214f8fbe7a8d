"""Runs one saga to its end: the machine's commands are answered by the participants, and time is a queue.

Every call takes a millisecond, whatever its retries; timers fire when their time comes, so days pass at once. A nested
saga runs its own machine beside its parent's. The run is over when the saga is, or when only a person can move it on.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from sagas.definition.input import check_input
from sagas.definition.model import Definition, Probe
from sagas.errors import UsageError
from sagas.machine.commands import Call, CancelSaga, CancelTimer, Command, Notify, StartSaga, StartTimer, UndoSaga
from sagas.machine.events import (
    CallEnded,
    CancelRequested,
    Event,
    SagaEnded,
    SignalReceived,
    Started,
    TimerFired,
    UndoRequested,
)
from sagas.machine.machine import Machine
from sagas.simulation.contradictions import contradicted
from sagas.simulation.participants import Participants, attempts
from sagas.simulation.run import Outside, Run
from sagas.simulation.samples import made_up_results
from sagas.simulation.script import Script, at

START = 1_767_225_600.0
"""1 January 2026, 00:00 UTC: every simulated run begins here, so that it can be repeated exactly."""

CALL = 0.001
MAX_EVENTS = 200_000
PATIENT = ("deadline", "warn_after")


def simulate(definition: Definition, input: Any, script: Script | None = None, outside: Outside | None = None) -> Run:
    """Run a saga in memory. The same arguments always give the same run.

    Raises UsageError: the input does not fit the saga's schema, or the script names what does not exist.
    """
    script, outside = script or Script(), outside or Outside()
    script.check(definition)
    filled, problems = check_input(definition, input)
    if problems:
        raise UsageError(f"the input of {definition.saga} is not valid: {problems[0]}")
    return _World(definition, filled, script, outside).run()


@dataclass(slots=True)
class _Actor:
    """One machine. ``path`` is empty for the saga itself, ``buy/`` for the saga of its step ``buy``."""

    machine: Machine
    saga_id: str
    path: str
    ended: Callable[[SagaEnded], None] | None = None
    id: str = ""
    made_up: dict[str, Any] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    waits: bool = False
    answered: set[str] = field(default_factory=set)


class _World:
    def __init__(self, definition: Definition, input: Any, script: Script, outside: Outside) -> None:
        self.script, self.outside = script, outside
        self.participants = Participants()
        self.now = START
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.busy = 0
        self.actors: dict[str, _Actor] = {}
        self.told = False
        self.notifications: list[dict[str, Any]] = []
        self.root = self._actor(definition, input, f"{definition.saga}-simulated", "")

    def run(self) -> Run:
        self._feed(self.root, Started(self.now))
        for _ in range(MAX_EVENTS):
            if self._over() or not self.queue:
                break
            self.now, _, happen = heapq.heappop(self.queue)
            happen()
        self.participants.arrive()
        story = self.root.machine.story(self.now)
        parked = [
            {**row, "step": actor.path + row["step"]}
            for actor in self.actors.values()
            for row in actor.machine.story(self.now)["parked"]
        ]
        state = "PARKED" if parked and not self.root.machine.finished else story["state"]
        ends = {actor.path: actor.machine.story(self.now) for actor in self.actors.values()}
        residue = [*map(dict, story["residue"]), *contradicted(ends, self.participants)]
        return Run(state, self.participants.undone, residue, story, parked, self.notifications)

    def _over(self) -> bool:
        if self.busy:
            return False
        if self.root.machine.finished or self.root.machine.state == "PARKED":
            return True
        stuck = any(actor.machine.state == "PARKED" for actor in self.actors.values())
        return stuck and all(timer in PATIENT for actor in self.actors.values() for timer in actor.timers)

    # --- machines ----------------------------------------------------------------------------------------------

    def _actor(self, definition: Definition, input: Any, saga_id: str, path: str) -> _Actor:
        machine = Machine(_bare_probes(definition), input, saga_id, variables=self.outside.variables)
        actor = _Actor(machine, saga_id, path, made_up=made_up_results(definition, self.outside.schemas))
        actor.waits = any(step.do.uses == "wait" for step in definition.steps)
        self.actors[saga_id] = actor
        return actor

    def _feed(self, actor: _Actor, event: Event) -> None:
        if actor.machine.finished and not isinstance(event, UndoRequested):
            return
        for command in actor.machine.next(event):
            self._carry_out(actor, command)
        if actor.waits:
            self._answer_waits(actor)
        if actor.machine.finished and actor.ended is not None:
            ended, actor.ended = actor.ended, None
            story = actor.machine.story(self.now)
            ended(SagaEnded(actor.id, story["state"], self.now, story))

    def _carry_out(self, actor: _Actor, command: Command) -> None:
        match command:
            case Call():
                begin = command.op == "do"
                self._later(self._delay(actor, command.entry, begin=begin), lambda: self._call_ends(actor, command))
            case StartSaga():
                self._start(actor, command)
            case CancelSaga():
                child = self.actors.get(command.saga_id)
                if child is not None:
                    self._feed(child, CancelRequested(self.now, "parent", message=command.message))
            case UndoSaga():
                self._undo(actor, command)
            case StartTimer():
                self._start_timer(actor, command)
            case CancelTimer():
                actor.timers.pop(command.id, None)
            case Notify() if actor is self.root:
                given = None if command.call is None else dict(command.call.arguments)
                told = {"id": command.id, "when": command.moment, "uses": command.uses, "with": given}
                self.notifications.append({**told, "problem": command.problem})
            case _:
                pass  # Record and Finish tell other people what the machine itself can be asked

    def _later(self, seconds: float, happen: Callable[[], None]) -> None:
        self.busy += 1

        def happens() -> None:
            self.busy -= 1
            happen()

        heapq.heappush(self.queue, (self.now + seconds, next(self.numbers), happens))

    def _start_timer(self, actor: _Actor, command: StartTimer) -> None:
        number = next(self.numbers)
        actor.timers[command.id] = number

        def fires() -> None:
            if actor.timers.get(command.id) == number:
                del actor.timers[command.id]
                self._feed(actor, TimerFired(command.id, self.now))

        heapq.heappush(self.queue, (self.now + command.seconds, number, fires))

    def _delay(self, actor: _Actor, entry: str, *, begin: bool) -> float:
        """How long something takes. The cancel and the deadline of the script come while it is in flight."""
        if begin and not self.told and at(self.script.cancel_at, actor.path, entry):
            self.told = True
            self._later(CALL / 2, lambda: self._feed(self.root, CancelRequested(self.now, message="simulated")))
        if begin and not self.told and at(self.script.deadline_at, actor.path, entry):
            self.told = True
            limit = self.root.machine.definition.deadline
            if limit is not None:
                return max(CALL, START + limit + CALL - self.now)
        return CALL

    # --- answers -----------------------------------------------------------------------------------------------

    def _call_ends(self, actor: _Actor, call: Call) -> None:
        machine = actor.machine
        suffix = {"undo": "/undo", "confirm": "/confirm"}.get(call.op, "")
        asked = 0
        if call.op not in ("seal", "probe") and not (call.guard is not None and call.guard.mode == "mark"):
            asked = actor.asked.get(call.entry + suffix, 0)
            actor.asked[call.entry + suffix] = asked + 1
        endless = machine.phase == "committed"
        word = self.script.word(actor.path, call.entry, suffix, asked, endless=endless)
        given, result = self.script.result(actor.path, call.entry)
        result = result if given else actor.made_up.get(call.step)
        outcome = self.participants.answer(machine.definition, actor.path, actor.saga_id, call, word, result)
        step = machine.definition.step(call.step)
        if call.op == "do" and word == "late" and step.probe is not None and not step.do.guarded:
            # `settle` promises that no attempt arrives later than that, and a probe relies on it.
            arrives = (self.now + step.settle / 2, next(self.numbers))
            heapq.heappush(self.queue, (*arrives, lambda: self.participants.arrive(actor.saga_id, call.entry)))
        made = attempts(word, call) if outcome.kind != "late" else 1
        self._feed(actor, CallEnded(call.id, outcome, self.now, made))

    def _answer_waits(self, actor: _Actor) -> None:
        """Somebody answers every wait for a signal at once, unless the script says that nobody does."""
        snapshot = actor.machine.snapshot()
        entries = {entry["id"]: entry for step in snapshot["steps"] for entry in step.get("entries", ())}
        for flight in snapshot["flights"]:
            name = (entries[flight["entry"]].get("arguments") or {}).get("signal")
            if flight["kind"] != "wait" or flight["entry"] in actor.answered:
                continue
            actor.answered.add(flight["entry"])
            delay = self._delay(actor, flight["entry"], begin=True)
            word = self.script.word(actor.path, flight["entry"], "", 0, endless=False)
            if name is None or word in ("failed", "unknown", "late"):
                continue
            reject = f"{name} is refused" if word == "rejected" else None
            event = SignalReceived(str(name), self.now + delay, self.script.signals.get(str(name)), "simulated", reject)
            self._later(delay, lambda event=event: self._feed(actor, event))

    # --- nested sagas ------------------------------------------------------------------------------------------

    def _start(self, actor: _Actor, command: StartSaga) -> None:
        word = self.script.word(actor.path, command.entry, "", 0, endless=False)
        given, result = self.script.result(actor.path, command.entry)
        definition = self.outside.definitions.get(command.saga)
        delay = self._delay(actor, command.entry, begin=True)

        def ends(ended: SagaEnded) -> None:
            self._later(max(0.0, delay - CALL), lambda: self._feed(actor, ended))

        def answers(state: Any, story: dict[str, Any] | None) -> None:
            self._later(delay, lambda: self._feed(actor, SagaEnded(command.id, state, self.now, story)))

        if word in ("rejected", "failed"):
            reason = {"kind": word, "type": word.capitalize(), "message": f"{command.saga} ends {word}", "details": {}}
            answers("COMPENSATED", {"reason": reason})
        elif word == "unknown":
            answers("TERMINATED", None)
        elif given:
            answers("COMPLETED", {"output": result})
        elif definition is None:
            answers("REFUSED", {"reason": {"message": f"there is no valid saga {command.saga}"}})
        else:
            filled, problems = check_input(definition, command.input)
            if problems and self.script.invented:
                answers("COMPLETED", {"output": actor.made_up.get(command.entry.partition("#")[0])})
                return
            if problems:
                sentence = f"the input of {command.saga} is not valid: {problems[0]}"
                answers("REFUSED", {"reason": {"message": sentence}})
                return
            child = self._actor(definition, filled, command.saga_id, f"{actor.path}{command.entry}/")
            child.ended, child.id = ends, command.id
            self._feed(child, Started(self.now))

    def _undo(self, actor: _Actor, command: UndoSaga) -> None:
        word = self.script.word(actor.path, command.entry, "/undo", 0, endless=False)
        child = self.actors.get(command.saga_id)

        def ends(ended: SagaEnded) -> None:
            if ended.state == "COMPENSATED":
                self.participants.undone.append(actor.path + command.entry)
            self._later(CALL, lambda: self._feed(actor, ended))

        if word != "done" or (child is not None and not child.machine.can_undo):
            ends(SagaEnded(command.id, "REFUSED", self.now))
        elif child is None:
            ends(SagaEnded(command.id, "COMPENSATED", self.now))
        else:
            # As `saga undo` does: from the stored snapshot of the finished machine.
            child.machine = Machine.restore(json.loads(json.dumps(child.machine.snapshot())))
            child.ended, child.id = ends, command.id
            self._feed(child, UndoRequested(self.now, command.message, "simulated"))


def _bare_probes(definition: Definition) -> Definition:
    """Probes say themselves whether the effect is there: what a participant's response would look like nobody knows
    here. One without `done`, or without `absent`, cannot say that."""
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
