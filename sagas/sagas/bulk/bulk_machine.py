"""The machine of a bulk workflow: many machines whose equal calls are performed together.

Sans-IO, as :class:`sagas.machine.machine.Machine` is: events in, commands out, always the same for the same events.
A saga never waits for another one, except within a chunk. What cannot be shared, a saga does in a workflow of its own:
it leaves with the snapshot of its machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sagas.bulk.batchable import may_wait, why_no_member, why_not_callable
from sagas.bulk.happy_path import WHOLE_SAGA_TIMERS, HappyPath, HappyPathSaga, why_not_on_happy_path
from sagas.bulk.held_chunks import HeldChunks, chunk_key
from sagas.bulk.member import Member, PendingCall, end_of_call, pending_call
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition
from sagas.expressions.limits import WorkMeter
from sagas.machine.cancel import CancelResponse
from sagas.machine.machine import Machine
from sagas.machine.task_budget import PAUSE
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
    RecordState,
    Started,
    StartTimer,
    TimerFired,
)
from sagas.protocol.origin import Origin
from sagas.protocol.outcomes import Failure, Outcome, refused_value
from sagas.protocol.saga_view import SagaView
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, size_problem

MAX_ARGUMENTS_BYTES = 1024 * 1024
"""Bytes of the arguments of one chunk, as JSON."""

MAX_CHUNK_ATTEMPTS = 5
"""Attempts of a chunk whose worker dies or hangs; then its sagas go on alone, so that one cannot block the others."""


@dataclass(frozen=True, slots=True)
class ChunkCall:
    """One call of a chunk. ``earlier_attempts``: those of the same call that have ended.

    ``origin``: that of its saga, for the guard to store with the effect.
    """

    saga_id: str
    call: Call
    earlier_attempts: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class PerformChunk:
    """Perform equal calls of several sagas in one transaction; ended by :meth:`BulkMachine.chunk_ended`, or by
    :meth:`BulkMachine.chunk_lost` after ``max_attempts``."""

    id: int
    calls: tuple[ChunkCall, ...]

    @property
    def max_attempts(self) -> int:
        """The number of attempts that the chunk may have: each counts as an attempt of every call in it."""
        remaining = min(call.call.retry.max_attempts - call.earlier_attempts for call in self.calls)
        return max(1, min(remaining, MAX_CHUNK_ATTEMPTS))


@dataclass(frozen=True, slots=True)
class Wake:
    """Call :meth:`BulkMachine.woken` after ``seconds``; replaces an earlier Wake."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Detach:
    """Give each of these sagas a workflow of its own; ended by :meth:`BulkMachine.detached`."""

    sagas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """Write the final states to the ledger; ended by :meth:`BulkMachine.recorded`."""

    sagas: tuple[str, ...]


BulkCommand = PerformChunk | Wake | Detach | Record


@dataclass(frozen=True, slots=True)
class NewSaga:
    """A saga to start. ``generation``: see :class:`Machine`."""

    id: str
    input: Any
    labels: Mapping[str, str]
    generation: int = 1


class BulkMachine:
    """The sagas of one bulk workflow. ``chunk_size`` limits the calls of a chunk.

    ``happy_path`` False: each saga has a machine of its own from the beginning. It does the same, and takes longer.
    """

    def __init__(
        self,
        definition: Definition,
        plan: ExecutionPlan,
        variables: Mapping[str, Any],
        *,
        chunk_size: int,
        happy_path: bool = True,
    ) -> None:
        self.definition = definition
        self._plan = plan
        self._variables = variables
        self._chunk_size = chunk_size
        self.members: dict[str, Member] = {}
        self._ready: dict[tuple[Any, ...], list[tuple[Member, PendingCall]]] = {}
        self._chunks: dict[int, tuple[ChunkCall, ...]] = {}
        self._chunk_number = 0
        self._wake_at: float | None = None
        self._detaching: set[str] = set()
        self._refused: set[str] = set()
        self._cancelled_departing: set[str] = set()
        self._recording = False
        self._held = HeldChunks()
        self._work = WorkMeter()
        shares = happy_path and why_not_on_happy_path(definition) is None
        self._path = HappyPath(definition, plan, variables) if shares else None

    # --- events ------------------------------------------------------------------------------------------------

    def start(
        self, sagas: Iterable[NewSaga], at: float, *, alone: Mapping[str, str] | None = None
    ) -> list[BulkCommand]:
        """Start the sagas. ``alone``: those that get a workflow of their own at once, with the reason."""
        why = why_no_member(self.definition)
        for saga in sagas:
            member = self.members[saga.id] = Member(saga.id, self._new_progress(saga), saga.labels)
            reason = (alone or {}).get(saga.id) or why
            if reason is not None:
                member.why_leaving = reason  # its own workflow starts the machine
            else:
                self._apply(member, Started(at=at))
        return self._commands(at)

    def _new_progress(self, saga: NewSaga) -> Machine | HappyPathSaga:
        if self._path is not None:
            return HappyPathSaga(self._path, saga.id, saga.input, saga.generation)
        return Machine(
            self.definition,
            saga.input,
            saga.id,
            generation=saga.generation,
            variables=self._variables,
            plan=self._plan,
        )

    def begin_task(self, work: WorkMeter) -> None:
        """A new workflow task begins. The sagas share its time for expressions; see :meth:`Machine.begin_task`."""
        self._work = work

    def chunk_ended(
        self, id: int, outcomes: Sequence[Outcome | None], at: float, attempt: int = 1
    ) -> list[BulkCommand]:
        """The outcome of each call of a chunk, in order; None if it was not attempted, because time ran out.

        ``attempt``: the number of the chunk's attempt with these outcomes. An earlier one may have had its effects.
        """
        calls = self._chunks.pop(id)
        held = self._held.chunk_ended(calls[0].call, outcomes, at)
        for item, outcome in zip(calls, outcomes, strict=True):
            member, pending = self.members[item.saga_id], self._awaited(id, item)
            if pending is None:
                continue
            member.effect_recorded |= pending.call.op == "do" and outcome is not None and outcome.kind == "done"
            if outcome is None or held:
                pending.chunk = None
                pending.count_lost(attempt - 1)
                pending.due_at = None
                if pending.cancelled:
                    self._end_cancelled(member, pending, at)
                    continue
                self._perform_again(member, pending)
                continue
            verdict = member.attempt_ended(pending, outcome, at)
            if isinstance(verdict, CallEnded):
                del member.calls[item.call.id]
                self._apply(member, verdict)
            elif isinstance(verdict, str):
                self._leave(member, verdict)
            elif member.is_active:
                member.retries[item.call.id] = at + verdict
        return self._commands(at)

    def chunk_lost(self, id: int, outcome: Outcome, at: float, attempts: int) -> list[BulkCommand]:
        """No attempt of a chunk has answered: ``outcome`` is that of each of its calls. All ``attempts`` count.

        If the last one found no worker for chunks, an earlier one may still have had its effects.
        """
        calls = self._chunks[id]
        kind = "unknown" if outcome.not_started else outcome.kind
        outcome = replace(outcome, kind=kind, not_started=False, attempt=attempts)
        for item in calls:
            if (pending := self._awaited(id, item)) is not None:
                pending.unknown += attempts - 1
        return self.chunk_ended(id, [outcome] * len(calls), at)

    def _awaited(self, chunk: int, item: ChunkCall) -> PendingCall | None:
        """The call of an item of a chunk; None if its saga does not wait for it any more."""
        pending = self.members[item.saga_id].calls.get(item.call.id)
        return pending if pending is not None and pending.chunk == chunk else None

    def woken(self, at: float) -> list[BulkCommand]:
        """The time of a :class:`Wake` has come."""
        self._wake_at = None
        for member in self.members.values():
            for id in [id for id, due in member.retries.items() if due <= at]:
                del member.retries[id]
                self._perform_again(member, member.calls[id])
            for id in [id for id, due in member.timers.items() if due <= at]:
                due = member.timers.get(id)
                # The timer before may have ended this one, or started it again.
                if due is not None and due <= at:
                    del member.timers[id]
                    self._apply(member, TimerFired(id, at))
        return self._commands(at)

    def detach(self, saga_id: str, why: str, at: float, *, cancel: CancelRequested | None = None) -> list[BulkCommand]:
        """Let a saga leave, if it is still here. Raises KeyError for an id that is not a member's.

        ``cancel``: it is cancelled first; afterwards, in its own workflow, it could end before the cancel arrives.
        """
        member = self.members[saga_id]
        if (
            cancel is not None
            and member.is_active
            and member.leave_happy_path().cancel_response() in ("accepted", "recorded")
        ):
            self._apply(member, cancel)
        self._leave(member, why)
        return self._commands(at)

    def cancel(self, event: CancelRequested, saga_ids: Iterable[str] | None = None) -> list[BulkCommand]:
        """Cancel those of the sagas (None: of all) that have not ended; those past their commit point go on.

        One whose state is on its way to its own workflow cannot be cancelled here: see :meth:`due_cancels`.
        """
        for id in self.members if saga_ids is None else saga_ids:
            if self._may_be_cancelled(id):
                self._apply(self.members[id], event)
        if saga_ids is None:
            departing = self._detaching | self._refused
            self._cancelled_departing |= {id for id in departing if self.members[id].progress.started_at is not None}
        return self._commands(event.at)

    def due_cancels(self, saga_ids: Iterable[str]) -> list[str]:
        """Return those of the sagas, which have workflows of their own now, that have to be cancelled there;
        once each.
        """
        due = [id for id in saga_ids if id in self._cancelled_departing]
        self._cancelled_departing.difference_update(due)
        return due

    def cancel_responses(self, saga_ids: Iterable[str]) -> dict[str, CancelResponse]:
        """Return what a cancel means for each of the sagas that are here, and have not ended."""
        return {
            id: self.members[id].leave_happy_path().cancel_response() for id in saga_ids if self._may_be_cancelled(id)
        }

    def _may_be_cancelled(self, id: str) -> bool:
        member = self.members.get(id)
        if member is None or member.finish is not None or member.has_left or id in self._detaching | self._refused:
            return False
        return member.progress.started_at is not None

    def detach_all(self, why: str, at: float) -> list[BulkCommand]:
        """Let every saga leave that has not ended."""
        for member in self.members.values():
            self._leave(member, why)
        return self._commands(at)

    def detached(self, sagas: Iterable[str], at: float, *, refused: Iterable[str] = ()) -> list[BulkCommand]:
        """Take notice that sagas have got their own workflows; those in ``refused`` leave later, each by itself."""
        self._refused |= set(refused)
        for id in sagas:
            self.members[id].has_left = True
        self._refused = {id for id in self._refused if not self.members[id].has_left}
        self._detaching = {id for id in self._detaching if not self.members[id].has_left} - self._refused
        return self._commands(at)

    def recorded(self, sagas: Iterable[str], at: float) -> list[BulkCommand]:
        """The final states of these sagas are in the ledger."""
        self._recording = False
        for id in sagas:
            self.members[id].recorded = True
        return self._commands(at)

    # --- what can be seen --------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Return whether every saga has left, or its end is recorded."""
        return all(member.has_left or member.recorded for member in self.members.values())

    def is_settled(self, saga_id: str) -> bool:
        """Return whether a saga has left, or its end is recorded. Raises KeyError if the id is not that of a member."""
        member = self.members[saga_id]
        return member.has_left or member.recorded

    def counts(self) -> dict[str, int]:
        """The number of sagas in each state; DETACHED are those with a workflow of their own."""
        counts: dict[str, int] = {}
        for member in self.members.values():
            state = "DETACHED" if member.has_left else member.state
            counts[state] = counts.get(state, 0) + 1
        return counts

    def held(self) -> dict[str, int]:
        """The number of sagas that wait for the end of each pause, by its order."""
        return self._held.counts(self.members.values())

    def view(self, saga_id: str) -> SagaView:
        """The view of one saga. Raises KeyError for an id that is not a member's."""
        member = self.members[saga_id]
        view, pause = member.leave_happy_path().view(), self._held.pause_of(member)
        return view if pause is None else replace(view, paused=pause)

    # --- one saga ----------------------------------------------------------------------------------------------

    def _apply(self, member: Member, event: MachineEvent) -> None:
        for command in member.next(event, self._work):
            self._execute(member, command, event.at)
        if member.is_active and not (member.calls or member.retries or self._waits_shortly(member)):
            self._leave(member, "it waits for something other than a shared call")

    def _waits_shortly(self, member: Member) -> bool:
        return any(id not in WHOLE_SAGA_TIMERS for id in member.timers)

    def _execute(self, member: Member, command: Command, at: float) -> None:
        match command:
            case Finish():
                member.finish = command
                member.timers.clear()
                member.retries.clear()
            case CancelTimer():
                member.timers.pop(command.id, None)
            case CancelCall():
                self._cancel(member, command.id, at)
            case Call():
                if (reason := why_not_callable(command)) is not None:
                    self._leave(member, reason)
                elif member.why_leaving is None:
                    self._start_call(member, pending_call(member, command, at), at)
            case StartTimer():
                waits = command.id not in WHOLE_SAGA_TIMERS
                if not member.is_active:
                    if command.id == PAUSE:
                        member.timers[PAUSE] = at + command.seconds
                elif waits and not may_wait(self.definition, command):
                    self._leave(member, command.summary or "it waits")
                else:
                    member.timers[command.id] = at + command.seconds
            case RecordState():
                if command.state == "PARKED":
                    self._leave(member, "it is parked")
            case _:
                self._leave(member, "it needs a workflow of its own")

    def _start_call(self, member: Member, pending: PendingCall, at: float) -> None:
        call = pending.call
        if pending.size <= MAX_PAYLOAD_BYTES:
            member.calls[call.id] = pending
            self._perform_again(member, pending)
            return
        message = size_problem(f"the arguments of {call.action}", pending.size)
        failed = Outcome("failed", failure=refused_value(message), attempt=1, retryable=False)
        self._apply(member, CallEnded(call.id, failed, at, 0))

    def _cancel(self, member: Member, id: str, at: float) -> None:
        """Do not start a call, or do not repeat it; one that is performed ends by itself. A read is not awaited."""
        pending = member.calls.get(id)
        if pending is None:
            return
        pending.cancelled = True
        if not pending.performed or pending.call.reads:
            self._end_cancelled(member, pending, at)

    def _end_cancelled(self, member: Member, pending: PendingCall, at: float) -> None:
        id = pending.call.id
        del member.calls[id]
        member.retries.pop(id, None)
        self._withdraw(pending)
        if pending.performed:
            pending.count_lost(1)
            unknown = Outcome("unknown", failure=Failure("Cancelled", "the attempt was cancelled"))
            end = end_of_call(pending, unknown, at)
        elif pending.attempts == 0:
            failure = Failure("Cancelled", "it was cancelled before it started")
            end = CallEnded(id, Outcome("failed", failure=failure, attempt=1, retryable=False), at, 0)
        else:
            unknown = Outcome("unknown", failure=Failure("Cancelled", "it was cancelled between its attempts"))
            end = end_of_call(pending, pending.last or unknown, at)
        self._apply(member, end)

    def _leave(self, member: Member, why: str) -> None:
        if not member.is_active:
            return
        member.why_leaving = why
        # The machine finishes what it was doing; everything else is in its snapshot.
        member.timers = {id: due for id, due in member.timers.items() if id == PAUSE}
        member.retries.clear()
        for pending in member.calls.values():
            self._withdraw(pending)

    def _count_attempts(self, member: Member, at: float) -> None:
        """Let the machine know of attempts that its next workflow cannot see: one of them may have had its effect, and
        the retry policy counts them."""
        for pending in member.calls.values():
            if pending.attempts:
                made = AttemptsMade(
                    pending.call.id, pending.attempts, at, pending.due_at, pending.unsure, pending.uncharged
                )
                self._apply(member, made)

    def _perform_again(self, member: Member, pending: PendingCall) -> None:
        if member.is_active:
            self._ready.setdefault(chunk_key(pending.call), []).append((member, pending))

    def _withdraw(self, pending: PendingCall) -> None:
        waiting = self._ready.get(chunk_key(pending.call))
        if waiting is not None:
            waiting[:] = [entry for entry in waiting if entry[1] is not pending]

    # --- commands ----------------------------------------------------------------------------------------------

    def _commands(self, at: float) -> list[BulkCommand]:
        commands: list[BulkCommand] = list(self._make_chunks(at))
        leaving = tuple(id for id, member in self.members.items() if member.may_leave and id not in self._refused)
        if leaving and not self._detaching:
            self._detaching = set(leaving)
            for id in leaving:
                self._count_attempts(self.members[id], at)
            commands.append(Detach(leaving))
        ended = tuple(
            member.id
            for member in self.members.values()
            if member.finish is not None and not member.recorded and not member.has_left
        )
        if ended and not self._recording and not any(map(self._is_awaited, self._chunks)):
            self._recording = True
            commands.append(Record(ended))
        dues = [due for member in self.members.values() for due in member.due_times]
        due = min((*dues, *self._held.due_times(self._ready)), default=None)
        if due is not None and (self._wake_at is None or due < self._wake_at):
            self._wake_at = due
            commands.append(Wake(max(0.0, due - at)))
        return commands

    def _is_awaited(self, chunk: int) -> bool:
        return any(self._awaited(chunk, item) is not None for item in self._chunks[chunk])

    def _make_chunks(self, at: float) -> Iterator[PerformChunk]:
        ready, self._ready = self._ready, {}
        for key, all_waiting in ready.items():
            waiting, held = self._held.admit(key, all_waiting, at)
            if held:
                self._ready[key] = list(held)
            calls: list[ChunkCall] = []
            size = 0
            for member, pending in waiting:
                if calls and (len(calls) == self._chunk_size or size + pending.size > MAX_ARGUMENTS_BYTES):
                    yield self._chunk(calls)
                    calls, size = [], 0
                calls.append(ChunkCall(member.id, pending.call, pending.attempts, pending.origin))
                size += pending.size
            if calls:
                yield self._chunk(calls)

    def _chunk(self, calls: Sequence[ChunkCall]) -> PerformChunk:
        self._chunk_number += 1
        self._chunks[self._chunk_number] = tuple(calls)
        for item in calls:
            self.members[item.saga_id].calls[item.call.id].chunk = self._chunk_number
        return PerformChunk(self._chunk_number, tuple(calls))
