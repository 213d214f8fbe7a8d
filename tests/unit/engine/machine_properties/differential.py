"""A saga executed in a bulk workflow and on its own, in an environment that answers both alike.

How the n-th attempt of an operation ends depends on the seed, the saga and the operation, not on who makes it or when.
The bulk execution records in which order a saga's machine got its events; the single execution keeps this order, with
retries as Temporal makes them. Then both must have shown participants the same calls and tell the same story.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from unittest.mock import patch

from sagas.bulk import bulk_machine
from sagas.bulk.bulk_machine import BulkCommand, BulkMachine, ChunkCall, Detach, NewSaga, PerformChunk, Record, Wake
from sagas.bulk.member import Member, PendingCall
from sagas.bulk.wire_format import decode_chunk, decode_outcomes, encode_chunk, encode_outcomes
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.expressions.limits import WorkMeter
from sagas.machine.machine import Machine
from sagas.machine.snapshot import expand
from sagas.protocol.messages import (
    AttemptsMade,
    Call,
    CallEnded,
    CancelCall,
    CancelRequested,
    CancelTimer,
    Command,
    Finish,
    MachineEvent,
    Started,
    StartSaga,
    StartTimer,
    TimerFired,
    UndoSaga,
)
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import decode_call, encode_call
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.machine_properties.environment.children import ChildFlight, end_child
from tests.unit.engine.machine_properties.environment.environment import CHOICES, Environment, Fate
from tests.unit.engine.machine_properties.environment.guard_model import Row
from tests.unit.engine.machine_properties.inputs.strategies import BEGINNING

LIMIT = 3_000
"""Events after which a bulk workflow counts as endless."""

RETRIED = 400
"""Events after which a saga that is alone is not followed any further."""

UNCERTAIN: tuple[Fate, ...] = ("lost_before", "lost_after", "raised_before", "raised_after")
EXCLUDED: tuple[Fate, ...] = ("not_started", "duplicate", "zombie")
"""What concerns whole chunks, or is made by neither execution in the course of its events."""

NEVER_STARTED = Outcome(
    "failed", failure=Failure("Cancelled", "it was cancelled before it started"), attempt=1, retryable=False
)

EventKind = Literal["start", "attempt", "cancelled", "timer", "cancel", "left"]


@dataclass(frozen=True)
class Recorded:
    """An event of a saga: an ``attempt`` of the call ``id``, the end of one that was ``cancelled`` before its start …

    ``left``: from then on it was on its own.
    """

    kind: EventKind
    id: str
    at: float


class World(Environment):
    """The environment of one saga in one execution."""

    def __init__(self, definition: Definition, saga_id: str, seed: str, percent: int) -> None:
        super().__init__(definition, self._unused, lambda _: False)
        self.saga_id = saga_id
        self._seed, self._percent = seed, percent
        self.made: Counter[str] = Counter()
        self.calls: dict[str, list[str]] = {}
        """What participants got, by operation."""

    def make(self, call: Call, sent: Any, at: float, earlier: int) -> Outcome:
        """Make the next attempt of an operation; ``sent`` is the call as its worker received it."""
        mode = "" if call.guard is None else call.guard.mode
        name = f"{call.op} {mode} {call.action} {call.key}"
        self.made[name] += 1
        source = random.Random(f"{self._seed} {self.saga_id} {name} {self.made[name]}")
        fate: Fate = "ok"
        if source.random() * 100 < self._percent:
            fate = source.choice([choice for choice in CHOICES[call.op] if choice not in EXCLUDED])
        received = replace(sent, saga="", intervals=(), ignores_cancel=False, beats=False, earlier_attempts=earlier)
        shown = json.dumps(without_times(dict(received.arguments)), sort_keys=True)
        self.calls.setdefault(name, []).append(f"{shown} {replace(received, arguments={})}")
        outcome = self.attempt(call, fate, at)
        return replace(outcome, attempt=1) if fate in UNCERTAIN and call.guard is not None else outcome

    def child(self, entry: str) -> Any:
        source = random.Random(f"{self._seed} {self.saga_id} {entry}")
        return source.choice(("completed", "completed", "rejected", "failed"))

    def rows(self) -> dict[str, Any]:
        return {
            name: {key: _without_times(row) for key, row in base.rows.items()} for name, base in self.databases.items()
        }

    def effects(self) -> Counter[str]:
        return Counter(map(str, self.log.effects))

    def _effect(self, call: Call, action: str) -> Any:
        result = super()._effect(call, action)  # without the number, which depends on the order of parallel effects
        return {"id": result["id"]} if isinstance(result, dict) and "id" in result else result

    @staticmethod
    def _unused(call: Call, attempt: int) -> Fate:
        raise AssertionError("the fate is chosen with the attempt")


def _without_times(row: Row) -> tuple[Any, ...]:
    arguments = json.loads(row.arguments) if row.arguments else None
    return row.reason, without_times(arguments), without_times(row.result), row.marker


@dataclass
class Ended:
    """How an execution ended, without times."""

    story: Any
    calls: Mapping[str, Sequence[str]]
    rows: Mapping[str, Any]
    effects: Counter[str]
    events: Sequence[str]


def ended(machine: Machine, world: World, events: Sequence[str], at: float) -> Ended:
    return Ended(without_times(machine.view().to_json()), world.calls, world.rows(), world.effects(), events)


_TIMES = {"at", "since", "started_at", "ended_at", "committed_at", "deadline_at", "next_attempt_at", "deadline"}


def without_times(story: Any) -> Any:
    if isinstance(story, Mapping):
        return {name: without_times(value) for name, value in story.items() if name not in _TIMES}
    return [without_times(row) for row in story] if isinstance(story, list | tuple) else story


# --- a saga on its own -----------------------------------------------------------------------------------------------


class Alone:
    """One saga in a workflow of its own: first in a recorded order, then always what is first by its name."""

    def __init__(self, machine: Machine, world: World) -> None:
        self.machine, self.world = machine, world
        self.now = BEGINNING
        self.calls: dict[str, Call] = {}
        self.attempts: dict[str, int] = {}
        self.made: dict[str, int] = {}
        """The attempts of its calls that were made before it was alone."""
        self.children: dict[str, StartSaga | UndoSaga] = {}
        self.timers: dict[str, float] = {}
        self.cancelled: set[str] = set()
        self.events: list[str] = []
        self.finished = False

    def follow(self, recorded: Sequence[Recorded]) -> None:
        """Feed the machine in this order. Raises KeyError for a call or timer that is not there in this execution."""
        for event in recorded:
            self.now = event.at
            match event.kind:
                case "start":
                    self.feed(Started(event.at))
                case "attempt":
                    self.attempt(event.id)
                case "cancelled":
                    assert event.id in self.cancelled, f"{event.id} is not cancelled here"
                    del self.calls[event.id]
                    self.feed(CallEnded(event.id, NEVER_STARTED, event.at, 0))
                case "timer":
                    del self.timers[event.id]
                    self.feed(TimerFired(event.id, event.at))
                case "cancel":
                    self.feed(CancelRequested(at=event.at, message=event.id))

    def go_on(self) -> None:
        """To the end, or until only a person can go on, or while something is retried without limit."""
        for _ in range(RETRIED):
            if self.finished:
                return
            self.now += 0.25
            if ready := sorted(self.calls):
                id = ready[0]
                if id in self.cancelled and not (self.attempts.get(id) or self.made.get(id)):
                    del self.calls[id]
                    self.feed(CallEnded(id, NEVER_STARTED, self.now, 0))
                else:
                    self.attempt(id)
            elif children := sorted(self.children):
                self._end_child(self.children.pop(children[0]))
            elif self.timers and self.machine.state != "PARKED":
                id = min(self.timers, key=lambda timer: (round(self.timers[timer]), timer))
                self.now = max(self.now, self.timers.pop(id))
                self.feed(TimerFired(id, self.now))
            else:
                return

    def _end_child(self, command: StartSaga | UndoSaga) -> None:
        fate = "failed" if command.id in self.cancelled else self.world.child(command.entry)
        if isinstance(command, UndoSaga):
            fate = "completed"
        flight = ChildFlight(command, cancelled=command.id in self.cancelled)
        self.feed(end_child(self.world, flight, fate, 1, self.now))

    def attempt(self, id: str) -> None:
        """One attempt, as Temporal makes it: the workflow learns the outcome of the last one."""
        call = self.calls[id]
        number = self.attempts[id] = self.attempts.get(id, 0) + 1
        sent = decode_call(call.action, decode_json(encode_json(encode_call(call, self.world.saga_id))))
        outcome = self.world.make(call, sent, self.now, call.earlier_attempts + number - 1)
        if outcome.attempt is not None:
            outcome = replace(outcome, attempt=number if call.local else None)
        limit = 1 if call.at_most_once else call.retry.max_attempts
        again = outcome.kind in ("failed", "unknown") and outcome.retryable and number < limit
        if not again or id in self.cancelled:
            del self.calls[id]
            del self.attempts[id]
            self.feed(CallEnded(id, outcome, self.now, outcome.attempt), made=self.made.pop(id, 0))

    def feed(self, event: MachineEvent, made: int = 0) -> None:
        self.events.append(description(event, made))
        self.take(self.machine.next(event))

    def take(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Call():
                    self.calls[command.id] = command
                    self.cancelled.discard(command.id)
                case StartSaga() | UndoSaga():
                    self.children[command.id] = command
                case StartTimer():
                    self.timers[command.id] = self.now + command.seconds
                case CancelTimer():
                    self.timers.pop(command.id, None)
                case CancelCall():
                    self.cancelled.add(command.id)
                case Finish():
                    self.finished = True
                case _:
                    pass


def description(event: MachineEvent, made: int = 0) -> str:
    """The parts of an event by which a machine decides. ``made``: attempts of the ended call that it knew before."""
    match event:
        case CallEnded():
            out = event.outcome
            counts = [count and count + made for count in (out.attempt, event.attempts)]
            said = (out.kind, out.result, out.marker, out.infrastructure, out.park_reason, *counts)
            return f"{event.id} ended {said} {out.failure and (out.failure.type, out.failure.message)}"
        case TimerFired():
            return f"{event.id} fired"
        case _:
            return type(event).__name__


# --- many sagas in one bulk workflow ---------------------------------------------------------------------------------


@dataclass
class Kept:
    """The record of one member. ``repeats``: a call was cancelled between two of its attempts.

    ``between_attempts``: it has left between two attempts of a call.
    """

    world: World
    events: list[str] = field(default_factory=list)
    order: list[Recorded] = field(default_factory=list)
    repeats: bool = False
    between_attempts: bool = False
    left: Alone | None = None
    why_left: str | None = None


def _record(own: Kept, event: MachineEvent) -> None:
    own.events.append(description(event))
    match event:
        case Started():
            own.order.append(Recorded("start", "", event.at))
        case TimerFired():
            own.order.append(Recorded("timer", event.id, event.at))
        case CancelRequested():
            own.order.append(Recorded("cancel", event.message, event.at))
        case CallEnded() if event.attempts == 0:
            own.order.append(Recorded("cancelled", event.id, event.at))
        case CallEnded():
            was_attempted = own.order[-1].kind == "attempt" and own.order[-1].id == event.id
            own.repeats = own.repeats or not was_attempted  # cancelled between two attempts
        case _:
            pass


class Together:
    """The sagas of one bulk workflow, whose chunks end in an order of ``source``."""

    def __init__(
        self,
        definition: Definition,
        ids: Sequence[str],
        input: Any,
        seed: str,
        percent: int,
        source: random.Random,
        *,
        cancels: bool = False,
    ) -> None:
        """``percent`` of the attempts fail. ``cancels``: all are cancelled while they run."""
        self._source, self._definition = source, definition
        self.now = BEGINNING
        self.kept = {id: Kept(World(definition, id, seed, percent)) for id in ids}
        self.bulk = BulkMachine(definition, ExecutionPlan(definition), {}, chunk_size=source.choice((1, 2, 10)))
        self._sagas = [NewSaga(id, input, {}, 1) for id in ids]
        self._chunks: list[PerformChunk] = []
        self._detaching: Sequence[str] = ()
        self._recording: Sequence[str] = ()
        self._wake_at: float | None = None
        self._cancels = cancels

    def run(self) -> None:
        with patch.object(bulk_machine, "Member", self._recording_member()):
            self._take(self.bulk.start(self._sagas, self.now))
            for number in range(LIMIT):
                if self.bulk.finished:
                    break
                self.now += 0.25
                self.bulk.begin_task(WorkMeter())
                if self._cancels and number == 4:
                    self._take(self.bulk.cancel(CancelRequested(at=self.now, message="not wanted any more")))
                else:
                    self._one()
            else:
                raise AssertionError(f"no end after {LIMIT} events: {self.bulk.counts()}")

    def ended(self, id: str) -> Ended:
        kept, member = self.kept[id], self.bulk.members[id]
        if kept.left is None:
            return ended(member.leave_happy_path(), kept.world, kept.events, self.now)
        return ended(kept.left.machine, kept.world, kept.events + kept.left.events[1:], kept.left.now)

    def _recording_member(self) -> type[Member]:
        kept = self.kept

        class RecordingMember(Member):
            def attempt_ended(self, pending: PendingCall, outcome: Outcome, at: float) -> CallEnded | float | str:
                kept[self.id].order.append(Recorded("attempt", pending.call.id, at))
                return Member.attempt_ended(self, pending, outcome, at)

            def next(self, event: MachineEvent, work: WorkMeter) -> Sequence[Command]:
                if not isinstance(event, AttemptsMade):  # its own workflow goes on with the call
                    _record(kept[self.id], event)
                return Member.next(self, event, work)

        return RecordingMember

    def _one(self) -> None:
        if self._chunks and (self._wake_at is None or self._source.random() < 0.8):
            self._end_chunk(self._chunks.pop(self._source.randrange(len(self._chunks))))
        elif self._detaching:
            self._detach()
        elif self._recording:
            sagas, self._recording = self._recording, ()
            self._take(self.bulk.recorded(sagas, self.now))
        else:
            assert self._wake_at is not None, f"nothing is in flight: {self.bulk.counts()}"
            self.now, self._wake_at = max(self.now, self._wake_at), None
            self._take(self.bulk.woken(self.now))

    def _take(self, commands: Sequence[BulkCommand]) -> None:
        for command in commands:
            match command:
                case PerformChunk():
                    self._chunks.append(command)
                case Wake():
                    self._wake_at = self.now + command.seconds
                case Detach():
                    self._detaching = command.sagas
                case Record():
                    self._recording = command.sagas

    def _end_chunk(self, command: PerformChunk) -> None:
        sent = decode_chunk(decode_json(encode_json(encode_chunk(command.calls, ""))))
        outcomes = [self._attempt(item, decoded) for item, decoded in zip(command.calls, sent, strict=True)]
        result = decode_json(encode_json(encode_outcomes(outcomes, 1)))
        self._take(self.bulk.chunk_ended(command.id, decode_outcomes(result, len(outcomes)), self.now))

    def _attempt(self, item: ChunkCall, sent: Any) -> Outcome:
        sent = replace(sent, origin=None)  # a run of its own adds it when it sends the call
        return self.kept[item.saga_id].world.make(item.call, sent, self.now, sent.earlier_attempts)

    def _detach(self) -> None:
        sagas, self._detaching = self._detaching, ()
        for id in sagas:
            self._leave(id, self.kept[id])
        self._take(self.bulk.detached(sagas, self.now))

    def _leave(self, id: str, kept: Kept) -> None:
        member = self.bulk.members[id]
        machine = member.leave_happy_path()
        state = expand(decode_json(encode_json(machine.compact_snapshot())), to_snapshot(self._definition))
        kept.left = alone = Alone(Machine.restore(state), kept.world)
        kept.why_left = member.why_leaving
        kept.order.append(Recorded("left", "", self.now))
        alone.now = self.now
        if machine.started_at is None:
            alone.feed(Started(self.now))
            kept.order.append(Recorded("start", "", self.now))
            kept.events.append("Started")
        else:
            alone.made = {pending.call.id: pending.attempts for pending in member.calls.values() if pending.attempts}
            kept.between_attempts = bool(alone.made)
            alone.take(alone.machine.reissue(self.now))
            alone.events.append("")
        alone.go_on()
