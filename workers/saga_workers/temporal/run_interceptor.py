"""Worker interceptors that see the workflows of a worker, and no activities."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from temporalio.worker import Interceptor, WorkflowInboundInterceptor, WorkflowInterceptorClassInput


class RunInterceptor(Interceptor):
    """Worker interceptor that puts one of its own in front of each run: ``intercept`` is called with the next one."""

    def __init__(self, intercept: Callable[[WorkflowInboundInterceptor], WorkflowInboundInterceptor]) -> None:
        self._intercept = intercept

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        """Called by Temporal once per run."""
        return cast("type[WorkflowInboundInterceptor]", self._intercept)
