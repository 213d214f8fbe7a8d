"""Sees sagas and their notifications begin and end, for the metrics and the log.

Once per run, never when a history is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from saga_workers.metrics import Metrics
from sagas.wire import UNDO_SUFFIX
from sagas.workflow import NotifyWorkflow, SagaWorkflow

_METRICS = "saga_metrics"


class WatchInterceptor(Interceptor):
    """Give this to a worker; what it sees is counted in ``metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        """Temporal calls this once per run."""
        input.unsafe_extern_functions.update({_METRICS: lambda: self._metrics})  # pyright: ignore[reportCallIssue]
        return _Watch


class _Watch(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        saga = workflow.instance()
        get_metrics: Callable[[], Metrics] = workflow.extern_functions()[_METRICS]
        if isinstance(saga, NotifyWorkflow):
            try:
                return await super().execute_workflow(input)
            finally:
                if saga.ended is not None and not workflow.unsafe.is_replaying():
                    get_metrics().notified(*saga.ended)
        if not isinstance(saga, SagaWorkflow):
            return await super().execute_workflow(input)
        info = workflow.info()
        undo = info.workflow_id.endswith(UNDO_SUFFIX)
        if info.continued_run_id is None and not undo and not workflow.unsafe.is_replaying():
            get_metrics().started(info.workflow_type)
        try:
            result = await super().execute_workflow(input)
        except FailureError as error:
            # Leaving by any other way is no end: continued as new, or put out of the worker's memory.
            _ended(saga, get_metrics(), error, undo)
            raise
        _ended(saga, get_metrics(), None, undo)
        return result


def _ended(saga: SagaWorkflow, metrics: Metrics, error: BaseException | None, undo: bool) -> None:
    finish = saga.ended
    if finish is None and not (isinstance(error, ApplicationError) and error.type == "SagaRefused"):
        return
    if workflow.unsafe.is_replaying():
        return
    name = workflow.info().workflow_type
    if finish is None:
        metrics.finished(name, "REFUSED", "refused", None)
        workflow.logger.warning("refused, nothing was run: %s", error)
        return
    reason = finish.reason or {}
    seconds = None if undo or saga.started_at is None else max(0.0, workflow.time() - saga.started_at)
    metrics.finished(name, finish.state, reason.get("kind") or "", seconds)
    if finish.state == "RESIDUE":
        workflow.logger.warning("RESIDUE: an effect stays or is missing, `saga show` names it")
    elif finish.state != "COMPLETED":
        where = f" at {reason['step']}" if reason.get("step") else ""
        workflow.logger.info("%s: %s%s: %s", finish.state, reason.get("kind"), where, reason.get("message"))
