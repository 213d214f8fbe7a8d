"""The preview of an operator's decision: the commands that would follow it, and what would remain, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagas.protocol.payloads import SKIP_RESTORE
from sagas.protocol.saga_view import ResidueView, SagaView
from sagas.text.shortening import and_more

if TYPE_CHECKING:
    from sagas.machine.machine import Machine
    from sagas.protocol.messages import DecisionMade


def consequences(machine: Machine, decision: DecisionMade) -> list[str]:
    """The next commands of the machine after an accepted decision, and the residue that it leaves, in words."""
    from sagas.machine.calls import SEAL
    from sagas.protocol.messages import Call, CallEnded, Finish, StartSaga, StartTimer, UndoSaga
    from sagas.protocol.outcomes import Outcome

    before, words = machine.view(), list[str]()
    notes = [] if (note := _correction_note(machine, before, decision)) is None else [note]
    row_names, row_count = machine.rows_left(decision.step)
    commands = list(machine.next(decision))
    while commands:
        match command := commands.pop(0):
            case Call(action=action) if action == SKIP_RESTORE:
                words.append(_left_rows(decision.step, row_names, row_count))
            case Call(action=action, id=id) if action == SEAL and decision.decision == "skip":
                words.append(f"seal {command.entry}: unless it has happened already, it never will")
                sealed = Outcome.done(marker="sealed")
                commands += machine.next(CallEnded(id=id, outcome=sealed, at=decision.at, attempts=1))
            case Call():
                words.append(f"{command.op} {command.entry}: call {command.action}")
            case StartSaga():
                words.append(f"start the nested saga {command.saga_id}")
            case UndoSaga():
                words.append(f"undo the nested saga {command.saga_id}")
            case StartTimer():
                words.append(f"wait {command.seconds:g} s: {command.summary or command.id}")
            case Finish():
                words.append(f"the saga ends {command.state}")
    return words + [_remaining(row) for row in machine.view().residue[len(before.residue) :]] + notes


def _correction_note(machine: Machine, view: SagaView, decision: DecisionMade) -> str | None:
    """The operations that will not follow the new arguments of a step."""
    from sagas.machine.corrections import note

    row = next((row for row in view.steps if row.id == decision.step), None)
    if row is None or decision.arguments is None:
        return None
    later = [operation for operation in (row.compensation, row.confirmation) if operation is not None]
    if any(operation.state != "PENDING" for operation in later):
        return None  # the decision is about one of them
    return next((note(step) for step in machine.definition.steps if step.id == row.step), None)


def _remaining(row: ResidueView) -> str:
    what = "stays" if row.kind == "effect_stays" else "is missing"
    where = "".join([f" in {row.system}" if row.system else "", f", key {row.key}" if row.key else ""])
    by_hand = f"; by hand: {row.command[:_SHOWN_COMMAND]}" if row.command else ""
    return f"the effect of {row.step}{where}, {what}: the saga will end RESIDUE{by_hand}"


_SHOWN_COMMAND = 300


def _left_rows(step: str, names: list[str], count: int) -> str:
    """The consequence of skipping an automatic undo."""
    which = f": {', '.join(names)}{and_more(count - len(names))}" if names else ""
    return f"undo {step}: its rows stay as they are now{which}; the saga will end RESIDUE and list them"
