"""A saga makes no call that its state has not named before: what `saga check-deploy` compares is all that can come."""

from __future__ import annotations

from collections.abc import Sequence

from sagas.machine.remaining_calls import RemainingCall
from sagas.protocol.messages import Call, Command, DecisionMade, MachineEvent, Notify, Started, StartSaga
from tests.unit.engine.machine_properties.oracle.ledger import Violation

_OF_THE_ENGINE = ("saga.", "sql.", "outbox.", "kafka.", "spark.")


def check(remaining: Sequence[RemainingCall], event: MachineEvent, answer: Sequence[Command]) -> None:
    """``remaining`` are the calls that the machine has named before the event, ``answer`` its commands after it."""
    if isinstance(event, Started) or (isinstance(event, DecisionMade) and event.definition is not None):
        return  # only a run that has begun is asked, and a decision may bring another definition
    steps = {(call.step, call.operation.uses) for call in remaining if call.role != "notify"}
    notified = {call.operation.uses for call in remaining if call.role == "notify"}
    nested = {(call.step, call.arguments.get("name")) for call in remaining}
    for command in answer:
        match command:
            case Call(step=step, action=action) if not action.startswith(_OF_THE_ENGINE):
                named = (step, action) in steps
            case StartSaga(entry=entry, saga=saga):
                named = not nested.isdisjoint((entry.partition("#")[0], name) for name in (saga, None))
            case Notify(uses=uses):
                named = uses in notified
            case _:
                continue
        if not named:
            raise Violation("remaining calls", f"{command} was not named before {event}; named: {remaining}")
