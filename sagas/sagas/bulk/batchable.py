"""The work of sagas inside their bulk workflow: the operations they share, the waits for which they stay, and
why not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins import messaging
from sagas.builtins.registry import BUILTINS
from sagas.definition import times
from sagas.definition.model import Definition, Operation, StepDefinition
from sagas.machine.builtin_actions import WAIT_SUFFIX
from sagas.protocol.messages import Call, GuardSpec, StartTimer

_SHARED_BUILTINS = frozenset({"sql", messaging.EMIT, messaging.PUBLISH, messaging.RELEASE, messaging.DROP})

LONGEST_WAIT = 5.0
"""Seconds: a saga that has to wait longer leaves its bulk workflow."""


def why_not_batchable(step: StepDefinition) -> str | None:
    """Why a saga leaves its bulk workflow at this step at the latest; None if all its operations may be shared."""
    return next((why for operation in step.operations if (why := _why_not_operation(operation)) is not None), None)


def why_no_member(definition: Definition) -> str | None:
    """Why sagas of this definition leave their bulk workflow before their first step; None if they do not."""
    if definition.notify:
        return "`notify` needs a workflow of its own"
    if definition.locks is not None:
        return "`locks` needs a workflow of its own"
    return None


def why_not_shared(definition: Definition) -> str | None:
    """Why each start of this definition that arrives over HTTP has a workflow of its own; None if starts that arrive
    together share one. A saga whose first step is not batchable would leave it before it has done anything in it.
    """
    return why_no_member(definition) or why_not_batchable(definition.steps[0])


def why_not_callable(call: Call) -> str | None:
    """Why the call cannot be performed together with those of other sagas; None if it can."""
    guard = call.guard
    if guard is None:
        return "only calls with a guard are shared"
    if call.op == "probe":
        return "a probe is not shared"
    return _why_not_guarded(guard) or _why_not(
        call.action, guard.connection, call.arguments, call.task_queue, local=call.local
    )


def may_wait(definition: Definition, timer: StartTimer) -> bool:
    """True if a saga waits for this timer in its bulk workflow."""
    if timer.seconds > LONGEST_WAIT:
        return False
    if not timer.id.endswith(WAIT_SUFFIX):
        return True
    step = definition.step(timer.id.removesuffix(WAIT_SUFFIX).partition("#")[0])
    return "signal" not in (step.do.with_ or {})


def _why_not_operation(operation: Operation) -> str | None:
    if operation.uses in ("require", "pass", "finish"):
        return None
    if operation.uses == "wait":
        return _why_not_wait(operation.with_ or {})
    return _why_not_guarded(operation) or _why_not(
        operation.uses, operation.connection, operation.with_ or {}, operation.task_queue, local=operation.local
    )


def _why_not_wait(arguments: Mapping[str, Any]) -> str | None:
    if "signal" in arguments:
        return "`wait` for a signal needs a workflow of its own"
    try:
        is_short = times.to_seconds(arguments.get("for")) <= LONGEST_WAIT
    except ValueError:  # an expression, or `until`
        is_short = False
    return None if is_short else f"`wait` may take more than {LONGEST_WAIT:g}s"


def _why_not_guarded(guarded: Operation | GuardSpec) -> str | None:
    if guarded.two_phase:
        return "a transaction of two-phase commit belongs to one saga"
    return "the images of `compensate: auto` are stored by one saga at a time" if guarded.images else None


def _why_not(
    uses: str, connection: str | None, arguments: Mapping[str, Any], task_queue: str | None, *, local: bool
) -> str | None:
    if not local or task_queue is not None:
        return f"`{uses}` runs on a task queue of its own"
    if uses in BUILTINS and uses not in _SHARED_BUILTINS:
        return f"`{uses}` needs a workflow of its own"
    if connection is None:
        return f"`{uses}` has no `connection`"
    if uses == messaging.PUBLISH and arguments.get("wait") == messaging.UNTIL_PUBLISHED:
        return f"`{uses}` waits until its events are published"
    return None
