"""The participants of a run whose guarded steps are performed on real databases; the others stay in memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine
from dataclasses import replace
from typing import Any, Literal, TypeVar

from saga_activities.attempt_context import AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.connections import DatabaseConnections
from saga_activities.dispatcher import Dispatcher
from saga_activities.http import HttpConnections
from saga_workers.undo_check.step_changes import StepChanges
from saga_workers.undo_check.step_names import step_of
from sagas.actions.registry import Actions
from sagas.builtins.automatic import RESTORE
from sagas.builtins.messaging import DROP, EMIT, RELEASE
from sagas.builtins.two_phase import COMMIT, ROLLBACK
from sagas.definition.model import Definition, Operation, StepDefinition
from sagas.protocol.messages import Call
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import CLOSE_NESTED, decode_call, encode_call
from sagas.simulation.participants import Effect, Participants, failed_outcome
from sagas.text.exact_json import decode_json, encode_json

log = logging.getLogger("saga.verify_undo")

_Result = TypeVar("_Result")

_ATTEMPTS = 3
"""Attempts of a call whose failure may heal, such as a deadlock with another transaction of the server."""

_MINIMUM_TIMEOUT = 30.0
"""Seconds of an attempt at least: a busy machine is not what is tested."""

UndoAction = int | Literal["confirmed"]
"""The action of `compensate` that has undone a step: the number of an alternate from 0, or its `confirmed`."""

IN_DATABASE = ("sql", COMMIT, ROLLBACK, EMIT, RELEASE, DROP, RESTORE)
"""The built-in actions that work in one transaction of a database."""

EVALUATED = ("pass", "require", "finish")
"""The actions that the state machine itself evaluates, here as in a worker."""


class RealActions:
    """The actions that can be performed here: those that work in a transaction of one of the copied databases."""

    def __init__(self, actions: Actions, connections: Collection[str]) -> None:
        self._actions = actions
        self._connections = connections

    def why_not(self, operation: Operation) -> str | None:
        """The reason why an operation is not performed; None if there is none."""
        if operation.uses in EVALUATED or operation.uses in IN_DATABASE:
            return None
        action = self._actions.get(operation.uses)
        if action is None:
            return f"{operation.uses} is not run, because it does not work in a transaction of a database"
        if action.connection not in self._connections:
            return f"{operation.uses} is not run, because it has no connection to a database"
        return None

    def why_step_is_not_run(self, step: StepDefinition) -> str | None:
        """The reason why the effect of a step, or its undo, is not performed; None if there is none."""
        if (why := self.why_not(step.do)) is not None:
            return why
        undos = [why for operation in step.compensations if (why := self.why_not(operation)) is not None]
        return f"its undo {undos[0]}" if undos else None


class RealParticipants(Participants):
    """Performs the calls of database steps with ``databases``, under the faults of the script.

    It runs in a thread of its own beside ``loop``, on which the databases are used. ``performed`` are the forward
    actions that had an effect there, as path and entry; ``refused``: those without one, with their outcome.
    ``undone_by`` has the undos, with the action of each. ``changes`` looks at what the effects change.
    """

    def __init__(
        self,
        actions: Actions,
        databases: DatabaseConnections,
        loop: asyncio.AbstractEventLoop,
        real: RealActions,
        changes: StepChanges | None = None,
    ) -> None:
        super().__init__()
        self._dispatcher = Dispatcher(ActionBodies(actions), databases, HttpConnections({}))
        self._loop = loop
        self._real = real
        self._changes = changes
        self._late_calls: list[tuple[str, Call]] = []
        self.performed: set[str] = set()
        self.refused: dict[str, str] = {}
        self.undone_by: set[tuple[str, UndoAction]] = set()

    def perform(
        self, definition: Definition, path: str, saga_id: str, call: Call, outcome: str, result: Any
    ) -> Outcome:
        step = definition.step(call.step)
        if call.op == "probe" or not self._performs(step, call):
            return super().perform(definition, path, saga_id, call, outcome, result)
        effect = self._effects.setdefault(
            (saga_id, call.entry, call.generation), Effect(path, step, call.entry, call.key)
        )
        if call.op in ("do", "undo", "confirm") and outcome in ("rejected", "failed", "unknown", "late"):
            if outcome == "late" and call.op == "do":
                self._late_calls.append((saga_id, call))
            return failed_outcome("unknown" if outcome == "late" else outcome, call)
        made = self._watched_attempts(path, saga_id, call)
        if outcome == "crash after effect" and made.kind == "done":
            if call.op == "do" and (call.at_most_once or call.retry.max_attempts == 1):
                self._note(effect, call, made)
                return Outcome("unknown", failure=failed_outcome("unknown", call).failure, retryable=False)
            made = self._attempts(saga_id, call)
        self._note(effect, call, made)
        return made

    def deliver_late_attempts(self, saga_id: str | None = None, entry: str | None = None) -> None:
        super().deliver_late_attempts(saga_id, entry)
        waiting, self._late_calls = self._late_calls, []
        for caller, call in waiting:
            if entry is not None and (caller, call.entry) != (saga_id, entry):
                self._late_calls.append((caller, call))
            else:
                self._attempt(caller, call)

    def _performs(self, step: StepDefinition, call: Call) -> bool:
        if call.action == CLOSE_NESTED:
            return False
        if self._real.why_not(step.do) is not None:
            return False
        operation = {"undo": step.compensations, "confirm": (step.confirm,)}.get(call.op, (step.do,))
        return not any(
            each is not None and each.uses == call.action and self._real.why_not(each) is not None for each in operation
        )

    def _note(self, effect: Effect, call: Call, outcome: Outcome) -> None:
        """Keep what the databases have answered, as the simulation looks for effects that stay."""
        if call.op == "do" and outcome.kind in ("rejected", "failed"):
            self.refused[effect.path + effect.entry] = outcome.kind
        if outcome.kind != "done":
            return
        marker = outcome.marker
        if call.op == "do" or (call.op == "seal" and marker != "sealed"):
            effect.done, effect.result = True, outcome.result
        elif marker in ("sealed", "nothing_to_undo"):
            effect.sealed = True
        elif call.op == "confirm" and marker is None:
            effect.confirmed = True
        elif call.op == "undo" and marker is None:
            effect.undone = True
            self.undone.append(effect.path + effect.entry)
            self.undone_by.add((effect.path + effect.entry, _undo_action(effect, call)))
        if call.op == "do" and marker is None:
            self.performed.add(effect.path + effect.entry)

    def _watched_attempts(self, path: str, saga_id: str, call: Call) -> Outcome:
        step, changes = step_of(path + call.entry), self._changes
        if changes is None or call.op not in ("do", "confirm") or not changes.is_due(step):
            return self._attempts(saga_id, call)
        self._wait_for(changes.begin())
        made = self._attempts(saga_id, call)
        if made.kind == "done":
            self._wait_for(changes.end(step))
        return made

    def _wait_for(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of what works with the databases."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _attempts(self, saga_id: str, call: Call) -> Outcome:
        outcome = replace(self._attempt(saga_id, call), attempt=1)
        without_effect = True
        for number in range(2, _ATTEMPTS + 1):
            if outcome.kind not in ("failed", "unknown") or not outcome.retryable or outcome.park_reason is not None:
                break
            without_effect = without_effect and outcome.kind == "failed"
            outcome = replace(self._attempt(saga_id, call), attempt=number, nothing_before=without_effect)
        return outcome

    def _attempt(self, saga_id: str, call: Call) -> Outcome:
        invocation = decode_call(call.action, encode_call(call, saga_id))
        now = time.time()
        context = AttemptContext(1, now, now + max(call.timeout, _MINIMUM_TIMEOUT), lambda _: None, log)
        outcome = self._wait_for(self._dispatcher.perform(invocation, context))
        return replace(outcome, result=decode_json(encode_json(outcome.result)))


def undoes_confirmed_by_another_action(step: StepDefinition) -> bool:
    """True if `compensate.confirmed` is an action of its own, as it is not for a step with held events."""
    compensation = step.compensate
    return (
        compensation is not None
        and compensation.confirmed is not None
        and compensation.confirmed not in compensation.alternates
    )


def _undo_action(effect: Effect, call: Call) -> UndoAction:
    if effect.confirmed and undoes_confirmed_by_another_action(effect.step):
        return "confirmed"
    alternate = call.key.rpartition("/")[2].partition(".")[2]  # the number is the end of the key, without that of 0
    return int(alternate) if alternate.isdigit() else 0
