"""Changes of a run that an operator makes with Temporal's own tools."""

from __future__ import annotations

import uuid
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.temporal.temporal_runs import describe_run
from tests.helpers.waiting import until

FIRST_TASK = 4
"""The event at which the first workflow task of a saga is completed."""


async def reset_run(
    temporal: Temporal, id: str, task: int = FIRST_TASK, *, run_id: str | None = None, keeps_signals: bool = True
) -> str:
    """Reset a run of the id, the newest one without ``run_id``, to the event at which a workflow task was completed;
    gives the id of the new run.

    What the run has received later is applied to the new one, unless ``keeps_signals`` is false.
    """
    described = await temporal.get_workflow_handle(id, run_id=run_id).describe()
    excluded = [] if keeps_signals else [ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL]
    request = ResetWorkflowExecutionRequest(
        namespace=temporal.namespace,
        workflow_execution=WorkflowExecution(workflow_id=id, run_id=described.run_id),
        reason="a test",
        workflow_task_finish_event_id=task,
        request_id=str(uuid.uuid4()),
        reset_reapply_exclude_types=excluded,
    )
    return (await temporal.workflow_service.reset_workflow_execution(request)).run_id


async def delete_run(temporal: Temporal, id: str, run_id: str = "") -> None:
    """Delete a run of the id, the newest one without ``run_id``, and wait until Temporal does not know it any more."""
    await request_deletion(temporal, id, run_id)

    async def is_gone() -> bool:
        return await describe_run(temporal, id, run_id) is None

    await until(is_gone)


async def request_deletion(temporal: Temporal, id: str, run_id: str = "") -> None:
    """Ask Temporal to delete a run of the id, the newest one without ``run_id``, which it does a little later."""
    request = DeleteWorkflowExecutionRequest(
        namespace=temporal.namespace, workflow_execution=WorkflowExecution(workflow_id=id, run_id=run_id)
    )
    await temporal.workflow_service.delete_workflow_execution(request)


async def take_id(temporal: Temporal, id: str, saga: str, input: Any, *, task_queue: str) -> WorkflowHandle[Any, Any]:
    """Start a saga under the id of another one, whose run that ends, as no client of the project does."""
    conflict = WorkflowIDConflictPolicy.TERMINATE_EXISTING
    return await temporal.start_workflow(saga, input, id=id, task_queue=task_queue, id_conflict_policy=conflict)
