"""What Temporal takes at most, kept before it is asked: it refuses by failing the workflow task for ever."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload

from sagas.machine.arguments import DefinitionError
from sagas.machine.view import shrink_view

PAYLOAD_LIMIT = 2 * 1024 * 1024 - 16 * 1024
"""Bytes of one payload: Temporal refuses 2 MiB."""

TASK_LIMIT = 1024 * 1024
"""Bytes of commands in one workflow task; the wire carries 4 MiB."""

COMMAND_WEIGHT = 8 * 1024
"""What a small command counts as: hundreds of starts in one task would meet the SDK's two seconds on a busy machine."""

STATE_LIMIT = PAYLOAD_LIMIT - 64 * 1024
"""Characters of a packed machine that can move to a new run, beside what goes with it."""

VIEW_LIMIT = 512 * 1024
"""Bytes of a story in a memo, a failure or an answer."""

SUMMARY_LIMIT = 200
"""Characters of a summary: Temporal takes 400 bytes."""

HISTORY_LIMIT = 40_000
"""Events a run may have before it must continue as a new one; Temporal ends it at 51,200."""


def to_payload(value: Any, what: str) -> Payload:
    """``value`` as Temporal carries it. Raises DefinitionError: it is not JSON, or too large to be sent."""
    try:
        payload = workflow.payload_converter().to_payload(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DefinitionError(f"{what} cannot be written as JSON: {error}") from None
    size = len(payload.data)
    if size > PAYLOAD_LIMIT:
        raise DefinitionError(f"{what} has {size:,} bytes; Temporal takes {PAYLOAD_LIMIT:,}")
    return payload


def view_payload(story: dict[str, Any]) -> tuple[dict[str, Any], Payload]:
    """The story within its limit, and its payload: written once, for almost every story is far below the limit."""
    payload = workflow.payload_converter().to_payload(story)
    # Payloads have no blanks after commas and colons; text with them has at most twice as many bytes.
    if 2 * len(payload.data) <= VIEW_LIMIT:
        return story, payload
    story = shrink_view(story, VIEW_LIMIT)
    return story, workflow.payload_converter().to_payload(story)


def limit_output(output: Any) -> Any:
    """The output, unless it is too large to be the result of a workflow: then only its size."""
    size = len(json.dumps(output, default=str).encode())
    return output if size <= PAYLOAD_LIMIT else {"omitted": "size", "bytes": size}


def limit_summary(text: str) -> str:
    """One line of the Web UI, within what Temporal takes."""
    if len(text) <= SUMMARY_LIMIT and len(text.encode()) <= 2 * SUMMARY_LIMIT - 8:
        return text
    short = text[: SUMMARY_LIMIT - 1]
    while len(short.encode()) > 2 * SUMMARY_LIMIT - 16:
        short = short[:-1]
    return short + "…"


class PayloadThrottle:
    """Spreads many or large commands over several workflow tasks. One for each run."""

    def __init__(self) -> None:
        self._task = 0
        self._bytes = 0

    async def wait_for_room(self, size: int) -> None:
        """Wait until a command of ``size`` bytes may be sent."""
        size = max(size, COMMAND_WEIGHT)
        while self._sent_in_this_task() + size > TASK_LIMIT and self._bytes > 0:
            await workflow.sleep(timedelta(milliseconds=1), summary="spread many commands over several tasks")
        self._bytes += size

    def _sent_in_this_task(self) -> int:
        task = workflow.info().get_current_history_length()
        if task != self._task:
            self._task, self._bytes = task, 0
        return self._bytes
