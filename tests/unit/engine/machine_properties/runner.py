"""Drives one machine through one run: work in flight may complete in any order, and the worker may crash any time.

The choices (an order, a fault, a cancel …) come from :class:`Scenario`; this module only keeps the rules of the
platform: an event for each command, timers in order, a new run that starts from the stored state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.definition.model import Definition, StepDefinition
from sagas.machine.machine import Machine
from sagas.protocol.messages import (
    Call,
    CallEnded,
    CancelCall,
    CancelRequested,
    CancelSaga,
    CancelTimer,
    Command,
    DecisionMade,
    Finish,
    MachineEvent,
    SignalReceived,
    Started,
    StartSaga,
    StartTimer,
    TimerFired,
    UndoRequested,
    UndoSaga,
)
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine_properties.environment import operators
from tests.unit.engine.machine_properties.environment.children import ChildFlight, end_child
from tests.unit.engine.machine_properties.environment.effects import Effect
from tests.unit.engine.machine_properties.environment.environment import Environment, Flight
from tests.unit.engine.machine_properties.inputs.scenario import Scenario
from tests.unit.engine.machine_properties.inputs.strategies import BEGINNING
from tests.unit.engine.machine_properties.oracle import coverage
from tests.unit.engine.machine_properties.oracle.ledger import Violation
from tests.unit.engine.machine_properties.oracle.oracle import Oracle
from tests.unit.engine.machine_properties.rules import notify_rules, reissue_rules, remaining_rules

SAGA_ID = "random-1"
TIMEOUT = 400
"""Events after which an operator decides about everything that is still retried."""

LIMIT = 1_500
"""Events after which a saga counts as never ending."""


@dataclass
class _Segment:
    """One run on the platform: how its machine is created, and its events and commands."""

    make: Callable[[], Machine]
    events: list[MachineEvent]
    answers: list[list[Command]]


class Runner:
    """One saga from its start to its end."""

    def __init__(
        self,
        definition: Definition,
        input: Mapping[str, Any],
        scenario: Scenario,
        *,
        generation: int = 1,
        repaired: Definition | None = None,
        saga_id: str = SAGA_ID,
    ) -> None:
        """``repaired`` is the definition for `saga resolve --definition`."""
        self.scenario = scenario
        self.repaired = repaired or definition
        self.definition = definition
        self.now = BEGINNING
        self.env = Environment(definition, scenario.fate, scenario.chance)
        self.oracle = Oracle(definition, saga_id, self.env.log, input)
        self.env.on_effect = self.oracle.effect
        make = lambda: Machine(definition, input, saga_id, generation=generation)  # noqa: E731
        self.machine = make()
        self.segment = _Segment(make, [], [])
        self.calls: dict[str, Flight] = {}
        self.children: dict[str, ChildFlight] = {}
        self.timers: dict[str, float] = {}
        self.finish: Finish | None = None
        self.continuing = False
        self.events = 0
        self.seen: set[str] = set()
        self.cancelled = False

    @property
    def story(self) -> Mapping[str, Any]:
        return self.oracle.ledger.story

    # --- a whole run --------------------------------------------------------------------------------------------

    def run(self) -> Mapping[str, Any]:
        """Start, run to the end, check it, and perhaps undo it afterwards. Returns the last view."""
        self.feed(Started(self.now))
        return self.go_on()

    def go_on(self) -> Mapping[str, Any]:
        """Run to the end, check it, and perhaps undo it afterwards. Returns the last view."""
        self._until_finished()
        if self.story["state"] == "COMPLETED" and self.story["can_undo"] and self.scenario.undo_later():
            self._undo()
        return self.story

    def _until_finished(self) -> None:
        while self.finish is None:
            if self.events > LIMIT:
                raise Violation("liveness", f"no end after {LIMIT} events: {self.story['state']}")
            self._one()
        self.check_end()

    def check_end(self) -> None:
        """The saga has ended: whatever still arrives changes nothing."""
        while self.env.zombies:
            self.env.commit_zombie(0)
        self._check_replay()
        self.oracle.end()

    def _undo(self) -> None:
        pivot = self.definition.pivot
        early = pivot is not None and self.oracle.ledger.is_cut_off(pivot.id)
        if (pivot is not None and not early) or self.definition.recovery == "forward":
            raise Violation("rule 15", "a saga that nothing can undo says that it can be undone")
        self.seen.add("undone later")
        state = decode_json(encode_json(self.machine.snapshot()))
        self._restart(lambda: Machine.restore(decode_json(encode_json(state))))
        self.finish = None
        self.feed(UndoRequested(self.now, "the customer changed their mind", "ann"))
        self._until_finished()

    # --- one thing happens --------------------------------------------------------------------------------------

    def _one(self) -> None:
        scenario = self.scenario
        self.now += 1_000.0 if scenario.long_pause() else 0.25
        self.env.expire(self.now)
        if self.continuing and not self.calls and not self.children:
            self._continue_as_new()
            return
        if not self.continuing and scenario.continue_now():
            self.continuing = True
        if scenario.cancel_now(self.events):
            self._cancel()
            return
        early = self._signals()
        if early and scenario.early_signal():
            self._signal(early[scenario.next(early)])
            return
        due = [id for id in self.timers if id in self.oracle.deadline_timers]
        if due and scenario.deadline_now(self.events):
            self._fire(due[0])
            return
        options = self._options()
        if not options:
            raise Violation("liveness", f"{self.story['state']}, nothing is in flight, nobody is asked")
        chosen = scenario.next(list(options))
        list(options.values())[chosen]()

    def _options(self) -> dict[str, Callable[[], None]]:
        """All that may happen next, the calmest first."""
        options: dict[str, Callable[[], None]] = {}
        for id, flight in self.calls.items():
            options[f"call {id}"] = lambda id=id, flight=flight: self._advance(id, flight)
        for id, child in self.children.items():
            if not child.parked:
                options[f"child {id}"] = lambda id=id, child=child: self._end_child(id, child)
        for name in self._waits():
            options[f"signal {name}"] = lambda name=name: self._signal(name)
        if self.story["parked"] and (self.story["state"] == "PARKED" or self.scenario.chance(10)):
            options["decide"] = lambda: self._decide(self.story["parked"])
        short_timeouts = self.events > TIMEOUT or self.scenario.chance(20)
        stuck = operators.stuck(self.oracle.ledger, self.machine, set(self.calls), self.now) if short_timeouts else []
        if stuck:
            options["decide early"] = lambda: self._decide(stuck)
        if self.timers:
            soonest = min(self.timers, key=lambda id: self.timers[id])
            options[f"timer {soonest}"] = lambda: self._fire(soonest)
        for id, child in self.children.items():
            if child.parked:
                options[f"resume {id}"] = lambda id=id, child=child: self._end_child(id, child)
        for index in range(len(self.env.zombies)):
            options[f"zombie {index}"] = lambda index=index: self.env.commit_zombie(index)
        return options

    def _advance(self, id: str, flight: Flight) -> None:
        ended = self.env.advance(flight, self.now)
        if ended is not None:
            del self.calls[id]
            self.feed(ended)

    def _end_child(self, id: str, flight: ChildFlight) -> None:
        fate = self.scenario.child(flight)
        if fate == "parked" and not flight.parked:
            flight.parked = True  # it waits for its own decision; the parent is not notified and waits
            self.seen.add("undo of a child parked" if isinstance(flight.command, UndoSaga) else "child parked")
            return
        del self.children[id]
        fate = "completed" if fate == "parked" else fate
        generation = self.oracle.ledger.entry(flight.command.entry)["generation"]
        self.feed(end_child(self.env, flight, fate, generation, self.now))

    def _signals(self, steps: Sequence[StepDefinition] | None = None) -> list[str]:
        """The names of the signals that these steps (all of them) wait for."""
        waits = [s.do.with_ or {} for s in (self.definition.steps if steps is None else steps) if s.do.uses == "wait"]
        return [with_["signal"] for with_ in waits if "signal" in with_]

    def _waits(self) -> list[str]:
        """Signals that a running `wait` needs."""
        ledger = self.oracle.ledger
        running = {e["step"] for e in self.story["steps"] if e["state"] == "RUNNING"}
        return self._signals([s for s in self.definition.steps if s.id in running and (s.id, "do") not in ledger.given])

    def _signal(self, name: str) -> None:
        refusal = "no" if self.scenario.reject() else None
        self.feed(SignalReceived(name, self.now, data={"n": self.events}, who=f"ann {self.events}", reject=refusal))

    def _fire(self, id: str) -> None:
        self.now = max(self.now, self.timers.pop(id))
        self.env.expire(self.now)
        self.feed(TimerFired(id, self.now))

    def _cancel(self) -> None:
        answer = self.machine.cancel_response()
        committed = self.oracle.ledger.committed
        self.seen.add(f"cancel {answer}")
        if committed and answer in ("accepted", "recorded"):
            raise Violation("rule 6", f"a cancel past the commit point is answered {answer!r}")
        self.feed(CancelRequested(self.now, who="ann", message="not wanted any more"))
        self.cancelled = True

    def _decide(self, items: Sequence[Mapping[str, Any]]) -> None:
        item = items[self.scenario.next([f"{i['step']} {i['op']}" for i in items])]
        preference, correction = self.scenario.preference(item), self.scenario.correction()
        event = operators.decide(self.oracle.ledger, self.env, item, preference, correction, self.repaired, self.now)
        refusal = self.machine.check_decision(event)
        if refusal is not None:
            raise Violation("decisions", f"{event.decision} is offered for {event.step} and refused: {refusal}")
        self.feed(event)

    def _try_illegal(self) -> None:
        for why, event in operators.illegal(self.oracle.ledger, self.now):
            if self.machine.check_decision(event) is None:
                raise Violation("decisions", f"{event.decision} of {event.step} is accepted, but {why}")

    # --- events in, commands out --------------------------------------------------------------------------------

    def feed(self, event: MachineEvent) -> None:
        """Feed the machine, let the oracle check it, carry out its commands."""
        for command in self.observe(event):
            self._carry_out(command)
        if self.scenario.crash_now():
            self._crash()

    def observe(self, event: MachineEvent) -> list[Command]:
        """Feed the machine, and let the oracle check its commands."""
        self.events += 1
        ledger, before = self.oracle.ledger, self.oracle.ledger.story
        call = ledger.calls.get(event.id) if isinstance(event, CallEnded) else None
        if before:
            self.seen |= coverage.of_event(ledger, call, event)
        self.oracle.before(event)
        remaining = self.machine.remaining_calls()
        answer = list(Machine.next(self.machine, event))
        remaining_rules.check(remaining, event, answer)
        self.segment.events.append(event)
        self.segment.answers.append(answer)
        self.seen |= coverage.of_commands(answer)
        story = self.machine.view().to_json()
        self.oracle.after(answer, story, self.machine.finished)
        self._note_passed(story)
        self.seen |= coverage.of_story(ledger, before, event)
        if isinstance(event, DecisionMade) or self.scenario.chance(5):
            self._try_illegal()
        return answer

    def _note_passed(self, story: Mapping[str, Any]) -> None:
        """A `pass` that can be undone counts as an effect, which has to be undone once."""
        log = self.env.log
        for e in story["steps"]:
            step = self.definition.step(e["step"])
            passed = step.do.uses == "pass" and step.compensate is not None and e["outcome"] == "done"
            if passed and not log.count(e["id"], e["generation"], "do"):
                log.add(Effect(e["id"], e["generation"], "do", "pass"))

    def _carry_out(self, command: Command) -> None:
        match command:
            case Call():
                if not self.continuing:
                    self.calls[command.id] = Flight(command)
            case CancelCall():
                if command.id in self.calls:
                    self.calls[command.id].cancelled = True
            case StartTimer():
                if command.id in self.timers:
                    raise Violation("timers", f"{command.id} is started twice")
                self.timers[command.id] = self.now + command.seconds
            case CancelTimer():
                self.timers.pop(command.id, None)
            case StartSaga() | UndoSaga():
                if not self.continuing:
                    self.children[command.id] = ChildFlight(command)
            case CancelSaga():
                if command.id in self.children:
                    self.children[command.id].cancelled = True
            case Finish():
                self.finish = command
            case _:
                pass

    # --- crashes ------------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        """The worker crashes; the next one has the stored state and the same pending events."""
        self.seen.add("crash")
        state = decode_json(encode_json(self.machine.snapshot()))
        restored = Machine.restore(decode_json(encode_json(state)))
        if decode_json(encode_json(restored.snapshot())) != state:
            raise Violation("snapshot", "restoring and storing again gives another state")
        if restored.view() != self.machine.view():
            raise Violation("snapshot", "the restored machine tells another story")
        if not self.machine.finished:
            again = Machine.restore(decode_json(encode_json(state)))
            reissue_rules.check(again, self.calls, self.children, self.timers, self.now, continuing=self.continuing)
        self.machine = restored

    def _continue_as_new(self) -> None:
        """A new run, which knows nothing but the stored state; commands given meanwhile were never carried out."""
        self.seen.add("continued")
        self._check_replay()
        self.take_over(decode_json(encode_json(self.machine.snapshot())), "continued")

    def take_over(self, state: Mapping[str, Any], event: str) -> None:
        """Go on from a stored state, beginning with the timer ``event``."""
        timers_before = dict(self.timers)
        now = self.now

        def make() -> Machine:
            machine = Machine.restore(decode_json(encode_json(state)))
            machine.reissue(now)
            return machine

        self._restart(lambda: Machine.restore(decode_json(encode_json(state))))
        commands = list(self.machine.reissue(now))
        self.segment.make = make
        for command in commands:
            self._carry_out(command)
        for id, due in self.timers.items():
            if id in timers_before and abs(due - timers_before[id]) > 1.0 and timers_before[id] > self.now:
                raise Violation("timers", f"{id} was due at {timers_before[id]}, and after the restart at {due}")
        self.oracle.continued(commands, self.machine.view().to_json())
        self.feed(TimerFired(event, self.now))

    def _restart(self, make: Callable[[], Machine]) -> None:
        self.machine = make()
        self.segment = _Segment(make, [], [])
        self.calls, self.children, self.timers = {}, {}, {}
        self.continuing = False

    def _check_replay(self) -> None:
        """Check that a replay of the events gives the same commands and the same story, in any other process."""
        fresh = self.segment.make()
        for event, answer in zip(self.segment.events, self.segment.answers, strict=True):
            if list(fresh.next(event)) != answer:
                raise Violation("determinism", f"other commands when {event} is replayed")
        if fresh.view() != self.machine.view():
            raise Violation("determinism", "a replay ends in another story")
        self._check_silence()

    def _check_silence(self) -> None:
        """Without its notifications the saga does exactly the same."""
        silenced = notify_rules.silenced(self.segment.make())
        for event, answer in zip(self.segment.events, self.segment.answers, strict=True):
            if notify_rules.received(silenced.next(event)) != notify_rules.received(answer):
                raise Violation("notify", f"a notification changed what the machine does at {event}")
        views = [notify_rules.without_notifications(machine.view().to_json()) for machine in (silenced, self.machine)]
        if views[0] != views[1]:
            raise Violation("notify", "a notification changed how the saga ends")
