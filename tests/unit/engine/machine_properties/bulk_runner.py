"""Drives a bulk machine: several sagas whose chunks end in any order, are lost, repeated, or partly not attempted.

Each saga has an environment and an oracle of its own, so it must keep every rule, whatever happens to its neighbours.
One that leaves goes on alone, from the snapshot of its machine, under the same oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from sagas.bulk import bulk_machine
from sagas.bulk.bulk_machine import BulkCommand, BulkMachine, ChunkCall, Detach, NewSaga, PerformChunk, Record, Wake
from sagas.bulk.happy_path import HappyPathSaga
from sagas.bulk.wire_format import decode_chunk, decode_outcomes, encode_chunk, encode_outcomes
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, Operation, StepDefinition
from sagas.definition.snapshot import to_snapshot
from sagas.expressions.limits import WorkMeter
from sagas.machine.machine import Machine
from sagas.machine.snapshot import expand
from sagas.protocol.messages import Command, Finish, MachineEvent, Started
from sagas.protocol.origin import encode_origin
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import decode_call, encode_call
from sagas.text.exact_json import canonical_json, decode_json, encode_json
from tests.unit.engine.machine_properties.inputs.choice_sequence import ChoiceSequence
from tests.unit.engine.machine_properties.inputs.scenario import Scenario
from tests.unit.engine.machine_properties.inputs.strategies import BEGINNING, HOME, Case
from tests.unit.engine.machine_properties.oracle.ledger import Violation
from tests.unit.engine.machine_properties.runner import LIMIT, Runner

TIMED_OUT = Outcome("unknown", failure=Failure("Timeout", "no heartbeat in time"))


class Life(Runner):
    """One saga of the bulk machine, and later its own workflow."""

    left = False

    def observe(self, event: MachineEvent) -> list[Command]:
        self.now = max(self.now, event.at)
        self.env.expire(self.now)
        answer = super().observe(event)
        self.finish = next((command for command in answer if isinstance(command, Finish)), self.finish)
        return answer


class TwinMachine:
    """Two bulk machines that get the same events: one with a machine for each saga, which the oracles observe, and one
    whose sagas share the happy path. Both must give the same commands, and have the same states."""

    def __init__(self, definition: Definition, *, chunk_size: int) -> None:
        plan = ExecutionPlan(definition)
        self._observed = BulkMachine(definition, plan, {}, chunk_size=chunk_size, happy_path=False)
        self._sharing = BulkMachine(definition, plan, {}, chunk_size=chunk_size)
        self.shared = 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._observed, name)
        return partial(self._call, name) if callable(attribute) else attribute

    def begin_task(self, work: WorkMeter) -> None:
        self._observed.begin_task(work)
        self._sharing.begin_task(WorkMeter())

    def _call(self, name: str, *args: Any, **more: Any) -> Any:
        answer = getattr(self._observed, name)(*args, **more)
        with patch.object(bulk_machine, "Machine", Machine):  # not one that an oracle observes
            twin = getattr(self._sharing, name)(*args, **more)
        if answer != twin:
            raise Violation("happy path", f"{name}: {twin} instead of {answer}")
        for own, other in zip(self._observed.members.values(), self._sharing.members.values(), strict=True):
            self.shared += isinstance(other.progress, HappyPathSaga) and other.progress.point is not None
            for field in ("state", "started_at", "ended_at", "highest_generation"):
                if getattr(own.progress, field) != getattr(other.progress, field):
                    raise Violation("happy path", f"{own.id}: another {field} after {name}")
            if own.progress.compact_snapshot() != other.progress.compact_snapshot():
                raise Violation("happy path", f"{own.id}: another state after {name}")
        return answer


class BulkRunner:
    """Several sagas of one definition, from their start in one bulk machine to all of their ends."""

    def __init__(self, case: Case, choices: ChoiceSequence, make_scenario: Callable[[int], Scenario]) -> None:
        self.choices = choices
        self.now = BEGINNING
        definition = batchable(case.definition, choices)
        repaired = _repaired(case.repaired, definition)
        self.lives = {
            id: Life(
                definition, case.input, make_scenario(n), generation=case.generation, repaired=repaired, saga_id=id
            )
            for n in range(choices.pick((3, 2, 4, 1)))
            for id in [f"random-{n}"]
        }
        twin = self.twin = TwinMachine(definition, chunk_size=choices.pick((10, 1, 2)))
        self.bulk: BulkMachine = twin  # pyright: ignore[reportAttributeAccessIssue]
        self.sagas = [NewSaga(id, case.input, {}, case.generation) for id in self.lives]
        self.chunks: dict[int, PerformChunk] = {}
        self.detaching: Sequence[str] = ()
        self.recording: Sequence[str] = ()
        self.wake_at: float | None = None
        self.disturbed = choices.pick((10, 50, 0, 50))
        self.uncertain: set[tuple[str, str]] = set()
        self.seen: set[str] = set()

    def run(self) -> None:
        """Start all sagas, and run every one to its end."""
        with self._observing():
            self._take(self.bulk.start(self.sagas, self.now))
        events = 0
        while not self.bulk.finished:
            events += 1
            if events > LIMIT:
                raise Violation("liveness", f"no end after {LIMIT} events: {self.bulk.counts()}")
            self.now += 0.25
            self.bulk.begin_task(WorkMeter())
            self._one()
        for life in self.lives.values():
            if not life.left:
                if life.finish is None or not life.machine.finished:
                    raise Violation("liveness", f"a saga is recorded in the state {life.machine.state}")
                self.seen.add(f"ended here {life.machine.state}")
                life.check_end()
            self.seen |= life.seen
        if self.twin.shared:
            self.seen.add("happy path")

    def _observing(self) -> AbstractContextManager[Any]:
        """Every machine that the bulk machine creates shows its events to the oracle of its saga."""
        lives = self.lives

        class ObservedMachine(Machine):
            def __init__(self, definition: Definition, input: Any, saga_id: str, **more: Any) -> None:
                super().__init__(definition, input, saga_id, **more)
                lives[saga_id].machine = self

            def next(self, event: MachineEvent) -> list[Command]:
                life = lives[self._run.saga_id]
                if life.left:
                    raise Violation("bulk", f"a saga that has left gets {event}")
                return life.observe(event)

        return patch.object(bulk_machine, "Machine", ObservedMachine)

    # --- one thing happens --------------------------------------------------------------------------------------

    def _one(self) -> None:
        staying = [id for id, life in self.lives.items() if not life.left and life.finish is None]
        if staying and self.choices.chance(self.disturbed // 5):
            self.seen.add("somebody acts")
            self._take(self.bulk.detach(self.choices.pick(staying), "somebody acts on it", self.now))
            return
        if self.choices.chance(self.disturbed // 10):
            self.seen.add("all leave")
            self._take(self.bulk.detach_all("the history is long", self.now))
            return
        options: list[Callable[[], None]] = [
            lambda chunk=chunk: self._end_chunk(chunk) for chunk in self.chunks.values()
        ]
        if self.detaching:
            options.append(self._detach)
        if self.recording:
            options.append(self._record)
        if self.wake_at is not None and (not options or self.wake_at <= self.now or self.choices.chance(20)):
            options.append(self._wake)
        if not options:
            raise Violation("liveness", f"nothing is in flight: {self.bulk.counts()}")
        self.choices.pick(options)()

    def _take(self, commands: Sequence[BulkCommand]) -> None:
        for command in commands:
            match command:
                case PerformChunk():
                    self._check_chunk(command)
                    self.chunks[command.id] = command
                case Wake():
                    self.wake_at = self.now + command.seconds
                case Detach():
                    self.detaching = self._alone(self.detaching, command.sagas)
                case Record():
                    self.recording = self._alone(self.recording, command.sagas)

    def _alone(self, before: Sequence[str], sagas: Sequence[str]) -> Sequence[str]:
        if before:
            raise Violation("bulk", "a second activity of this kind, before the first has ended")
        return sagas

    def _check_chunk(self, command: PerformChunk) -> None:
        """A chunk has calls of different sagas, that have not left; on the wire each is the call of a single saga."""
        ids = [item.saga_id for item in command.calls]
        if len({(item.saga_id, item.call.id) for item in command.calls}) != len(ids):
            raise Violation("bulk", "a call is twice in a chunk")
        request = decode_json(encode_json(encode_chunk(command.calls, "random")))
        for item, sent in zip(command.calls, decode_chunk(request), strict=True):
            if self.lives[item.saga_id].left:
                raise Violation("bulk", f"a call of {item.saga_id}, which has left")
            if item.earlier_attempts + command.max_attempts > max(item.call.retry.max_attempts, 1):
                raise Violation("bulk", f"{item.call.id} may be attempted more often than its retry policy says")
            argument = decode_json(encode_json(encode_call(item.call, item.saga_id)))
            alone = decode_call(item.call.action, argument)
            earlier = item.call.earlier_attempts + item.earlier_attempts
            wanted = replace(
                alone,
                saga=sent.saga,
                earlier_attempts=earlier,
                intervals=sent.intervals,
                ignores_cancel=False,
                origin=None if item.origin is None else encode_origin(replace(item.origin, saga="random")),
            )
            if sent != wanted:
                raise Violation("wire", f"{sent} instead of {wanted}")

    def _end_chunk(self, command: PerformChunk) -> None:
        """All attempts that the platform makes of a chunk; each of its transactions commits, or does not."""
        self.now += self.choices.pick((0.1, 3.0, 40.0))
        del self.chunks[command.id]
        lost = self.choices.pick((1, 2, 1, 5)) if self.choices.chance(self.disturbed) else 0
        lost = min(lost, command.max_attempts)
        for _ in range(lost):
            commits = self.choices.pick((False, True))
            self.seen.add("chunk lost after its commit" if commits else "chunk lost")
            for item in command.calls:
                life = self.lives[item.saga_id]
                self.uncertain.add((item.saga_id, item.call.id))
                life.env.attempt(item.call, "lost_after" if commits else "zombie", self.now)
        if lost == command.max_attempts:
            self.seen.add("chunk given up")
            self._take(self.bulk.chunk_lost(command.id, TIMED_OUT, self.now, lost))
            return
        attempt = lost + 1
        answers = [self._attempt(item, attempt) for item in command.calls]
        result = decode_json(encode_json(encode_outcomes(answers, attempt)))
        self._chunk_ended(command.id, result, answers, attempt)

    def _chunk_ended(self, id: int, result: Any, answers: Sequence[Outcome | None], attempt: int) -> None:
        outcomes = decode_outcomes(result, len(answers))
        for answer, outcome in zip(answers, outcomes, strict=True):
            if _facts(answer, attempt) != _facts(outcome, attempt):
                raise Violation("wire", f"{outcome} instead of {answer}")
        self._take(self.bulk.chunk_ended(id, outcomes, self.now, attempt))

    def _attempt(self, item: ChunkCall, attempt: int) -> Outcome | None:
        if self.choices.chance(self.disturbed // 2):
            self.seen.add("time ran out")
            return None
        env = self.lives[item.saga_id].env
        # Although an earlier attempt may have had its effect, or have it later.
        refused = (item.saga_id, item.call.id) in self.uncertain and self.choices.chance(40)
        return env.attempt(item.call, "rejected" if refused else env.fate(item.call, attempt), self.now)

    def _wake(self) -> None:
        assert self.wake_at is not None
        self.now = max(self.now, self.wake_at)
        self.wake_at = None
        self._take(self.bulk.woken(self.now))

    def _record(self) -> None:
        sagas, self.recording = self.recording, ()
        self._take(self.bulk.recorded(sagas, self.now))

    def _detach(self) -> None:
        """Each saga runs to its end in a workflow of its own, before anything else happens here."""
        sagas, self.detaching = self.detaching, ()
        for id in sagas:
            self._leave(id, self.lives[id])
        self._take(self.bulk.detached(sagas, self.now))

    def _leave(self, id: str, life: Life) -> None:
        member = self.bulk.members[id]
        if life.left:
            raise Violation("bulk", f"{id} leaves twice")
        if any(item.saga_id == id for chunk in self.chunks.values() for item in chunk.calls):
            raise Violation("bulk", f"{id} leaves while a call of it is performed")
        self.seen.add(f"leaves: {member.why_leaving}")
        machine = member.leave_happy_path()
        state = expand(decode_json(encode_json(machine.compact_snapshot())), to_snapshot(self.bulk.definition))
        if _as_sent(state) != _as_sent(machine.snapshot()):
            raise Violation("snapshot", "the compact snapshot is another one")
        life.left = True
        if machine.started_at is None:
            life.machine = Machine.restore(state)
            life.feed(Started(self.now))
        else:
            life.calls, life.timers = {}, {}
            life.now = max(life.now, self.now)
            life.take_over(state, "detached")
            for pending in member.calls.values():
                call = pending.call
                again = life.calls.get(call.id)
                if again is None:
                    continue
                if again.call.earlier_attempts != call.earlier_attempts + pending.attempts:
                    raise Violation("earlier attempts", f"{again.call} after {pending}")
        life.go_on()


def _facts(outcome: Outcome | None, attempt: int) -> Any:
    """The parts of an outcome by which the machine decides."""
    if outcome is None:
        return None
    return (
        outcome.kind,
        outcome.result,
        outcome.marker,
        outcome.kind in ("done", "rejected", "late") or outcome.retryable,
        outcome.not_started and attempt == 1,
        outcome.infrastructure,
        outcome.counted,
        outcome.park_reason,
        None if outcome.failure is None else (outcome.failure.type, outcome.failure.message),
    )


# --- definitions whose sagas stay for a while ------------------------------------------------------------------------


EVALUATED = ("require", "pass", "finish")
"""Actions that the machine performs at once, so that a saga stays in its bulk workflow."""


def batchable(definition: Definition, choices: ChoiceSequence) -> Definition:
    """The definition with most steps shareable; without notifications, with which no saga would stay."""
    often, stays = choices.pick((100, 80, 100, 0)), choices.chance(60)
    steps = tuple(_shareable(step, stays) if choices.chance(often) else step for step in definition.steps)
    return replace(definition, steps=steps, notify=())


def _repaired(repaired: Definition, definition: Definition) -> Definition:
    """The repaired definition, with the same steps made shareable."""
    shared = {step.id: step for step in definition.steps}
    steps = [
        _shareable(step, True) if shared[step.id].do.uses in EVALUATED or shared[step.id].do.guarded else step
        for step in repaired.steps
    ]
    return replace(repaired, steps=tuple(steps), notify=())


def _shareable(step: StepDefinition, stays: bool) -> StepDefinition:
    """The step with a guard. ``stays``: one that no guard makes shareable becomes a condition."""
    if step.do.guarded or step.do.uses in EVALUATED:
        return step
    if step.do.uses == "wait" and stays:
        return replace(step, do=replace(step.do, with_={"for": 2.0}))
    if step.kind == "read" or step.do.uses in ("saga", "wait"):
        do = Operation(uses="require", with_={"that": "${{ input.n == 7 }}", "message": "seven"})
        condition = replace(step, kind="read", do=do, compensate=None, confirm=None, probe=None)
        return replace(condition, guarantee="at-least-once") if stays else step
    do = replace(step.do, connection=HOME, local=True, idempotent=True, task_queue=None, heartbeat=None)
    return replace(step, do=do, probe=None, guarantee="guarded")


def _as_sent(value: Any) -> str:
    """The text of a value after it was sent, where a float has become a decimal."""
    return canonical_json(decode_json(encode_json(value)))
