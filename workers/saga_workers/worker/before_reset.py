"""Looks up what a saga had done before Temporal's reset made a new run from one of its runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest

from saga_workers.location.traces import guarded_effects, highest_generations
from sagas.settings import Settings

_UNDONE = (
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED,
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED,
)


async def look_before_reset(settings: Settings, saga_id: str, pivot: str | None, since: float) -> dict[str, Any]:
    """Return what the saga had done. ``undone``: it was compensated, see :func:`_has_been_undone`; ``generations``: the
    highest of each entry in the guards, where it is not the first; ``pivot_done``: the effect of the pivot is in place.

    Raises SagaError for a guard that cannot be read.
    """
    effects = await guarded_effects(settings, saga_id)
    return {
        "undone": await _has_been_undone(since),
        "generations": highest_generations(effects),
        "pivot_done": any(effect.open and effect.entry == pivot for effect in effects),
    }


async def _has_been_undone(since: float) -> bool:
    """A run of the current activity's workflow has closed itself as Failed or Canceled since the saga started. A reset
    terminates a run that is open. Earlier generations ended before.
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
                return True
        page = answer.next_page_token
        if not page:
            return False
