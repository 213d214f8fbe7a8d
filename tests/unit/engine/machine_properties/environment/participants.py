"""Participants without a guard: those that honour idempotency keys, and those that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Failure, Outcome
from tests.unit.engine.machine_properties.environment.guard_model import RolledBack

REFUSED = Outcome("rejected", failure=Failure("Rejected", "this key was undone"), attempt=1, retryable=False)


def do_key(call: Call) -> str:
    """The key of the forward call that this call undoes, confirms or asks about."""
    key = call.key
    for mark in ("/undo", "/confirm"):
        head, suffix, _ = key.rpartition(mark)
        if suffix:
            return head
    return key


@dataclass
class Participant:
    """A system reached without a shared transaction.

    ``standing`` tells whether the forward effect of a call's entry stands (any participant knows what it holds);
    ``keyed`` whether the step's participant remembers keys; ``foreign`` whether the forward effect was made elsewhere
    (in a guarded database), so that an undo here can not know whether there is something to undo.
    """

    standing: Callable[[Call], bool]
    keyed: Callable[[Call], bool]
    made_elsewhere: Callable[[Call], bool]
    answers: dict[str, Outcome] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)

    def run(self, call: Call, action: Callable[[str], object]) -> Outcome:
        """Carry out one request."""
        if call.op == "undo":
            return self._undo(call, action)
        keyed = self.keyed(call)
        if keyed and call.key in self.answers:
            return self.answers[call.key]
        if keyed and do_key(call) in self.undone:
            return REFUSED
        try:
            outcome = Outcome.done(action(call.action))
        except RolledBack as rolled:
            outcome = rolled.outcome
        # An operator may repeat a rejected confirm.
        remembered = ("done", "rejected") if call.op == "do" and call.remembers_rejections else ("done",)
        if keyed and outcome.kind in remembered:
            self.answers[call.key] = outcome
        return outcome

    def _undo(self, call: Call, action: Callable[[str], object]) -> Outcome:
        key = do_key(call)
        if key in self.undone:
            return Outcome.done(None)
        try:
            nothing = not self.made_elsewhere(call) and not self.standing(call)
            result = None if nothing else action(call.action)
        except RolledBack as rolled:
            return rolled.outcome
        self.undone.add(key)
        return Outcome.done(result)

    def refuse(self, key: str) -> None:
        """From now on the key has no effect: its undo was seen, or a probe sealed it."""
        self.undone.add(key)
