"""The preview of an operator's decision: what would be called, undone and left, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from saga_workers.call_words import call_words
from sagas.presentation.remaining_steps import done_steps, undone_steps
from sagas.presentation.unproven_effects import undecided_steps, unproven_steps, unproven_text
from sagas.presentation.web_ui_text import effect_state
from sagas.protocol.payloads import CLOSE_NESTED, RECORD_RESULT, SKIP_RESTORE
from sagas.protocol.saga_view import ResidueView, SagaView
from sagas.text.shortening import join_names

if TYPE_CHECKING:
    from sagas.machine.machine import Machine
    from sagas.protocol.messages import Call, DecisionMade
    from sagas.protocol.outcomes import Outcome

_MAX_STEPS = 20

_ENDS: Mapping[str, str] = {
    "COMPLETED": "it is done",
    "COMPENSATED": "what it had done is undone",
    "RESIDUE": "some effects stay or are missing",
}


def consequences(machine: Machine, decision: DecisionMade) -> list[str]:
    """The consequences of an accepted decision, in words: the next calls, the steps after these, and what stays."""
    from sagas.protocol.messages import Call, CallEnded, Finish, RollBackSaga, StartSaga, StartTimer, UndoSaga

    before, words = machine.view(), list[str]()
    names = {
        step.id: f"{step.name} ({step.id})" if step.name not in ("", step.id) else step.id for step in before.steps
    }
    notes = machine.decision_notes(decision)
    commands, begun, leaves_rows = list(machine.next(decision)), set[str](), False
    while commands:
        match command := commands.pop(0):
            case Call(action=action) if action in (SKIP_RESTORE, CLOSE_NESTED) and decision.decision == "skip":
                words.append(notes.left_rows)
                begun.add(command.entry)
                leaves_rows = True
            case Call(id=id) if (assumed := _assumed_outcome(command, decision)) is not None:
                words += _record_words(command, decision, names, before)
                commands += machine.next(CallEnded(id=id, outcome=assumed, at=decision.at, attempts=1))
            case Call():
                call = call_words(command.action, notes.mask.value(command.arguments))
                words.append(f"{names.get(command.entry, command.entry)} {_verb(command, decision)}: {call}")
                begun.add(command.entry)
            case StartSaga():
                words.append(f"the nested saga {command.saga_id} is started")
            case RollBackSaga() | UndoSaga():
                words.append(f"the nested saga {command.saga_id} is undone")
            case StartTimer():
                words.append(f"the saga waits {command.seconds:g} s: {command.summary or command.id}")
            case Finish():
                end = _ENDS.get(command.state)
                words.append(f"the saga ends {command.state}" + (f": {end}" if end else ""))
    after = machine.view()
    words += [f"{names.get(id, id)} waits for the signal {signal}" for id, signal in _waits(after) - _waits(before)]
    words += _later_steps(after, begun, names, leaves_rows, _vouched_undo(decision, before, names))
    words = [*_vouched(decision, before, after, names), *words]
    return words + [_remaining(after, row) for row in after.residue[len(before.residue) :]] + list(notes.warnings)


def _vouched(decision: DecisionMade, before: SagaView, after: SagaView, names: Mapping[str, str]) -> Iterator[str]:
    """Sentences about all that rests on the word of a person alone: the effects if it is wrong, and their remedies."""
    denied = decision.step if decision.decision == "compensate" else None  # a call in flight may have to end first
    for step in unproven_steps(after):
        if after.phase == "backward" or (step.id == denied and step.guarantee != "guarded"):
            by = "by this decision it" if step.id == decision.step else "it"
            yield unproven_text(after, step, by=by, name=names.get(step.id))
    if decision.decision == "done" and decision.step in {step.id for step in undecided_steps(before)}:
        name = names.get(decision.step, decision.step)
        yield f"by this decision {name} counts as done: if it has not happened, nothing calls it any more"


def _vouched_undo(decision: DecisionMade, before: SagaView, names: Mapping[str, str]) -> str:
    """A condition: the undo that a person takes as done."""
    is_undo = any(row.step == decision.step and row.op == "undo" for row in before.parked)
    name = names.get(decision.step, decision.step)
    return f" and {name} is undone, as this decision says" if decision.decision == "done" and is_undo else ""


def _verb(call: Call, decision: DecisionMade) -> str:
    is_again = decision.decision == "retry" and call.entry == decision.step
    match call.op:
        case "undo":
            return "will be undone" + (" (tried again)" if is_again else "")
        case "confirm":
            return "will be confirmed" + (" (tried again)" if is_again else "")
        case "probe":
            return "will be looked for"
        case _:
            return "will be tried again" if is_again else "will be called"


def _assumed_outcome(call: Call, decision: DecisionMade) -> Outcome | None:
    """The usual answer to a call of the engine itself, after which the saga goes on; None for any other call."""
    from sagas.machine.calls import MARK_CONFIRM, MARK_UNDO, SEAL
    from sagas.protocol.outcomes import Outcome

    if call.op == "probe" and decision.decision == "compensate" and call.entry == decision.step:
        return Outcome.done({"probe": "unknown"})
    if call.action == SEAL and decision.decision in ("skip", "retry", "compensate"):
        return Outcome.done(marker="sealed")
    if call.action in (MARK_UNDO, MARK_CONFIRM):
        return Outcome.done(marker="elsewhere")
    if call.action == RECORD_RESULT:
        return Outcome.done(decision.result if call.op == "do" else None)
    return None


def _record_words(call: Call, decision: DecisionMade, names: Mapping[str, str], before: SagaView) -> Iterator[str]:
    from sagas.machine.calls import SEAL

    name = names.get(call.entry, call.entry)
    if call.action == SEAL:
        never = "is called again" if decision.decision == "retry" else "never will"
        is_pivot = any(step.id == call.entry and step.compensation is None for step in before.steps)
        if_done = "; if it has, the saga goes forward" if decision.decision == "compensate" and is_pivot else ""
        yield f"{name} is sealed in its database: if it has not happened already, it {never}{if_done}"
    elif call.op == "probe":
        yield f"{name} will be looked for: {call.action}; if it is found, the saga goes forward"
    elif call.action == RECORD_RESULT:
        what = {"undo": "undone", "confirm": "confirmed"}.get(call.op, "done")
        yield f"{name} is recorded as {what} in its database, unless that has another record of it"


def _waits(view: SagaView) -> set[tuple[str, str]]:
    """The entries that wait for a signal, with its name."""
    return {
        (step.id, str(step.arguments["signal"]))
        for step in view.steps
        if step.uses == "wait" and step.state == "RUNNING" and step.arguments and "signal" in step.arguments
    }


def _later_steps(
    view: SagaView, begun: Collection[str], names: Mapping[str, str], leaves_rows: bool, condition: str
) -> Iterator[str]:
    """The steps that come after the next calls if these succeed, and what an undo does not reach."""

    def listed(ids: Collection[str]) -> str:
        return join_names([names.get(id, id) for id in ids], _MAX_STEPS)

    if view.ended_at is not None or view.state in ("COMPLETED", "COMPENSATED", "RESIDUE"):
        return
    parked = {operation.step for operation in view.parked}
    if view.phase != "backward":
        waiting = {step.id for step in view.steps if step.uses == "wait" and step.state == "RUNNING"}
        if later := [id for id in done_steps(view)[1] if id not in {*begun, *parked, *waiting}]:
            yield f"after that, if nothing fails: {listed(later)}"
        return
    undone, remaining = undone_steps(view)
    if later := [id for id in reversed(remaining) if id not in begun and id not in parked]:
        again = "" if view.repeated_from is None else ", and then run again"
        yield f"after that, also undone{again}, in this order: {listed(later)}"
    reached = {*undone, *remaining, *(row.step for row in view.residue)}
    kept = [step.id for step in view.steps if step.state in ("DONE", "CONFIRMED") and step.id not in reached]
    sent = [row.id for row in view.notifications if row.state == "DELIVERED"]
    if view.repeated_from is not None:
        return
    if kept:
        yield f"these have no undo, and stay as they are: {listed(kept)}"
    if sent:
        yield f"not undone: the notifications that were sent ({join_names(sent, _MAX_STEPS)})"
    if not (kept or sent or view.residue or leaves_rows or unproven_steps(view)):
        yield f"if the undos succeed{condition}, nothing that it has done stays"


def _remaining(view: SagaView, row: ResidueView) -> str:
    what = effect_state(view, row)
    where = "".join([f" in {row.system}" if row.system else "", f", key {row.key}" if row.key else ""])
    look = ", if you do not find it" if row.kind == "effect_unclear" else ""
    by_hand = f"; by hand{look}: {row.command}" if row.command else ""
    title = "not undone: " if row.kind == "effect_stays" else ""
    return f"{title}the effect of {row.step}{where}, {what}: the saga will end RESIDUE{by_hand}"
