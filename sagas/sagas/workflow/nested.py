"""Runs nested sagas, and undo runs of nested sagas, as child workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ChildWorkflowError, FailureError, WorkflowAlreadyStartedError

from sagas.definition.saga_ids import workflow_id_problem
from sagas.input_limits import MAX_INPUT_VALUES
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.messages import CancelSaga, ChildState, SagaEnded, StartSaga, UndoSaga
from sagas.protocol.nested_result import completed_child
from sagas.protocol.payloads import CANCEL_SIGNAL, UNDO_SCOPE_MEMO, UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView
from sagas.workflow.client_fields import MALFORMED
from sagas.workflow.earlier_children import EarlierChild
from sagas.workflow.failures import child_result, refused_view
from sagas.workflow.json_payloads import activity_result, raw_json
from sagas.workflow.limits import to_payload
from sagas.workflow.parked_reports import parked_event
from sagas.workflow.run_trust import signed_message
from sagas.workflow.summaries import run_summary
from sagas.workflow.task_set import CommandContext


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
            event = parked_event({**parked, "waits": running["waits"]})
        except MALFORMED as error:
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
