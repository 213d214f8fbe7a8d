"""Reports of parked steps, from a nested saga to its parent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError

from sagas.builtins.signal_names import PARKED_SIGNAL
from sagas.protocol.messages import ChildParked, ReportParked
from sagas.protocol.payloads import (
    UNDO_SUFFIX,
)
from sagas.protocol.saga_view import ChildView
from sagas.workflow.client_fields import LAST_SECOND, MALFORMED, number
from sagas.workflow.json_payloads import bounded_value, raw_json
from sagas.workflow.run_trust import is_signed_message, signed_message
from sagas.workflow.task_set import TaskSet

_REPORTING = "report to the parent"


class ParkedReports:
    """Reports of this run to its parent saga, sent one at a time so that they arrive in order, and those of its nested
    sagas to this run. Each is signed for the run of the parent, and counts only if it is later than the last one.
    """

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._next: ReportParked | None = None
        self._last: dict[str, float] = {}
        self._received = 0

    def send(self, report: ReportParked) -> None:
        parent = workflow.info().parent
        if parent is None:
            return
        self._next = report
        if _REPORTING not in self._tasks:
            self._tasks.start(_REPORTING, self._send(parent))

    async def _send(self, parent: workflow.ParentInfo) -> None:
        while (report := self._next) is not None:
            self._next = None
            message = {"id": workflow.info().workflow_id, "state": report.state, "blocked": report.blocked}
            message |= {"waits": list(report.waits), "at": workflow.time()}
            to = [parent.workflow_id, parent.run_id]
            handle = workflow.get_external_workflow_handle(parent.workflow_id, run_id=parent.run_id)
            try:
                await handle.signal(PARKED_SIGNAL, raw_json(signed_message("report", to, message)))
            except FailureError as error:
                workflow.logger.info("parent %s has ended, report not sent: %s", parent.workflow_id, error)
        self._tasks.discard(_REPORTING)

    def receive(self, sent: RawValue) -> ChildParked | None:
        """The report of a nested saga as an event; None if it is malformed, or anything else than its latest one."""
        try:
            report = bounded_value([sent])
            event = parked_event(report)
            at = number(report["at"], 0, LAST_SECOND)
        except MALFORMED as error:
            workflow.logger.warning("report of a parked step ignored: it is malformed (%s)", error)
            return None
        nested, info = report["id"], workflow.info()
        if at <= self._last.get(nested, -1.0):
            workflow.logger.warning("report of a parked step of %s ignored: a later one has arrived before it", nested)
            return None
        self._received += 1
        this = [info.workflow_id, info.run_id]
        if not is_signed_message("report", this, report, number=self._received, is_proof=False):
            workflow.logger.warning("report of a parked step of %s ignored: it is not signed for this run", nested)
            return None
        self._last[nested] = at
        return event


def parked_event(report: Mapping[str, Any]) -> ChildParked:
    """The event of a report, or of what a nested saga would have reported. Raises one of ``MALFORMED``."""
    id, waits = report["id"], report["waits"]
    ChildView.from_json({"id": id, "step": "", "saga": "", "state": report["state"], "waits": waits})
    if not isinstance(report["blocked"], bool):
        raise TypeError("blocked is neither true nor false")
    undo = id.endswith(UNDO_SUFFIX)
    return ChildParked(id.removesuffix(UNDO_SUFFIX), undo, report["state"], report["blocked"], waits, workflow.time())
