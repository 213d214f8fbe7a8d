"""Runs nested sagas, and undo runs of nested sagas, as child workflows, and signals between parent and child."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ChildWorkflowError, FailureError, WorkflowAlreadyStartedError

from sagas.definition.saga_ids import workflow_id_problem
from sagas.machine.arguments import DefinitionError
from sagas.protocol.messages import CancelSaga, ChildParked, ReportParked, SagaEnded, StartSaga, UndoSaga
from sagas.protocol.payloads import CANCEL_SIGNAL, PARKED_SIGNAL, RESIDUE_SIGNAL, UNDO_SCOPE_MEMO, UNDO_SUFFIX
from sagas.protocol.saga_view import ChildView, SagaView
from sagas.workflow.failures import child_result, refused_view
from sagas.workflow.json_payloads import UnreadableValue, raw_json
from sagas.workflow.limits import run_summary, to_payload
from sagas.workflow.received import activity_result, bounded_value
from sagas.workflow.task_set import CommandContext, TaskSet

_REPORTING = "report to the parent"

_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, UnreadableValue)
"""Errors of a report that is not from a nested saga: any client can send its signal."""


class NestedSagas:
    """The nested sagas of one run."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._started: dict[str, workflow.ChildWorkflowHandle[Any, Any]] = {}
        self._residue_reports: dict[str, Mapping[str, Any]] = {}

    def start(self, command: StartSaga) -> None:
        self._context.tasks.start(command.id, self._run(command, command.saga_id, command.input))

    def undo(self, command: UndoSaga) -> None:
        request = {"reason": command.message, "who": workflow.info().workflow_id}
        self._context.tasks.start(command.id, self._run(command, command.saga_id + UNDO_SUFFIX, request))

    def cancel(self, command: CancelSaga) -> None:
        self._context.tasks.start(f"cancel {command.id}", self._signal_cancel(command))

    def note_residue(self, sent: RawValue) -> None:
        """Store the residue of a nested saga that closes as Completed; see :func:`signal_residue_to_parent`."""
        try:
            report = bounded_value([sent])
            self._residue_reports[SagaView.from_json({**report, "saga": ""}).id] = report
        except _MALFORMED as error:
            workflow.logger.warning("report of a residue ignored: it is malformed (%s)", error)

    async def _run(self, command: StartSaga | UndoSaga, saga_id: str, input: Any) -> None:
        id, saga = command.id, command.saga
        undo = saga_id.endswith(UNDO_SUFFIX)
        state = "COMPENSATED" if undo else "COMPLETED"
        scope = command.undo_scope if isinstance(command, StartSaga) else ""
        memo = {UNDO_SCOPE_MEMO: scope} if scope else None
        try:
            if (problem := workflow_id_problem(saga_id)) is not None:
                raise DefinitionError(problem)
            payload = to_payload(input, f"the input of {saga}")
            await self._context.wait_to_send(command, len(payload.data), lambda: False)
            handle = await workflow.start_child_workflow(
                saga,
                RawValue(payload),
                result_type=RawValue,
                id=saga_id,
                memo=memo,
                static_summary=run_summary(f"{'↩ undo for' if undo else 'part of'} {workflow.info().workflow_id}"),
                # The parent cancels by signal and waits for the end; Temporal must not cancel the child on its own.
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            )
            self._started[id] = handle
            output = activity_result(await handle)
            view = SagaView(id=saga_id, saga=saga, state="COMPENSATED" if undo else "COMPLETED", output=output)
            if saga_id in self._residue_reports:
                # It closed as Completed, but has reported a residue past its commit point, or rows that it has locked.
                report = self._residue_reports.pop(saga_id)
                view = SagaView.from_json({**report, "saga": saga, "output": output})
                state = state if view.state == "COMPLETED" else "RESIDUE"
        except DefinitionError as error:
            state, view = "REFUSED", refused_view(saga_id, saga, str(error))
        except WorkflowAlreadyStartedError:
            state, view = "REFUSED", refused_view(saga_id, saga, f"a run with the id {saga_id} already exists")
        except ChildWorkflowError as error:
            state, view = child_result(error, saga_id, saga)
        self._started.pop(id, None)
        self._context.tasks.discard(id)
        self._context.report(SagaEnded(id=id, state=state, at=workflow.time(), view=view))  # pyright: ignore[reportArgumentType]

    async def _signal_cancel(self, command: CancelSaga) -> None:
        # A signal to a child that has not started yet would be lost.
        await workflow.wait_condition(lambda: command.id in self._started or command.id not in self._context.tasks)
        self._context.tasks.discard(f"cancel {command.id}")
        child = self._started.get(command.id)
        if child is None:
            return
        try:
            await child.signal(CANCEL_SIGNAL, command.message)
        except ApplicationError as error:
            # It has already ended, and its SagaEnded follows.
            workflow.logger.info("nested saga %s not cancelled: %s", command.saga_id, error)


class ParkedReports:
    """Reports of this run to its parent saga, sent one at a time so that they arrive in order."""

    def __init__(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._next: ReportParked | None = None

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
            await _signal(parent, PARKED_SIGNAL, {**message, "waits": list(report.waits)})
        self._tasks.discard(_REPORTING)


def parked_report(sent: RawValue) -> ChildParked | None:
    """The report sent by :class:`ParkedReports` of a nested saga, as an event; None if it is malformed."""
    try:
        report = bounded_value([sent])
        id, waits = report["id"], report["waits"]
        ChildView.from_json({"id": id, "step": "", "saga": "", "state": report["state"], "waits": waits})
        undo = id.endswith(UNDO_SUFFIX)
        own = id.removesuffix(UNDO_SUFFIX)
        return ChildParked(own, undo, report["state"], report["blocked"], waits, workflow.time())
    except _MALFORMED as error:
        workflow.logger.warning("report of a parked step ignored: it is malformed (%s)", error)
        return None


async def signal_residue_to_parent(parent: workflow.ParentInfo, document: Mapping[str, Any]) -> None:
    """Report a residue and locked rows to the parent: a nested saga that closes as Completed returns its output."""
    report = {name: document[name] for name in ("id", "state", "phase", "committed_at", "residue")}
    if document.get("row_locks"):
        report["row_locks"] = document["row_locks"]
    await _signal(parent, RESIDUE_SIGNAL, report)


async def _signal(parent: workflow.ParentInfo, name: str, report: Mapping[str, Any]) -> None:
    try:
        await workflow.get_external_workflow_handle(parent.workflow_id, run_id=parent.run_id).signal(
            name, raw_json(report)
        )
    except FailureError as error:
        workflow.logger.info("parent %s has ended, report not sent: %s", parent.workflow_id, error)
