"""When the clean-up of the stage area takes a saga for ended, on a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import PauseWorkflowExecutionRequest
from temporalio.client import Client

from saga_workers.ledger.run_ledger import NoLedger
from saga_workers.location.locator import Locator
from saga_workers.worker.stage_upkeep import liveness_of
from tests.helpers.processes import TemporalServer


@pytest.fixture
def pausing_server(tmp_path: Path) -> Iterator[TemporalServer]:
    with TemporalServer(tmp_path / "temporal", extra=["frontend.WorkflowPauseEnabled=true"]) as server:
        yield server


async def test_a_run_that_is_paused_in_temporal_is_open(pausing_server: TemporalServer) -> None:
    """The SDK's own description raises for it, which would end the clean-up of this worker for good."""
    client = await Client.connect(pausing_server.address)
    locator = Locator(client, NoLedger())
    id = f"load-{uuid.uuid4()}"
    handle = await client.start_workflow("load", id=id, task_queue=id)
    await client.workflow_service.pause_workflow_execution(
        PauseWorkflowExecutionRequest(namespace=client.namespace, workflow_id=id, identity="ada")
    )
    assert await liveness_of(locator, id) == "open"
    await handle.terminate()
    assert await liveness_of(locator, id) == "terminated"
    assert await liveness_of(locator, f"{id}-other") == "unknown"
