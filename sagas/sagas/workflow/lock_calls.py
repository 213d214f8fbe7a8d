"""Acquires and releases the locks of a run by activities of the project's workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow

from sagas.machine.decisions.form import malformed_decision
from sagas.machine.locking.locks import describe_keys
from sagas.protocol.messages import AcquireLocks, DecisionMade, LocksAnswered, ReleaseLocks
from sagas.protocol.payloads import LOCK_ACTIVITY, RELEASE_ACTIVITY
from sagas.workflow.engine_activity import perform_until_answered
from sagas.workflow.json_payloads import raw_json
from sagas.workflow.task_set import CommandContext

ACQUIRING = "acquire locks"
_RELEASING = "release locks"

_ATTEMPT = timedelta(seconds=10)
"""Timeout of an attempt. Attempts have no limit: only the database knows what it has granted, and a run must not close
with a lock."""


class LockCalls:
    """The lock requests of one run, and its releases."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._requests = 0
        self._releases = 0
        self._releasing: set[str] = set()

    @property
    def is_releasing(self) -> bool:
        """True until all releases are carried out."""
        return bool(self._releasing)

    def leave(self) -> None:
        """Give up the releases in flight: an operator has decided that the locks stay as they are."""
        for name in sorted(self._releasing):
            self._context.tasks.cancel(name)
        self._releasing.clear()

    def acquire(self, command: AcquireLocks) -> None:
        self._requests += 1
        self._context.tasks.start(ACQUIRING, self._acquire(command, f"{LOCK_ACTIVITY}~{self._requests}"))

    def release(self, command: ReleaseLocks) -> None:
        # A later attempt of a request that is still in flight finds that the request was withdrawn.
        self._context.tasks.cancel(ACQUIRING)
        self._releases += 1
        name = f"{_RELEASING} {self._releases}"
        self._releasing.add(name)
        self._context.tasks.start(name, self._release(command, name, f"{RELEASE_ACTIVITY}~{self._releases}"))

    async def _acquire(self, command: AcquireLocks, activity_id: str) -> None:
        request = {
            "connection": command.connection,
            "keys": list(command.keys),
            "owner": command.owner,
            "holder": command.holder,
            "waits": command.waits,
            "start": command.start,
        }
        answer = await perform_until_answered(
            LOCK_ACTIVITY,
            raw_json(request),
            f"lock {describe_keys(command.keys)}",
            timeout=_ATTEMPT,
            activity_id=activity_id,
        )
        self._context.tasks.discard(ACQUIRING)
        self._context.report(lock_answer(answer, workflow.time()))

    async def _release(self, command: ReleaseLocks, name: str, activity_id: str) -> None:
        request = {
            "connection": command.connection,
            "owner": command.owner,
            "holder": command.holder,
            "row_locks": list(command.row_locks),
            "undo_scope": command.undo_scope,
            "start": command.start,
        }
        await perform_until_answered(
            RELEASE_ACTIVITY, raw_json(request), "release the locks", timeout=_ATTEMPT, activity_id=activity_id
        )
        self._context.tasks.discard(name)
        self._releasing.discard(name)


def lock_answer(answer: Mapping[str, Any], at: float) -> LocksAnswered:
    """The answer of the activity as an event."""
    blockers: Sequence[Mapping[str, Any]] = answer.get("blockers") or ()
    return LocksAnswered(answer["answer"], at, blockers)


def release_refusal(decision: DecisionMade, *, releasing: bool) -> str | None:
    """Why this decision about `saga.release` is refused; None when it is accepted."""
    wrong = malformed_decision(decision)
    if wrong is not None:
        return wrong
    if not releasing:
        return "the saga is not releasing its locks: there is nothing to decide"
    if decision.decision != "skip":
        return f"`{decision.decision}` is not possible for the release of the locks, which is retried; possible: skip"
    return None
