"""Runs that a client without a key starts under ids of the project, as `saga serve` tells of them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from temporalio import workflow
from temporalio.client import Client as Temporal
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.helpers.processes import TemporalServer
from tests.integration.serve.test_start_over_http import Api, api, project

__all__ = ["api", "project"]  # fixtures


@workflow.defn(name="slow", sandboxed=False)
class Stranger:
    """Ends when its client says so."""

    @workflow.init
    def __init__(self, _: dict[str, Any]) -> None:
        self._may_end = False

    @workflow.run
    async def run(self, _: dict[str, Any]) -> None:
        await workflow.wait_condition(lambda: self._may_end)

    @workflow.signal
    def end(self) -> None:
        self._may_end = True


async def test_the_end_of_a_strangers_run_is_no_outcome(api: Api, temporal: TemporalServer) -> None:
    id, queue, runner = f"slow-{uuid.uuid4()}", f"stranger-{uuid.uuid4()}", UnsandboxedWorkflowRunner()
    client = await Temporal.connect(temporal.address)
    async with (
        Worker(client, task_queue=queue, workflows=[Stranger], workflow_runner=runner),
        api.client() as shop,
    ):
        handle = await client.start_workflow("slow", {}, id=id, task_queue=queue)
        waiting = asyncio.create_task(shop.post("/sagas/slow", json={"id": id, "input": {}, "wait": "30s"}))
        await asyncio.sleep(1)
        await handle.signal("end")
        answer = await waiting
        assert (answer.status_code, "no key of this project has signed" in answer.text) == (409, True), answer.text
        assert (await shop.get(f"/sagas/{id}")).json()["state"] == "TERMINATED"
