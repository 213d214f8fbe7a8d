"""The worker that performs a call of a workflow task: that of the task, without a poll in between, or any."""

from __future__ import annotations

from typing import Any

from temporalio import worker, workflow

from saga_workers.temporal.run_interceptor import RunInterceptor
from sagas.workflow.any_worker import is_for_any_worker


class EagerCallsInterceptor(RunInterceptor):
    """Worker interceptor that sends a call to any worker which this one may lack something for."""

    def __init__(self) -> None:
        super().__init__(_Inbound)


class _Inbound(worker.WorkflowInboundInterceptor):
    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(worker.WorkflowOutboundInterceptor):
    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.disable_eager_execution = input.disable_eager_execution or is_for_any_worker()
        return super().start_activity(input)
