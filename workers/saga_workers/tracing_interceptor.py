"""Carries the trace context through Temporal: starter → saga → attempts and nested sagas → the saga's next run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from temporalio import client, worker, workflow
from temporalio.exceptions import FailureError

from saga_workers.tracing import Carrier, Place, Tracing, current_carrier, read_header, under, with_header
from sagas.wire import UNDO_SUFFIX
from sagas.workflow import SagaWorkflow

_TRACING = "saga_tracing"


class TracingInterceptor(client.Interceptor, worker.Interceptor):
    """For a client (it sends the caller's trace along) and for a worker."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        return _Starts(next)

    def intercept_activity(self, next: worker.ActivityInboundInterceptor) -> worker.ActivityInboundInterceptor:
        return _Attempts(next)

    def workflow_interceptor_class(
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[worker.WorkflowInboundInterceptor] | None:
        input.unsafe_extern_functions.update({_TRACING: lambda: self._tracing})  # pyright: ignore[reportCallIssue]
        return _Sagas


class _Starts(client.OutboundInterceptor):
    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[Any, Any]:
        input.headers = with_header(input.headers, current_carrier())
        return await super().start_workflow(input)


class _Attempts(worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: worker.ExecuteActivityInput) -> Any:
        with under(read_header(input.headers)):
            return await super().execute_activity(input)


class _Sagas(worker.WorkflowInboundInterceptor):
    """One per run; hands its place in the trace to everything the run starts."""

    place: Place | None = None

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self))

    async def execute_workflow(self, input: worker.ExecuteWorkflowInput) -> Any:
        saga = workflow.instance()
        if not isinstance(saga, SagaWorkflow):
            return await super().execute_workflow(input)
        get_tracing: Callable[[], Tracing] = workflow.extern_functions()[_TRACING]
        info = workflow.info()
        # The first run's id stands for the whole chain of runs.
        self.place = get_tracing().place(info.workflow_type, info.first_execution_run_id, read_header(input.headers))
        try:
            result = await super().execute_workflow(input)
        except FailureError:
            # Leaving by any other way is no end: continued as new, or put out of the worker's memory.
            _ended(get_tracing(), self.place, saga)
            raise
        _ended(get_tracing(), self.place, saga)
        return result


def _ended(tracing: Tracing, place: Place, saga: SagaWorkflow) -> None:
    if workflow.unsafe.is_replaying():
        return
    info, finish = workflow.info(), saga.ended
    undo = info.workflow_id.endswith(UNDO_SUFFIX)
    began = info.start_time.timestamp() if undo or saga.started_at is None else saga.started_at
    attributes = {
        "saga.id": info.workflow_id.removesuffix(UNDO_SUFFIX),
        "saga.name": info.workflow_type,
        "saga.outcome": finish.state if finish is not None else "REFUSED",
    }
    if finish is not None and finish.reason is not None:
        attributes["saga.reason"] = finish.reason.get("kind") or ""
    bad = finish is None or finish.state == "RESIDUE"
    tracing.saga_ended(place, info.workflow_type, attributes, began=began, ended=workflow.time(), bad=bad)


class _Outbound(worker.WorkflowOutboundInterceptor):
    def __init__(self, next: worker.WorkflowOutboundInterceptor, root: _Sagas) -> None:
        super().__init__(next)
        self._root = root

    def _carrier(self) -> Carrier:
        return self._root.place.carrier if self._root.place is not None else {}

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = with_header(input.headers, self._carrier())
        return super().start_activity(input)

    def start_local_activity(self, input: worker.StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = with_header(input.headers, self._carrier())
        return super().start_local_activity(input)

    async def start_child_workflow(
        self, input: worker.StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        input.headers = with_header(input.headers, self._carrier())
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: worker.ContinueAsNewInput) -> NoReturn:
        if self._root.place is not None:
            # The next run stands in the same place, so it is told of the same caller.
            input.headers = with_header(input.headers, self._root.place.caller)
        super().continue_as_new(input)
