"""Answers the Web UI's question for a run's current details when it is asked.

Telling Temporal after every event would cost a tenth of the worker's time, for texts that are mostly never read.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.worker import (
    HandleQueryInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from sagas.workflow import SagaWorkflow

_METADATA = "__temporal_workflow_metadata"
"""The query by which the Web UI asks; part of Temporal's contract between servers and SDKs."""


class DetailsInterceptor(Interceptor):
    """Give this to a worker."""

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        """Temporal calls this once per run."""
        return _Details


class _Details(WorkflowInboundInterceptor):
    async def handle_query(self, input: HandleQueryInput) -> Any:
        answer = await super().handle_query(input)
        if input.query == _METADATA and isinstance(saga := workflow.instance(), SagaWorkflow):
            answer.current_details = saga.details()
        return answer
