"""Runs nested sagas, and undo runs of nested sagas, as child workflows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ChildWorkflowError, FailureError, WorkflowAlreadyStartedError

from sagas.builtins.signal_names import CANCEL_SIGNAL
from sagas.definition.saga_ids import workflow_id_problem
from sagas.input_limits import MAX_CANCEL_WORDS, MAX_INPUT_VALUES
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.machine import Machine
from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.messages import CancelSaga, ChildState, RollBackSaga, SagaEnded, StartSaga, UndoSaga
from sagas.protocol.nested_result import completed_child
from sagas.protocol.origin import root_start_of
from sagas.protocol.payloads import (
    CANCELLED_MEMO,
    REPEATS_MEMO,
    ROOT_START_MEMO,
    SENSITIVE_MEMO,
    UNDO_SCOPE_MEMO,
    UNDO_SUFFIX,
)
from sagas.protocol.saga_view import ReasonView, SagaView
from sagas.workflow.client_fields import MALFORMED
from sagas.workflow.earlier_children import EarlierChild
from sagas.workflow.failures import child_result, refused_view
from sagas.workflow.json_payloads import activity_result, raw_json
from sagas.workflow.limits import to_payload
from sagas.workflow.parked_reports import parked_event
from sagas.workflow.run_trust import signed_message
from sagas.workflow.summaries import run_summary
from sagas.workflow.task_set import CommandContext
from sagas.workflow.undo_order import undo_recipient
from sagas.workflow.waits import wait_until

_End = tuple[ChildState, SagaView | None]
_Command = StartSaga | RollBackSaga | UndoSaga

_NO_INPUT = (
    "Temporal has no run of it any more, and it cannot be started again, because its input needs results that this run "
    "does not have: undo by hand what its guards and participants know of it, then decide `done`"
)


class NestedSagas:
    """The nested sagas of one run."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._started: dict[str, workflow.ChildWorkflowHandle[Any, Any]] = {}
        self._starts: dict[str, StartSaga | UndoSaga] = {}
        self._earlier: dict[str, EarlierChild] = {}
        self._machine: Machine | None = None
        self._root_start: str | None = None

    def begin(self, machine: Machine) -> None:
        """The saga has started, or goes on in this run."""
        self._machine = machine

    def start(self, command: StartSaga) -> None:
        self._context.tasks.start(command.id, self._run(command, command.saga_id))

    def undo(self, command: UndoSaga) -> None:
        self._context.tasks.start(command.id, self._run(command, command.saga_id + UNDO_SUFFIX))

    def roll_back(self, command: RollBackSaga) -> None:
        self._context.tasks.start(command.id, self._roll_back(command))
        self.cancel(CancelSaga(command.id, command.saga_id, command.message))

    def take_up(self, command: StartSaga | UndoSaga) -> None:
        """Wait for the end of a nested saga, or undo, that was in flight when an earlier run was terminated."""
        undo = UNDO_SUFFIX if isinstance(command, UndoSaga) else ""
        self._context.tasks.start(command.id, self._take_up(command, command.saga_id + undo))

    def take_up_started(self) -> None:
        """Ask for the ends of those that this run has started: it was reset, so Temporal may have told them to another
        run, and tells each of them once.
        """
        for id, command in list(self._starts.items()):
            self._forget(id)
            self.take_up(command)  # instead of the task that waits for Temporal

    def cancel(self, command: CancelSaga) -> None:
        self._context.tasks.start(f"cancel {command.id}", self._signal_cancel(command))

    async def _run(self, command: StartSaga | UndoSaga, saga_id: str) -> None:
        end = await self._end_of_earlier(command, saga_id, waits=False) if command.repeats else None
        while end is None:
            end = await self._start(command, saga_id)
            if not self._context.tasks.is_current(command.id):
                return  # :meth:`take_up_started` has begun another one
        if isinstance(command, UndoSaga) and end[0] == "REFUSED":
            end = await self._roll_back_refused(command, end)
        self._report_end(command, *end)

    async def _roll_back(self, command: RollBackSaga) -> None:
        end = await self._end_of_earlier(command, command.saga_id, waits=True)
        self._report_end(command, *(end or ("REFUSED", None)))

    async def _roll_back_refused(self, command: UndoSaga, refused: _End) -> _End:
        """The end of an undo that was refused: the nested saga may run again, or its run may be deleted."""
        self._forget(command.id)
        self.cancel(CancelSaga(command.id, command.saga_id, command.message))
        answer = await self._ask(command, command.saga_id, undone=True)
        match answer["state"]:
            case "COMPENSATED" | "RESIDUE":
                return answer["state"], read_foreign_view(answer["view"], command.saga_id)
            case "FOREIGN":
                taken = _taken(command.saga_id, answer["holder"], answer["effects"])
                return "REFUSED", refused_view(command.saga_id, command.saga, taken)
            case "GONE" if answer["why"] is not None:
                return "REFUSED", refused_view(command.saga_id, command.saga, answer["why"])
            case "GONE":
                return await self._start_to_cancel(command) or refused
            case _:
                return refused

    async def _start_to_cancel(self, command: UndoSaga) -> _End | None:
        """Start a nested saga whose run was deleted again: it undoes what that had done."""
        if command.again is None:
            return "REFUSED", refused_view(command.saga_id, command.saga, _NO_INPUT)
        return await self._start(replace(command.again, id=command.id), command.saga_id)

    async def _start(self, command: StartSaga | UndoSaga, saga_id: str) -> _End | None:
        """Start the nested saga and wait for its end; None if a run was in the way that is over without an end."""
        saga, undo = command.saga, isinstance(command, UndoSaga)
        try:
            if (problem := workflow_id_problem(saga_id)) is not None:
                raise DefinitionError(problem)
            payload = to_payload(_input_of(command, saga_id), f"the input of {saga}")
            await self._context.wait_to_send(command, len(payload.data), lambda: False)
            handle = await workflow.start_child_workflow(
                saga,
                RawValue(payload),
                result_type=RawValue,
                id=saga_id,
                memo=_memo_of(command, self._start_of_root()),
                static_summary=run_summary(f"{'↩ undo for' if undo else 'part of'} {workflow.info().workflow_id}"),
                # The parent cancels by signal and waits for the end; Temporal must not cancel the child on its own.
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            )
            self._started[command.id], self._starts[command.id] = handle, command
            return completed_child(activity_result(await handle, around=MAX_INPUT_VALUES), saga_id, saga)
        except DefinitionError as error:
            return "REFUSED", refused_view(saga_id, saga, str(error))
        except WorkflowAlreadyStartedError:
            return await self._end_of_earlier(command, saga_id, waits=True)
        except ChildWorkflowError as error:
            return child_result(error.cause, saga_id, saga)

    async def _take_up(self, command: StartSaga | UndoSaga, saga_id: str) -> None:
        end = await self._end_of_earlier(command, saga_id, waits=True)
        if end is None:
            await self._run(command, saga_id)
        else:
            self._report_end(command, *end)

    async def _ask(self, command: _Command, saga_id: str, *, undone: bool = False) -> Mapping[str, Any]:
        """Wait for the end of a nested saga that was started before, and return what :class:`EarlierChild` does."""
        self._earlier[command.id] = child = EarlierChild(saga_id, self._start_of_root(), undone=undone)
        answer = await child.end(lambda running: self._report_parked(saga_id, running))
        del self._earlier[command.id]
        return answer

    def _start_of_root(self) -> str:
        if self._root_start is None:
            assert self._machine is not None
            self._root_start = root_start_of(self._machine.origin())
        return self._root_start

    async def _end_of_earlier(self, command: _Command, saga_id: str, *, waits: bool) -> _End | None:
        """The end of the nested saga that was started before; None if it is to be started, because no step of it ran.

        ``waits``: its end is waited for, so one that nobody can tell is for an operator. Otherwise it is about to be
        started, and then what was deleted, or is not believed, is repeated.
        """
        answer = await self._ask(command, saga_id)
        view = answer.get("view")
        match answer["state"]:
            case "REFUSED":
                return None
            case "FREE" if not isinstance(command, RollBackSaga):
                return None
            case "FOREIGN":
                is_unknown = isinstance(command, RollBackSaga) or answer["effects"]
                taken = refused_view(saga_id, command.saga, _taken(saga_id, answer["holder"], answer["effects"]))
                return "TERMINATED" if is_unknown else "REFUSED", taken
            case "GONE" | "UNSIGNED" if not waits:
                return None
            case "GONE" | "FREE":
                return "TERMINATED", None
            case "UNSIGNED":
                return "TERMINATED", _unbelieved_view(saga_id, command.saga)
            case state:
                return state, None if view is None else read_foreign_view(view, saga_id)

    def _report_parked(self, saga_id: str, running: Mapping[str, Any]) -> None:
        """Report what the nested saga would have reported to the run that has started it."""
        parked = {"id": saga_id, "state": running["saga_state"], "blocked": running["blocked"]}
        try:
            event = parked_event({**parked, "waits": running["waits"]})
        except MALFORMED as error:
            workflow.logger.warning("parked steps of %s are not shown: they are malformed (%s)", saga_id, error)
        else:
            self._context.report(event)

    def _report_end(self, command: _Command, state: ChildState, view: SagaView | None) -> None:
        if not self._context.tasks.is_current(command.id):
            return
        self._forget(command.id)
        self._context.tasks.discard(command.id)
        self._context.report(SagaEnded(id=command.id, state=state, at=workflow.time(), view=view))

    def _forget(self, id: str) -> None:
        self._started.pop(id, None)
        self._starts.pop(id, None)

    async def _signal_cancel(self, command: CancelSaga) -> None:
        # A signal to a child that has not started yet would be lost.
        await wait_until(lambda: self._is_reachable(command.id) or command.id not in self._context.tasks)
        self._context.tasks.discard(f"cancel {command.id}")
        if (earlier := self._earlier.get(command.id)) is not None:
            assert earlier.open_run is not None
            workflow_id, run_id = earlier.open_run
            child = workflow.get_external_workflow_handle(workflow_id)
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
        return id in self._started or (earlier is not None and earlier.open_run is not None)


def _input_of(command: StartSaga | UndoSaga, saga_id: str) -> Any:
    if isinstance(command, StartSaga):
        return command.input
    info = workflow.info()
    to = undo_recipient(saga_id, info.run_id)
    return signed_message("undo", to, {"reason": command.message, "who": info.workflow_id})


def _memo_of(command: StartSaga | UndoSaga, root_start: str) -> dict[str, Any]:
    memo: dict[str, Any] = {ROOT_START_MEMO: root_start}
    if isinstance(command, StartSaga) and command.undo_scope:
        memo[UNDO_SCOPE_MEMO] = command.undo_scope
    if isinstance(command, StartSaga) and command.sensitive:
        memo[SENSITIVE_MEMO] = [list(path) for path in command.sensitive]
    if isinstance(command, StartSaga) and command.repeats:
        memo[REPEATS_MEMO] = True if command.since is None else command.since
    if isinstance(command, StartSaga) and command.cancelled:
        memo[CANCELLED_MEMO] = command.cancelled[:MAX_CANCEL_WORDS]
    return memo


def _taken(saga_id: str, holder: str, effects: str) -> str:
    taken = f"a run with the id {saga_id} already exists, which this saga has not started: {holder}"
    if not effects:
        return taken
    then = "undoes the nested saga" if saga_id.endswith(UNDO_SUFFIX) else "starts the nested saga again"
    return (
        f"{taken}; the effects of the nested saga stay ({effects}): end that run, or wait for its end; then `retry` "
        f"{then}"
    )


def _unbelieved_view(saga_id: str, saga: str) -> SagaView:
    message = (
        f"what the run of the nested saga {saga_id} says of its end is not signed by this project, so it does not "
        "count: look in Temporal who has started it; `retry` starts the nested saga again"
    )
    return SagaView(id=saga_id, saga=saga, state="TERMINATED", reason=ReasonView(kind="unknown", message=message))
