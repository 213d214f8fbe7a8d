"""The engine's own workflows, started by any client of Temporal with several inputs."""

from __future__ import annotations

import uuid

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from sagas.protocol.payloads import (
    BATCH_PREFIX,
    BATCH_WORKFLOW,
    BULK_PREFIX,
    BULK_WORKFLOW,
    ENGINE_WORKFLOWS,
    NOTIFICATION_WORKFLOW,
    SCHEDULE_WORKFLOW,
)
from sagas.protocol.redelivery_names import REDELIVERY_WORKFLOW
from tests.integration.engine.environment import Environment

WAITING = """
    saga: waiting
    steps:
      - {id: asked, uses: wait, with: {signal: answer, timeout: 1h}}
"""
JSON = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{}"))
UNKNOWN = RawValue(Payload(metadata={"encoding": b"of/nobody"}, data=b"\xff"))
PREFIXES = {BATCH_WORKFLOW: BATCH_PREFIX, BULK_WORKFLOW: BULK_PREFIX}
REASONS = {
    BATCH_WORKFLOW: "the input of saga.batch cannot be read: it is more than one value",
    BULK_WORKFLOW: "the input of saga.bulk cannot be read: it is more than one value",
    NOTIFICATION_WORKFLOW: "saga.notify",
    REDELIVERY_WORKFLOW: "saga.redelivery",
    SCHEDULE_WORKFLOW: "the input of saga.schedule is not an order of a schedule",
}


@pytest.mark.parametrize("inputs", [[JSON] * 3, [JSON, UNKNOWN]], ids=["three", "an unknown encoding"])
@pytest.mark.parametrize("type", ENGINE_WORKFLOWS)
async def test_several_inputs_are_refused(env: Environment, type: str, inputs: list[RawValue]) -> None:
    async with env.serving(WAITING) as client:
        queue = client.project.settings.temporal.task_queue
        id = f"{PREFIXES.get(type, '')}{uuid.uuid4()}"
        run = await client.temporal.start_workflow(type, args=inputs, id=id, task_queue=queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert (cause.type, REASONS[type] in cause.message) == ("SagaRefused", True), cause.message
        events = [event.event_type async for event in run.fetch_history_events()]
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in events
