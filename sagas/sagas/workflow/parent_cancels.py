"""The cancels that a run receives by signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from sagas.input_limits import MAX_CANCEL_WORDS
from sagas.protocol.messages import CancelRequested
from sagas.text.json_values import encodable
from sagas.workflow.json_payloads import NO_INPUT, UnreadableValue, bounded_value
from sagas.workflow.run_trust import is_signed_message


class ParentCancels:
    """The cancels of one run. A cancel that is signed for this run comes from its parent saga; any other comes from a
    client, and counts like a cancel by Temporal.
    """

    def __init__(self) -> None:
        self._received = 0

    def receive(self, sent: RawValue) -> CancelRequested | None:
        """The cancel as an event; None if it cannot be read."""
        try:
            request = None if sent is NO_INPUT else bounded_value([sent])
        except UnreadableValue as error:
            workflow.logger.warning("cancel ignored: it is malformed (%s)", error)
            return None
        message = request.get("reason") if isinstance(request, Mapping) else request
        reason = encodable(message[:MAX_CANCEL_WORDS]) if isinstance(message, str) else ""
        kind = "parent" if isinstance(request, Mapping) and self._is_of_parent(request) else "cancelled"
        return CancelRequested(at=workflow.time(), kind=kind, message=reason)

    def _is_of_parent(self, request: Mapping[str, Any]) -> bool:
        self._received += 1
        info = workflow.info()
        this = [info.workflow_id, info.first_execution_run_id]
        return is_signed_message("cancel", this, request, number=self._received, is_proof=False)
