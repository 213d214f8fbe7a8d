"""Keeps what a run sends to Temporal within its limits: views, outputs, and the commands of one task."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.view import shrink_view
from sagas.protocol.saga_view import SagaView
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, omitted, passed_limit, size_problem
from sagas.workflow.json_payloads import json_payload, raw_json

TASK_LIMIT = 1024 * 1024
"""Maximum bytes of commands in one workflow task; a gRPC message carries 4 MiB."""

COMMAND_WEIGHT = 8 * 1024
"""Minimum bytes that a command counts as: hundreds of starts in one task would reach the SDK's deadlock timeout (2 s)
on a busy machine."""

VIEW_LIMIT = 512 * 1024
"""Maximum bytes of a view in a memo, a failure or a query result."""

ANSWER_LIMIT = 32 * 1024
"""Maximum bytes of the view in the answer to an update: the history has each of these answers."""

NEXT_TASK = timedelta(milliseconds=1)
"""The shortest timer; it fires in another workflow task."""

HISTORY_LIMIT = 40_000
"""Maximum events of a run before it must continue as new; Temporal terminates it at 51,200."""

_SIZE_LIMIT = 40 * 1024 * 1024
"""Maximum bytes of its history; Temporal terminates it at 50 MiB."""


def history_is_full() -> bool:
    """True if the history has come close to the size at which Temporal terminates the run."""
    info = workflow.info()
    return info.get_current_history_length() >= HISTORY_LIMIT or info.get_current_history_size() >= _SIZE_LIMIT


def full_history_text(what: str) -> str:
    """Why a run with a full history takes no more of what can be repeated without end, such as a pause."""
    info = workflow.info()
    return (
        f"no more {what} of this saga: the history of its run has {info.get_current_history_length():,} events and "
        f"{info.get_current_history_size():,} bytes, and Temporal terminates a run with too many; the saga goes on in "
        "a new run as soon as none of its calls and nested sagas is running"
    )


def to_payload(value: Any, what: str) -> Payload:
    """Convert a value to a Temporal payload. Raises DefinitionError if it is not JSON or too large."""
    try:
        payload = json_payload(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise DefinitionError(f"{what} cannot be written as JSON: {error}") from None
    size = len(payload.data)
    if size > MAX_PAYLOAD_BYTES:
        raise DefinitionError(size_problem(what, size))
    return payload


def view_payload(view: SagaView) -> tuple[dict[str, Any], Payload]:
    """Return the JSON of the view within its limit and its payload, encoded only once if the view is small enough."""
    document = view.to_json()
    payload = json_payload(document)
    if len(payload.data) <= VIEW_LIMIT:
        return document, payload
    document = shrink_view(view, VIEW_LIMIT).to_json()
    return document, json_payload(document)


def limit_output(output: Any, result_of: Callable[[Any], Any] = lambda output: output) -> RawValue:
    """The workflow result with this output, or with a placeholder with its size if it is too large for one."""
    payload = json_payload(result_of(output))
    limit = passed_limit(payload.data)
    return RawValue(payload) if limit is None else raw_json(result_of(omitted(len(payload.data), limit)))


class PayloadThrottle:
    """Spreads many or large commands of one run over several workflow tasks."""

    def __init__(self) -> None:
        self._task = 0
        self._bytes = 0

    async def wait_for_room(self, size: int) -> None:
        """Wait until a command of ``size`` bytes may be sent; the first of a workflow task always may."""
        while not self._has_room(size):
            await workflow.sleep(timedelta(milliseconds=1), summary="spread many commands over several tasks")
        self._bytes += max(size, COMMAND_WEIGHT)

    def _has_room(self, size: int) -> bool:
        sent = self._sent_in_this_task()
        return sent == 0 or sent + max(size, COMMAND_WEIGHT) <= TASK_LIMIT

    def _sent_in_this_task(self) -> int:
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task, self._bytes = task, 0
        return self._bytes
