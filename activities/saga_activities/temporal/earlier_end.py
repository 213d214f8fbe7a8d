"""Looks whether a saga had ended before Temporal's reset made a new run from one of its runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest

_UNDONE = (
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED,
)


async def has_been_undone(since: float) -> dict[str, Any]:
    """``undone``: a run of the current activity's workflow has closed itself as Failed or Canceled since the saga
    started: it has been compensated. A reset terminates a run that is open. Earlier generations ended before.
    """
    info, started = activity.info(), datetime.fromtimestamp(float(since), UTC)
    quoted = (info.workflow_id or "").replace("\\", "\\\\").replace('"', '\\"')
    page = b""
    while True:
        request = ListWorkflowExecutionsRequest(
            namespace=info.namespace, query=f'WorkflowId = "{quoted}"', page_size=200, next_page_token=page
        )
        answer = await activity.client().workflow_service.list_workflow_executions(request)
        for run in answer.executions:
            if run.status in _UNDONE and run.close_time.ToDatetime(UTC) >= started:
                return {"undone": True}
        page = answer.next_page_token
        if not page:
            return {"undone": False}
