"""Runs nested sagas, and undo runs of nested sagas, as child workflows, and signals between parent and child."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ChildWorkflowError, FailureError, WorkflowAlreadyStartedError

from sagas.definition.saga_ids import workflow_id_problem
from sagas.input_limits import MAX_CANCEL_WORDS, MAX_INPUT_VALUES
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.messages import (
    CancelRequested,
    CancelSaga,
    ChildParked,
    ChildState,
    Finish,
    ReportParked,
    SagaEnded,
    StartSaga,
    UndoSaga,
)
from sagas.protocol.payloads import CANCEL_SIGNAL, PARKED_SIGNAL, UNDO_SCOPE_MEMO, UNDO_SUFFIX
from sagas.protocol.saga_view import ChildView, SagaView
from sagas.text.json_values import encodable
from sagas.workflow.client_values import LAST_SECOND, number
from sagas.workflow.earlier_children import EarlierChild
from sagas.workflow.failures import child_result, refused_view
from sagas.workflow.json_payloads import UnreadableValue, raw_json
from sagas.workflow.limits import to_payload
from sagas.workflow.received import NO_INPUT, activity_result, bounded_value
from sagas.workflow.run_trust import UNTRUSTED, is_untrusted, run_trust, signed_message
from sagas.workflow.summaries import run_summary
from sagas.workflow.task_set import CommandContext, TaskSet

_REPORTING = "report to the parent"

_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, UnreadableValue)
"""The errors of reading a malformed report. Any client can send its signal."""


class NestedSagas:
    """The nested sagas of one run."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._started: dict[str, workflow.ChildWorkflowHandle[Any, Any]] = {}
        self._earlier: dict[str, EarlierChild] = {}

    def start(self, command: StartSaga) -> None:
        self._context.tasks.start(command.id, self._run(command, command.saga_id, command.input))

    def undo(self, command: UndoSaga) -> None:
        request = {"reason": command.message, "who": workflow.info().workflow_id}
        self._context.tasks.start(command.id, self._run(command, command.saga_id + UNDO_SUFFIX, request))

    def take_up(self, command: StartSaga | UndoSaga) -> None:
        """Wait for the end of a nested saga, or undo, that was in flight when an earlier run was terminated."""
        undo = UNDO_SUFFIX if isinstance(command, UndoSaga) else ""
        self._context.tasks.start(command.id, self._take_up(command, command.saga_id + undo))

    def cancel(self, command: CancelSaga) -> None:
        self._context.tasks.start(f"cancel {command.id}", self._signal_cancel(command))

    async def _run(self, command: StartSaga | UndoSaga, saga_id: str, input: Any) -> None:
        saga, undo = command.saga, saga_id.endswith(UNDO_SUFFIX)
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
            self._started[command.id] = handle
            end = completed_child(activity_result(await handle, around=MAX_INPUT_VALUES), saga_id, saga)
        except DefinitionError as error:
            end = "REFUSED", refused_view(saga_id, saga, str(error))
        except WorkflowAlreadyStartedError:
            taken = f"a run with the id {saga_id} already exists, which this saga has not started"
            end = await self._end_of_earlier(command, saga_id) or ("REFUSED", refused_view(saga_id, saga, taken))
        except ChildWorkflowError as error:
            end = child_result(error.cause, saga_id, saga)
        self._report_end(command, *end)

    async def _take_up(self, command: StartSaga | UndoSaga, saga_id: str) -> None:
        self._report_end(command, *(await self._end_of_earlier(command, saga_id) or ("TERMINATED", None)))

    async def _end_of_earlier(
        self, command: StartSaga | UndoSaga, saga_id: str
    ) -> tuple[ChildState, SagaView | None] | None:
        """The end of the nested saga that another run of this one has started; None if the id is somebody else's."""
        self._earlier[command.id] = child = EarlierChild(saga_id)
        answer = await child.end(lambda running: self._report_parked(saga_id, running))
        if answer["state"] == "FOREIGN":
            return None
        if answer["state"] == "COMPLETED":
            return completed_child(answer["result"], saga_id, command.saga)
        view = answer.get("view")
        return answer["state"], None if view is None else read_foreign_view(view, saga_id)

    def _report_parked(self, saga_id: str, running: Mapping[str, Any]) -> None:
        """Report what the nested saga would have reported to the run that has started it."""
        parked = {"id": saga_id, "state": running["saga_state"], "blocked": running["blocked"]}
        try:
            event = _parked_event({**parked, "waits": running["waits"]})
        except _MALFORMED as error:
            workflow.logger.warning("parked steps of %s are not shown: they are malformed (%s)", saga_id, error)
        else:
            self._context.report(event)

    def _report_end(self, command: StartSaga | UndoSaga, state: ChildState, view: SagaView | None) -> None:
        self._started.pop(command.id, None)
        self._earlier.pop(command.id, None)
        self._context.tasks.discard(command.id)
        self._context.report(SagaEnded(id=command.id, state=state, at=workflow.time(), view=view))

    async def _signal_cancel(self, command: CancelSaga) -> None:
        # A signal to a child that has not started yet would be lost.
        await workflow.wait_condition(lambda: self._is_reachable(command.id) or command.id not in self._context.tasks)
        self._context.tasks.discard(f"cancel {command.id}")
        if (earlier := self._earlier.get(command.id)) is not None:
            child, run_id = workflow.get_external_workflow_handle(earlier.saga_id), earlier.run_id
        elif (started := self._started.get(command.id)) is not None:
            child, run_id = started, started.first_execution_run_id
        else:
            return
        try:
            message = signed_message("cancel", [child.id, run_id or ""], {"reason": command.message})
            await child.signal(CANCEL_SIGNAL, raw_json(message))
        except FailureError as error:
            # It has already ended, and its SagaEnded follows.
            workflow.logger.info("nested saga %s not cancelled: %s", command.saga_id, error)
        if earlier is not None:
            earlier.cancelled = True

    def _is_reachable(self, id: str) -> bool:
        earlier = self._earlier.get(id)
        return id in self._started or (earlier is not None and earlier.run_id is not None)


class ParentCancels:
    """The cancels that this run receives by signal. One that is signed for it is from its parent saga; any other is a
    client's, like a cancel by Temporal.
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
        marker, info = f"{UNTRUSTED} cancel {self._received}", workflow.info()
        this = [info.workflow_id, info.first_execution_run_id]
        return not is_untrusted(run_trust(), lambda trust: trust.trusts_message("cancel", this, request), marker)


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
            await _signal(parent, PARKED_SIGNAL, signed_message("report", to, message))
        self._tasks.discard(_REPORTING)

    def receive(self, sent: RawValue) -> ChildParked | None:
        """The report of a nested saga as an event; None if it is malformed, or anything else than its latest one."""
        try:
            report = bounded_value([sent])
            event = _parked_event(report)
            at = number(report["at"], 0, LAST_SECOND)
        except _MALFORMED as error:
            workflow.logger.warning("report of a parked step ignored: it is malformed (%s)", error)
            return None
        if at <= self._last.get(report["id"], -1.0):
            workflow.logger.warning("report of a parked step of %s ignored: it was sent before", report["id"])
            return None
        self._received += 1
        marker, info = f"{UNTRUSTED} report {self._received}", workflow.info()
        this = [info.workflow_id, info.run_id]
        if is_untrusted(run_trust(), lambda trust: trust.trusts_message("report", this, report), marker):
            workflow.logger.warning(
                "report of a parked step of %s ignored: it is not signed for this run", report["id"]
            )
            return None
        self._last[report["id"]] = at
        return event


def _parked_event(report: Mapping[str, Any]) -> ChildParked:
    """Raises one of ``_MALFORMED``."""
    id, waits = report["id"], report["waits"]
    ChildView.from_json({"id": id, "step": "", "saga": "", "state": report["state"], "waits": waits})
    if not isinstance(report["blocked"], bool):
        raise TypeError("blocked is neither true nor false")
    undo = id.endswith(UNDO_SUFFIX)
    return ChildParked(id.removesuffix(UNDO_SUFFIX), undo, report["state"], report["blocked"], waits, workflow.time())


_REPORT = "_saga"


def result_for_parent(output: Any, finish: Finish, document: Mapping[str, Any]) -> Any:
    """The result of a nested saga that closes as Completed: its output, with what its parent must know besides.

    Only the run itself can say that: a signal, or the memo of its start, could be from any client.
    """
    report: dict[str, Any] = {}
    locks = document.get("row_locks")
    if (finish.state == "RESIDUE" and finish.committed) or (finish.state == "COMPLETED" and locks):
        report = {name: document[name] for name in ("state", "phase", "committed_at", "residue")}
        if locks:
            report["row_locks"] = locks
    if not report and not (isinstance(output, dict) and _REPORT in output):
        return output
    return {_REPORT: report, "output": output}


def completed_child(result: Any, saga_id: str, saga: str) -> tuple[ChildState, SagaView]:
    """The state and the view of a nested saga that closed as Completed, from :func:`result_for_parent`.

    It may have a residue past its commit point, or rows that it has locked.
    """
    state = "COMPENSATED" if saga_id.endswith(UNDO_SUFFIX) else "COMPLETED"
    output, report = split_result(result)
    document = {"state": state, **report, "id": saga_id, "saga": saga, "output": output}
    view = read_foreign_view(document, saga_id) or SagaView(id=saga_id, saga=saga, state=state, output=output)
    return state if view.state in ("COMPLETED", "COMPENSATED") else "RESIDUE", view


def split_result(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """The output, and the report, empty without one, from :func:`result_for_parent`."""
    if isinstance(result, dict) and isinstance(report := result.get(_REPORT), dict):
        return result.get("output"), report
    return result, {}


async def _signal(parent: workflow.ParentInfo, name: str, report: Mapping[str, Any]) -> None:
    try:
        await workflow.get_external_workflow_handle(parent.workflow_id, run_id=parent.run_id).signal(
            name, raw_json(report)
        )
    except FailureError as error:
        workflow.logger.info("parent %s has ended, report not sent: %s", parent.workflow_id, error)
