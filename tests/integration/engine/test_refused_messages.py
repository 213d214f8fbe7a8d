"""An update that waits for a start learns why that is refused; otherwise it would only learn that the run has ended."""

from __future__ import annotations

import uuid

import pytest
from temporalio.client import WithStartWorkflowOperation, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError

from sagas.bulk.names import CLAIMED_UPDATE
from sagas.protocol.payloads import BULK_WORKFLOW, REFUSED_TYPE
from tests.integration.engine.environment import Environment


@pytest.mark.parametrize(("type", "update"), [("no-such-saga", "cancel"), (BULK_WORKFLOW, CLAIMED_UPDATE)])
async def test_it_is_answered_with_the_refusal(env: Environment, type: str, update: str) -> None:
    async with env.serving("saga: known\nsteps: [{id: a, uses: book, compensate: unbook}]") as client:
        assert env.project is not None
        start: WithStartWorkflowOperation[object, object] = WithStartWorkflowOperation(
            type,
            {"unknown": True},
            id=f"refused-{uuid.uuid4()}",
            task_queue=env.project.settings.temporal.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
        with pytest.raises(WorkflowUpdateFailedError) as failed:
            await client.temporal.execute_update_with_start_workflow(update, start_workflow_operation=start)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == REFUSED_TYPE
