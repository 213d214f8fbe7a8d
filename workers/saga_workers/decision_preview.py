"""The preview of an operator's decision: the commands that would follow it, and what would remain, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagas.presentation.web_ui_text import effect_state
from sagas.protocol.payloads import CLOSE_NESTED, SKIP_RESTORE
from sagas.protocol.saga_view import ResidueView, SagaView
from sagas.text.exact_json import readable_json
from sagas.text.shortening import shorten_middle

if TYPE_CHECKING:
    from sagas.machine.machine import Machine
    from sagas.protocol.messages import DecisionMade

_MAX_ARGUMENTS = 400
"""Characters of the arguments of a call."""


def consequences(machine: Machine, decision: DecisionMade) -> list[str]:
    """The next commands of the machine after an accepted decision, and the residue that it leaves, in words."""
    from sagas.machine.calls import SEAL
    from sagas.protocol.messages import Call, CallEnded, Finish, RollBackSaga, StartSaga, StartTimer, UndoSaga
    from sagas.protocol.outcomes import Outcome

    before, words = machine.view(), list[str]()
    notes = machine.decision_notes(decision)
    commands = list(machine.next(decision))
    while commands:
        match command := commands.pop(0):
            case Call(action=action) if action in (SKIP_RESTORE, CLOSE_NESTED) and decision.decision == "skip":
                words.append(notes.left_rows)
            case Call(action=action, id=id) if action == SEAL and decision.decision in ("skip", "retry"):
                never = "it never will" if decision.decision == "skip" else "it is called again"
                words.append(f"seal {command.entry}: unless it has happened already, {never}")
                sealed = Outcome.done(marker="sealed")
                commands += machine.next(CallEnded(id=id, outcome=sealed, at=decision.at, attempts=1))
            case Call():
                shown = shorten_middle(readable_json(notes.mask.value(command.arguments)), _MAX_ARGUMENTS)
                words.append(f"{command.op} {command.entry}: call {command.action} with {shown}")
            case StartSaga():
                words.append(f"start the nested saga {command.saga_id}")
            case RollBackSaga():
                words.append(f"roll back the nested saga {command.saga_id}")
            case UndoSaga():
                words.append(f"undo the nested saga {command.saga_id}")
            case StartTimer():
                words.append(f"wait {command.seconds:g} s: {command.summary or command.id}")
            case Finish():
                words.append(f"the saga ends {command.state}")
    after = machine.view()
    return words + [_remaining(after, row) for row in after.residue[len(before.residue) :]] + list(notes.warnings)


def _remaining(view: SagaView, row: ResidueView) -> str:
    what = effect_state(view, row)
    where = "".join([f" in {row.system}" if row.system else "", f", key {row.key}" if row.key else ""])
    look = ", if you do not find it" if row.kind == "effect_unclear" else ""
    by_hand = f"; by hand{look}: {row.command}" if row.command else ""
    return f"the effect of {row.step}{where}, {what}: the saga will end RESIDUE{by_hand}"
