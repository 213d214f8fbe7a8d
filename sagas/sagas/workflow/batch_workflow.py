"""The record of a batch as a Temporal workflow: who starts its rows, how far that is, and whether it is paused.

The command `saga start --from` opens it and reports to it; `saga batch` reads it. It starts nothing itself, and closes
with the command, or when nothing has been heard of the command for ABANDONED_AFTER.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from sagas.presentation.batch_details import batch_details
from sagas.protocol.batch_record import (
    CANCEL_SIGNAL,
    CLOSED_SIGNAL,
    OPENED_SIGNAL,
    PAUSE_SIGNAL,
    PROGRESS_SIGNAL,
    RECORD_QUERY,
    RESUME_SIGNAL,
    BatchRecord,
    BatchState,
    is_from,
)
from sagas.protocol.operator_names import recorded_name
from sagas.protocol.payloads import BATCH_PREFIX, BATCH_WORKFLOW
from sagas.text.json_values import encodable
from sagas.workflow.failures import refused_error
from sagas.workflow.json_payloads import NO_INPUT, UnreadableValue, bounded_value
from sagas.workflow.limits import NEXT_TASK
from sagas.workflow.waits import wait_until

ABANDONED_AFTER = timedelta(minutes=15)

_WISHES: dict[str, BatchState] = {PAUSE_SIGNAL: "PAUSED", RESUME_SIGNAL: "STARTING", CANCEL_SIGNAL: "CANCELLED"}


@workflow.defn(name=BATCH_WORKFLOW)
class BatchWorkflow:
    """Keeps the record of one batch."""

    @workflow.init
    def __init__(self, args: RawValue = NO_INPUT) -> None:
        self._refusal: str | None = None
        value: Any = None
        try:
            value = _read([args])
        except UnreadableValue as error:
            self._refusal = f"the input of {BATCH_WORKFLOW} cannot be read: {error}"
        self._record = BatchRecord.from_json(workflow.info().workflow_id.removeprefix(BATCH_PREFIX), value)
        self._reports = 0
        self._ended = False

    @workflow.run
    async def run(self, args: RawValue = NO_INPUT) -> Any:
        if not workflow.info().workflow_id.startswith(BATCH_PREFIX):
            raise refused_error(f"the id of {BATCH_WORKFLOW} must begin with {BATCH_PREFIX}")
        if self._refusal is not None:
            raise refused_error(self._refusal)
        while not self._ended:
            seen = self._reports
            is_heard = await wait_until(
                lambda: self._ended or workflow.info().is_continue_as_new_suggested(),
                timeout=ABANDONED_AFTER,
                summary="is the command still there?",
            )
            if not is_heard:
                if seen == self._reports:
                    self._record = self._record.asked("INTERRUPTED", None)
                    break
                continue
            if not self._ended:
                await workflow.sleep(NEXT_TASK, summary="continue as new")  # a cancel in this task is applied after it
            if not self._ended:
                workflow.continue_as_new(self._record.to_json())
        return self._record.to_json()

    @workflow.signal(dynamic=True)
    def receive(self, name: str, args: Sequence[RawValue]) -> None:
        """Take a report of a command that starts rows, or a request of an operator. Everything else is ignored."""
        try:
            value = _read(args)
        except UnreadableValue as error:
            workflow.logger.warning("signal %s ignored, its data cannot be read: %s", encodable(name), error)
            return
        by = value.get("by") if isinstance(value, dict) else None
        by = recorded_name(by) if isinstance(by, str) and by else None
        match name:
            case _ if name == OPENED_SIGNAL:
                self._reports += 1
                self._record = self._record.opened(value)
            case _ if name in (PROGRESS_SIGNAL, CLOSED_SIGNAL) and is_from(value, self._record):
                self._reports += 1
                self._record = self._record.reported(value)
                if name == CLOSED_SIGNAL:
                    self._record = self._record.closed()
                    self._ended = True
            case _ if name in _WISHES:
                self._record = self._record.asked(_WISHES[name], by)
            case _:
                pass

    @workflow.query(name=RECORD_QUERY, description="The record.")
    def record(self) -> dict[str, Any]:
        return self._record.to_json()

    def details(self) -> str:
        """Markdown for the Web UI."""
        return batch_details(self._record)


def _read(values: Sequence[RawValue]) -> Any:
    """A value of another client. Raises UnreadableValue.

    Half a surrogate pair in its texts, as in the name of a user or of a file, becomes `?` in the record.
    """
    return bounded_value(values, half_pairs=True)
