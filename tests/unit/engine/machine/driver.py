"""Drives one machine: answers calls by a script, and advances time to its timers.

``answers`` gives per call id (or, where that is missing, per action) how successive calls end: an Outcome, its kind
(``done``, ``rejected``, ``failed``, ``unknown`` …) or a list of them of which the last one repeats. Everything else is
done. Calls named in ``hold`` stay in flight until :meth:`MachineDriver.end`. The seal of the guard answers from what
happened unless the test scripts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from sagas.definition.model import Compensation, Definition, Operation, Probe, Retry, StepDefinition
from sagas.machine.machine import Machine
from sagas.protocol.messages import (
    AcquireLocks,
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
    Notify,
    RecordState,
    Redeliver,
    ReleaseLocks,
    RollBackSaga,
    RunWasReset,
    SagaEnded,
    SignalReceived,
    Started,
    StartSaga,
    StartTimer,
    TimerFired,
    UndoSaga,
)
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.saga_view import SagaView
from sagas.text.exact_json import decode_json, encode_json

START = 1_700_000_000.0


def outcome(word: Any, attempt: int | None = 1) -> Outcome:
    """An Outcome from its kind."""
    if isinstance(word, Outcome):
        return word
    match word:
        case "done":
            return Outcome.done({"ok": True}, attempt=attempt)
        case "rejected":
            return Outcome("rejected", failure=Failure("Rejected", "no"), attempt=attempt, retryable=False)
        case "failed":
            return Outcome("failed", failure=Failure("ValueError", "broken"), attempt=attempt)
        case "definition":
            return Outcome("failed", failure=Failure("definition", "bad"), attempt=attempt, retryable=False)
        case "unknown":
            return Outcome("unknown", failure=Failure("Timeout", "no answer"), attempt=None)
        case "infrastructure":
            return Outcome("failed", failure=Failure("Infrastructure", "gone"), attempt=attempt, infrastructure=True)
        case "late":
            return Outcome("late", failure=Failure("AlreadyCompensated", "late"), retryable=False)
        case "not_started":
            return Outcome("failed", failure=Failure("NotFoundError", "nobody"), not_started=True)
        case "sealed" | "nothing_to_undo" | "confirmed" | "elsewhere" | "unknown_effect":
            return Outcome.done(None, marker=word)
        case "absent":
            return Outcome.done({"probe": "absent"}, marker="absent")
        case "unsure":
            return Outcome.done({"probe": "unknown"})
        case "found":
            return Outcome.done({"probe": "done", "result": {"found": True}})
    raise ValueError(word)


class MachineDriver:
    """Drives one machine. ``log`` holds the commands: call ids, and sagas by the id of their step."""

    def __init__(
        self,
        definition: Definition,
        input: Any = None,
        answers: Mapping[str, Any] | None = None,
        *,
        hold: Iterable[str] = (),
        saga_id: str = "s1",
        restore: bool = False,
        **kwargs: Any,
    ) -> None:
        self.machine = Machine(definition, input or {}, saga_id, **kwargs)
        self.now = START
        self.answers = dict(answers or {})
        self.hold = set(hold)
        self.asked: dict[str, int] = {}
        self.calls: list[Call] = []
        self.expected: set[tuple[str, str]] = set()
        self.expected_of: Definition | None = None
        self.log: list[str] = []
        self.cancelled: list[str] = []
        self.records: list[RecordState] = []
        self.finishes: list[Finish] = []
        self.notified: list[Notify] = []
        self.redelivered: list[Redeliver] = []
        self.lock_requests: list[AcquireLocks] = []
        self.released: list[ReleaseLocks] = []
        self.flights: dict[str, Call | StartSaga | RollBackSaga | UndoSaga] = {}
        self.timers: dict[str, float] = {}
        self.restore = restore

    # --- running -----------------------------------------------------------------------------------------------

    def start(self) -> MachineDriver:
        return self.feed(Started(self.now))

    def run(self, until: float | None = None, steps: int = 2000) -> Self:
        """Start, and let timers fire until the saga is over or parked, or only what is held is left."""
        if self.machine.view().started_at is None:
            self.start()
        for _ in range(steps):
            if self.machine.finished or not self.timers:
                return self
            id = min(self.timers, key=lambda timer: (self.timers[timer], timer))
            if until is not None and self.timers[id] > START + until:
                return self
            if until is None and self.machine.state == "PARKED":
                return self
            self.fire(id)
        return self

    def feed(self, event: MachineEvent) -> MachineDriver:
        if self.restore:
            self.machine = Machine.restore(decode_json(encode_json(self.machine.snapshot())))
        self._expect()
        commands = self.machine.next(event)
        if isinstance(event, RunWasReset):
            self.expected_of = None  # the machine learns what the runs before have done
            self._expect()
        self._carry_out(commands)
        return self

    def _require_expected(self, call: Call) -> None:
        is_engine = call.action.startswith(("saga.", "sql.")) or call.op not in ("do", "probe", "undo", "confirm")
        if not is_engine and self.machine.definition == self.expected_of:  # an operator may have corrected it
            assert (call.step, call.action) in self.expected, f"{call.id} calls {call.action}, which was not expected"

    def _expect(self) -> None:
        """Every later call must be one that the saga may still make now."""
        calls = {(call.step, call.operation.uses) for call in self.machine.remaining_calls()}
        definition = self.machine.definition
        self.expected = calls if self.expected_of != definition else self.expected & calls
        self.expected_of = definition

    def _carry_out(self, commands: list[Command]) -> None:
        answers: list[MachineEvent] = []
        for command in commands:
            match command:
                case Call() | StartSaga() | RollBackSaga() | UndoSaga():
                    assert command.id not in self.flights, f"{command.id} is in flight already"
                    self.flights[command.id] = command
                    self.log.append(command.id)
                    if isinstance(command, Call):
                        self.calls.append(command)
                        self._require_expected(command)
                    if command.id not in self.hold:
                        answers.append(self.answer(command))
                case CancelCall() | CancelSaga():
                    self.cancelled.append(command.id)
                case StartTimer():
                    assert command.id not in self.timers
                    self.timers[command.id] = self.now + command.seconds
                case CancelTimer():
                    del self.timers[command.id]
                case RecordState():
                    self.records.append(command)
                case Notify():
                    self.notified.append(command)
                case Redeliver():
                    self.redelivered.append(command)
                case AcquireLocks():
                    self.lock_requests.append(command)
                case ReleaseLocks():
                    self.released.append(command)
                case Finish():
                    self.finishes.append(command)
        for event in answers:
            self.flights.pop(event.id)  # pyright: ignore[reportAttributeAccessIssue]
            self.feed(event)

    def answer(self, command: Call | StartSaga | RollBackSaga | UndoSaga) -> MachineEvent:
        """How a command ends, by the script."""
        name = command.action if isinstance(command, Call) else "saga"
        scripted = self.answers.get(command.id, self.answers.get(name))
        if isinstance(scripted, list):
            at = self.asked.get(command.id, 0)
            scripted = scripted[min(at, len(scripted) - 1)]
        self.asked[command.id] = self.asked.get(command.id, 0) + 1
        if not isinstance(command, Call):
            state, story = scripted or ("COMPENSATED" if isinstance(command, UndoSaga) else "COMPLETED", None)
            return SagaEnded(command.id, state, self.now, child_view(state, story))
        if scripted is None:
            guarded_mark = command.guard is not None and command.guard.mode == "mark"
            scripted = "sealed" if command.op == "seal" else "elsewhere" if guarded_mark else "done"
        return self._ended(command, scripted)

    def _ended(self, call: Call, scripted: Any) -> CallEnded:
        if isinstance(scripted, tuple):  # the kind and the number of attempts
            word, attempts = scripted
            return CallEnded(call.id, outcome(word, attempts), self.now, attempts)
        output = outcome(scripted)
        retried = not call.at_most_once and output.retryable and output.kind in ("failed", "unknown")
        attempts = 0 if output.not_started else call.retry.max_attempts if retried else 1
        if output.attempt is not None and output.kind == "failed" and retried:
            output = outcome(scripted, attempts)
        return CallEnded(call.id, output, self.now, attempts)

    # --- what happens ------------------------------------------------------------------------------------------

    def fire(self, id: str) -> MachineDriver:
        """Move time to this timer and let it fire."""
        self.now = max(self.now, self.timers.pop(id))
        return self.feed(TimerFired(id, self.now))

    def wait(self, seconds: float) -> MachineDriver:
        """Let time pass, with every timer on the way."""
        end = self.now + seconds
        while self.timers and min(self.timers.values()) <= end:
            self.fire(min(self.timers, key=lambda timer: (self.timers[timer], timer)))
        self.now = end
        return self

    def end(self, id: str, word: Any = "done") -> MachineDriver:
        """A held call ends."""
        call = self.flights.pop(id)
        assert isinstance(call, Call)
        self.hold.discard(id)
        return self.feed(self._ended(call, word))

    def saga_ends(self, id: str, state: Any, story: Mapping[str, Any] | None = None) -> MachineDriver:
        self.flights.pop(id)
        return self.feed(SagaEnded(id, state, self.now, child_view(state, story)))

    def pause(self) -> MachineDriver:
        self.machine.note_pause("pause", self.now, "mia", "")
        return self

    def resume(self) -> MachineDriver:
        self._carry_out(self.machine.note_pause("resume", self.now, "mia", ""))
        return self

    def cancel(self) -> MachineDriver:
        return self.feed(CancelRequested(self.now, who="kim"))

    def signal(self, name: str, data: Any = None, reject: str | None = None) -> MachineDriver:
        return self.feed(SignalReceived(name, self.now, data, "kim", reject))

    def decide(self, step: str, decision: Any, **more: Any) -> MachineDriver:
        """An operator decision, which must be acceptable."""
        event = self.decision(step, decision, **more)
        assert self.machine.check_decision(event) is None
        return self.feed(event)

    def refusal(self, step: str, decision: Any, **more: Any) -> str | None:
        return self.machine.check_decision(self.decision(step, decision, **more))

    def decision(self, step: str, decision: Any, **more: Any) -> DecisionMade:
        return DecisionMade(step, decision, more.pop("reason", "because"), more.pop("who", "kim"), self.now, **more)

    # --- what can be seen --------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self.machine.state

    @property
    def view(self) -> SagaView:
        return self.machine.view()

    @property
    def story(self) -> dict[str, Any]:
        return self.view.to_json()

    def row(self, id: str) -> dict[str, Any]:
        return next(row for row in self.story["steps"] if row["id"] == id)

    def states(self) -> dict[str, str]:
        return {row["id"]: row["state"] for row in self.story["steps"]}

    def call(self, id: str) -> Call:
        """The last call with this id."""
        return [call for call in self.calls if call.id == id][-1]

    @property
    def undone(self) -> list[str]:
        return [call.entry for call in self.calls if call.op == "undo"]


# --- short definitions -----------------------------------------------------------------------------------------------


def op(uses: str, with_: Any = None, *, on: str | None = None, **more: Any) -> Operation:
    """An operation; ``on`` is the connection of its guard."""
    more.setdefault("retry", Retry(max_attempts=3))
    return Operation(uses, with_, connection=on, **more)


def undo(
    *uses: str | Operation, confirmed: Operation | None = None, on: str | None = "shop", always: bool = False
) -> Compensation:
    return Compensation(
        tuple(operation if isinstance(operation, Operation) else op(operation, on=on) for operation in uses),
        confirmed,
        always,
    )


def step(
    id: str, *, kind: Any = "compensatable", on: str | None = "shop", uses: str | None = None, **more: Any
) -> StepDefinition:
    """A step called ``id``: guarded by ``shop`` by default, undone by ``un<id>``."""
    operation = {name: more.pop(name) for name in ("retry", "idempotent", "timeout", "local") if name in more}
    do = more.pop("do", None) or op(uses or f"act.{id}", more.pop("with_", {}), on=on, **operation)
    if kind == "compensatable" and "compensate" not in more:
        more["compensate"] = undo(f"un.{id}", on=on)
    return StepDefinition(id, more.pop("name", id), kind, do, **more)


def saga(*steps: StepDefinition, line: bool = True, **more: Any) -> Definition:
    """A definition; without ``needs`` of their own the steps form a line."""
    linked: list[StepDefinition] = []
    for step_definition in steps:
        if line and linked and not step_definition.needs:
            values = {name: getattr(step_definition, name) for name in StepDefinition.__dataclass_fields__}
            step_definition = StepDefinition(**{**values, "needs": (linked[-1].id,)})
        linked.append(step_definition)
    return Definition("test", tuple(linked), **more)


def probe(uses: str = "ask", *, seals: bool = False, **more: Any) -> Probe:
    return Probe(op(uses, {}, seals=seals), **more)


def child_view(state: str, story: Mapping[str, Any] | None) -> SagaView | None:
    """The view of a nested saga, of which a test gives only what matters to it."""
    return None if story is None else SagaView.from_json({"id": "child", "saga": "child", "state": state, **story})
