"""Which operations may share a transaction with those of other sagas, and why others may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins import messaging
from sagas.builtins.registry import BUILTINS
from sagas.definition.model import Definition, Operation, StepDefinition
from sagas.protocol.messages import Call, GuardSpec

_SHARED_BUILTINS = frozenset({"sql", messaging.EMIT, messaging.PUBLISH, messaging.RELEASE, messaging.DROP})
_WITHOUT_CALL = frozenset({"require"})


def why_not_batchable(step: StepDefinition) -> str | None:
    """Why a saga leaves its bulk workflow at this step at the latest; None if all its operations may be shared."""
    return next((why for one in step.operations if (why := _why_not_operation(one)) is not None), None)


def why_no_member(definition: Definition) -> str | None:
    """Why sagas of this definition leave their bulk workflow before their first step; None if they do not."""
    if definition.notify:
        return "`notify` needs a workflow of its own"
    if definition.locks is not None:
        return "`locks` needs a workflow of its own"
    return None


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


def _why_not_operation(operation: Operation) -> str | None:
    if operation.uses in _WITHOUT_CALL:
        return None
    return _why_not_guarded(operation) or _why_not(
        operation.uses, operation.connection, operation.with_ or {}, operation.task_queue, local=operation.local
    )


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
