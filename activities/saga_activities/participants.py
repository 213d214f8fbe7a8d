"""Carries out the commands of a participant with the guard of its database, whichever way they arrive.

The rows are those of a guarded step, under the command's key: an undo that comes first seals it, a rejection is a seal
that keeps its reason, and whatever comes again gets what is stored. A duplicate that arrives while the first one is
carried out waits for its transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from saga_activities.attempt_context import ActionBody, AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bodies.python_action import InvalidArguments
from saga_activities.guard.entry_key import MAX_ENTRY, PARTICIPANT_PREFIX, EntryKey, command_id
from saga_activities.guard.guard import Guard
from saga_activities.guard.rules import GuardedBody
from saga_activities.messaging.outbox import MAX_MESSAGE_BYTES
from sagas.actions.participants import Command, Participant
from sagas.errors import Rejected
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import Invocation, arguments_hash

CommandOp = Literal["do", "undo", "confirm", "probe"]

log = logging.getLogger("saga.participant")


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One delivery of a command. ``key`` is that of the forward command, also for an undo and a confirm.

    ``arguments`` is the value as it was sent. ``saga_id`` is what the caller calls its saga, empty if it does not say.
    """

    op: CommandOp
    key: str
    arguments: Any = None
    saga_id: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class _CommandInvocation(Invocation):
    @property
    def forward_key(self) -> str:
        return self.key


class _Times(TypedDict):
    scheduled_at: float
    deadline: float


MakeBody = Callable[[CommandCall], GuardedBody | None]
"""Returns what carries a command out, in the transaction of the guard; None if there is nothing to do."""


class ParticipantCommands:
    """The commands of the participant ``name``; ``timeout`` in seconds for each attempt."""

    def __init__(self, name: str, timeout: float, guard: Guard, make_body: MakeBody) -> None:
        self._name = name
        self._timeout = timeout
        self._guard = guard
        self._make_body = make_body

    @classmethod
    def of(
        cls, participant: Participant, guard: Guard, *, max_event_bytes: int = MAX_MESSAGE_BYTES
    ) -> ParticipantCommands:
        """The commands that a class with `@participant` carries out."""
        methods = _Methods(participant, max_event_bytes)
        return cls(participant.name, participant.timeout, guard, methods.body)

    async def perform(self, call: CommandCall, make_body: MakeBody | None = None) -> Outcome:
        """Carry out a command, or find its stored outcome.

        A ``probe`` seals the key while it answers: ``done`` has the marker ``sealed``, or the result of `do`.
        Raises ValueError for a key that no row can have.
        """
        now = time.time()
        address, times = self._address(call), _Times(scheduled_at=now, deadline=now + self._timeout)
        if call.op == "probe":
            return await self._guard.seal(address, **times)
        body = (make_body or self._make_body)(call)
        match call.op:
            case "undo":
                return await self._guard.undo(address, body, **times)
            case "confirm":
                return await self._guard.confirm(address, body, **times)
        assert body is not None
        outcome = await self._guard.do(address, arguments_hash({"value": call.arguments}), body, **times)
        if outcome.kind == "rejected" and outcome.failure is not None:
            return await self.reject(call, outcome.failure.message, outcome.failure.details)
        return outcome

    async def reject(self, call: CommandCall, reason: str, details: Mapping[str, Any]) -> Outcome:
        """Store the rejection of a forward command; returns what was stored before, if anything was."""
        now = time.time()
        failure = Failure("Rejected", reason, details)
        return await self._guard.reject(self._address(call), failure, scheduled_at=now, deadline=now + self._timeout)

    def _address(self, call: CommandCall) -> EntryKey:
        return EntryKey(command_id(call.key), f"{PARTICIPANT_PREFIX}{self._name}"[:MAX_ENTRY])


class _Methods:
    """The methods of a class with `@participant` as bodies for the guard."""

    def __init__(self, participant: Participant, max_event_bytes: int) -> None:
        self._participant = participant
        self._bodies = ActionBodies(participant.actions, max_event_bytes=max_event_bytes, context=Command)

    def body(self, call: CommandCall) -> ActionBody | None:
        action = self._participant.actions.get(call.op)
        if action is None:
            return None
        arguments = {} if call.arguments is None else call.arguments
        if not isinstance(arguments, Mapping):
            return _rejecting(f"{self._participant.name} takes a JSON object, not {type(arguments).__name__}")
        if call.op != "do":  # it usually gets the value of `do`, of which it may need nothing
            arguments = {name: value for name, value in arguments.items() if action.signature.find(name) is not None}
        entry = f"participant/{self._participant.name}"[:MAX_ENTRY]
        invocation = _CommandInvocation(call.op, arguments, call.key, call.saga_id, entry, call.op, 1)
        now = time.time()
        attempt = AttemptContext(call.attempt, now, now + self._participant.timeout, lambda _: None, log)
        try:
            return self._bodies.body(call.op, arguments, invocation, attempt)
        except InvalidArguments as error:
            return _rejecting(str(error))


def is_refusal(outcome: Outcome) -> bool:
    """True for a definite no: a rejection, a command that was undone, or a use of its key that the rows exclude."""
    return outcome.kind in ("rejected", "late") or outcome.park_reason is not None


def _rejecting(reason: str) -> ActionBody:
    async def body(_: Any) -> Any:
        raise Rejected(reason)

    return body
