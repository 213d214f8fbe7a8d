"""The oracle: observes all inputs and outputs of a machine, not its internals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sagas.definition.model import Definition, StepDefinition
from sagas.definition.snapshot import from_snapshot
from sagas.protocol.messages import (
    AttemptsMade,
    Call,
    CallEnded,
    CancelCall,
    CancelRequested,
    CancelSaga,
    Command,
    DecisionMade,
    Finish,
    MachineEvent,
    SagaEnded,
    SignalReceived,
    StartSaga,
    StartTimer,
    TimerFired,
    UndoRequested,
    UndoSaga,
)
from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine_properties.environment.effects import Effect, EffectLog
from tests.unit.engine.machine_properties.environment.guard_model import DECISIONS
from tests.unit.engine.machine_properties.inputs import definition_faults
from tests.unit.engine.machine_properties.inputs.strategies import DEADLINE
from tests.unit.engine.machine_properties.oracle.ledger import Ledger, Violation, operation_of
from tests.unit.engine.machine_properties.rules import (
    command_rules,
    definition_rules,
    final_rules,
    notify_rules,
    savepoint_rules,
    state_rules,
    wait_rules,
)

LEADS_BACK = {"rejected", "failed", "unknown", "late"}


class Oracle:
    """Gets each event before the machine, and the machine's commands after it. Raises Violation."""

    def __init__(self, definition: Definition, saga_id: str, log: EffectLog, input: Mapping[str, Any]) -> None:
        self.ledger = Ledger(definition, saga_id, log, input)
        self.deadline_timers: set[str] = set()
        self.asked: dict[str, Call] = {}

    def effect(self, effect: Effect) -> None:
        """An effect was committed just now."""
        state_rules.check_effect(self.ledger, effect)

    # --- before the machine gets the event ----------------------------------------------------------------------

    def before(self, event: MachineEvent) -> None:
        ledger = self.ledger
        ledger.now = event.at
        match event:
            case CallEnded():
                self._call_ended(event)
            case AttemptsMade():
                name = operation_of(ledger.calls[event.id])
                attempts = ledger.attempts.get(name, 0)
                ledger.attempts[name] = None if attempts is None else attempts + event.attempts
            case SagaEnded():
                started = ledger.sagas.pop(event.id)
                if isinstance(started, StartSaga) and event.state != "REFUSED":
                    ledger.sent[started.saga_id] = {"name": started.saga, "input": started.input}
                if event.state != "COMPLETED" and isinstance(started, StartSaga):
                    # A nested saga that did not complete was either rejected or failed, for its parent.
                    ledger.causes += ["rejected", "failed", "unknown", "terminated"]
                if event.state == "RESIDUE" and event.view is not None:
                    ledger.child_residue += [{**row.to_json(), "entry": started.entry} for row in event.view.residue]
            case CancelRequested() if not ledger.committed:
                ledger.causes.append(event.kind)
                ledger.stop_ordered = True
            case TimerFired() if event.id in self.deadline_timers and not ledger.committed:
                ledger.causes.append("deadline")
                ledger.stop_ordered = True
            case TimerFired():
                # A `wait` that ran out, or a probe that gave up, may lead backward.
                ledger.causes += sorted(LEADS_BACK)
            case SignalReceived():
                wait_rules.received(ledger, event)
                if event.reject is not None:
                    ledger.causes.append("rejected")
            case DecisionMade():
                self._decided(event)
                if event.decision == "skip":
                    ledger.skipped.add((event.step, ledger.op_of(event.step)))
            case UndoRequested():
                ledger.undo_requested = True
            case _:
                pass

    def _decided(self, event: DecisionMade) -> None:
        ledger = self.ledger
        wait_rules.decided(ledger, event)
        ledger.decisions.append(event)
        if event.decision == "retry" and event.step != "output":
            ledger.retried.add((event.step, ledger.op_of(event.step)))
        if event.definition is not None:
            ledger.adopt(from_snapshot(event.definition))
        if event.arguments is not None or event.definition is not None:
            self._corrected(event)

    def _corrected(self, event: DecisionMade) -> None:
        """The latest correction applies: the arguments that it brings, else those of its definition."""
        ledger = self.ledger
        parked = any(p["step"] == event.step for p in ledger.story["parked"])
        op = ledger.op_of(event.step)
        if not parked and ledger.story["phase"] == "backward" and ledger.entry(event.step)["state"] == "UNKNOWN":
            # It is invisible from outside whether the seal in flight belongs to the undo.
            if event.arguments is not None:
                ledger.maybe_given[event.step] = event.arguments
            elif (earlier := ledger.withdraw(event.step, op)) is not None:
                ledger.maybe_given[event.step] = earlier
            return
        if event.arguments is None:
            if (earlier := ledger.withdraw(event.step, op)) is not None:
                ledger.withdrawn[event.step, op] = earlier
            return
        ledger.withdrawn.pop((event.step, op), None)
        ledger.given[event.step, op] = event.arguments
        if op == "undo":
            ledger.given_for[event.step, op] = ledger.entry(event.step)["compensation"]["uses"]

    def _call_ended(self, event: CallEnded) -> None:
        ledger = self.ledger
        call = ledger.calls.pop(event.id)
        ledger.cancelling.discard(event.id)
        name = operation_of(call)
        self._listen(call, event)
        if call.action in DECISIONS:
            return
        ledger.received.setdefault(name, []).append(event.outcome)
        attempts = ledger.attempts.get(name, 0)
        ledger.attempts[name] = None if attempts is None or event.attempts is None else attempts + event.attempts
        if call.op in ("do", "seal", "probe") and event.outcome.kind in LEADS_BACK:
            ledger.causes.append(event.outcome.kind)
        elif call.op == "seal" and event.outcome.marker in ("elsewhere", "confirmed"):
            ledger.causes.append("late")

    def _listen(self, call: Call, event: CallEnded) -> None:
        """Record the fate of the key of a forward call: done, or possibly made by an attempt that never reported."""
        ledger, outcome = self.ledger, event.outcome
        step = ledger.step(call.entry)
        if call.op == "probe":
            since = ledger.uncertain.get(call.key)
            if self._says_absent(step, outcome):
                ledger.absent.add(call.key)
            seals = step.probe is not None and step.probe.operation.seals
            if self._says_absent(step, outcome) and since is not None and (seals or event.at >= since + step.settle):
                del ledger.uncertain[call.key]
            return
        if call.op != "seal" and call.action not in DECISIONS:
            ledger.received.setdefault(call.key, []).append(outcome)
        if call.op == "do" and call.action not in DECISIONS and event.attempts != 0:
            ledger.sent[call.key] = call.arguments
        if call.op == "do":
            ledger.absent.discard(call.key)
        if call.op == "do" and outcome.kind == "unknown":
            ledger.uncertain[call.key] = event.at

    @staticmethod
    def _says_absent(step: StepDefinition, outcome: Outcome) -> bool:
        """True if the author of the probe would read the answer as absent."""
        if step.probe is None or not definition_faults.understood(step.probe):
            return False
        if step.probe.done is None:
            return outcome.marker == "absent"
        gone = isinstance(outcome.result, Mapping) and outcome.result.get("status") == "gone"
        return gone and step.probe.absent is not None

    # --- after it has answered ----------------------------------------------------------------------------------

    def after(self, commands: Sequence[Command], story: Mapping[str, Any], finished: bool) -> None:
        ledger = self.ledger
        before, ledger.story = ledger.story, story
        wait_rules.finished(ledger, before)
        if not ledger.committed and (story["phase"] == "committed" or story["committed_at"] is not None):
            state_rules.check_commit(ledger)
            ledger.committed = True
        if story["phase"] == "backward" and before and before["phase"] != "backward":
            state_rules.check_turn(ledger)
        savepoint_rules.check(ledger, before)
        for parked in story["parked"]:  # perhaps without a call: its arguments could not be evaluated
            ledger.asked_at.setdefault((parked["step"], parked["op"]), ledger.now)
        for at, command in enumerate(commands):
            self._command(command, list(commands[at + 1 :]))
        state_rules.check_story(ledger, before, finished)
        definition_rules.check_story(ledger)
        wait_rules.check(ledger, before)
        notify_rules.check(ledger, before, commands)

    def _command(self, command: Command, more: list[Any]) -> None:
        ledger = self.ledger
        match command:
            case Call():
                taken_back = any(isinstance(c, CancelCall) and c.id == command.id for c in more)
                if not taken_back and not self._asked_before(command):
                    command_rules.check_call(ledger, command)
                    if command.action not in DECISIONS:
                        definition_rules.check_call(ledger, command)
                ledger.calls[command.id] = command
                ledger.asked_at.setdefault((command.entry, command.op), ledger.now)
                if command.op == "do":
                    ledger.arguments[command.entry] = command.arguments
            case StartTimer():
                if command.seconds == DEADLINE:
                    self.deadline_timers.add(command.id)
            case StartSaga():
                if not any(isinstance(c, CancelSaga) and c.id == command.id for c in more):
                    command_rules.check_child(ledger, command)
                    definition_rules.check_child(ledger, command)
                ledger.sagas[command.id] = command
            case UndoSaga():
                command_rules.check_child_undo(ledger, command)
                ledger.sagas[command.id] = command
            case Finish():
                state_rules.check_finish(ledger, command, more)
            case _:
                pass

    def _asked_before(self, call: Call) -> bool:
        """True if the call is only reissued in a new run: it was allowed the first time, and has to be the same."""
        before = self.asked.get(call.id)
        if before is not None and (before.key, before.op, before.arguments) != (call.key, call.op, call.arguments):
            raise Violation("snapshot", f"{call.id} became another call in the new run")
        return before is not None

    def continued(self, commands: Sequence[Command], story: Mapping[str, Any]) -> None:
        """Continued as a new run: the reissued commands replace all work in flight."""
        self.asked = dict(self.ledger.calls)
        self.ledger.calls.clear()
        self.ledger.sagas.clear()
        self.after(commands, story, finished=False)
        self.asked.clear()

    def end(self) -> None:
        """The saga is over and no late attempt can come any more."""
        final_rules.check_end(self.ledger)
