"""A cancel in Temporal interrupts the task of a run only, whatever the SDK applies first in a workflow task."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowUpdateStage
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sagas.workflow.waits import wait_until
from tests.helpers.processes import TemporalServer
from tests.helpers.sdk_flags import SINGLE_BATCH, default_flags


@workflow.defn(name="waiting")
class Waiting:
    """Waits in the task of the run, in three others and in an update; its result says how the three have ended."""

    def __init__(self) -> None:
        self._is_cancelled = False
        self._ends: dict[str, str] = {}

    async def _wait(self, name: str, timeout: float | None = None) -> None:
        try:
            is_met = await wait_until(lambda: name == "met" and self._is_cancelled, timeout=timeout)
        except asyncio.CancelledError:
            self._ends[name] = "interrupted"
            raise
        self._ends[name] = "met" if is_met else "timeout"

    @workflow.run
    async def run(self) -> dict[str, str]:
        tasks = [
            asyncio.create_task(self._wait("met")),
            asyncio.create_task(self._wait("timed", 1.0)),
            asyncio.create_task(self._wait("stopped")),
        ]
        try:
            await wait_until(lambda: False)
        except asyncio.CancelledError:
            self._is_cancelled = True
        await asyncio.sleep(0)
        tasks[2].cancel()
        await wait_until(lambda: all(task.done() for task in tasks))
        return self._ends

    @workflow.update
    async def until_cancelled(self) -> bool:
        return await wait_until(lambda: self._is_cancelled)


@pytest.mark.parametrize("flags", [(), (SINGLE_BATCH,)], ids=["in turn", "single batch"])
async def test_a_cancel_interrupts_the_task_of_the_run_only(temporal: TemporalServer, flags: Any) -> None:
    client, queue = await Client.connect(temporal.address), f"waits-{uuid.uuid4()}"
    with default_flags(*flags):
        worker = Worker(client, task_queue=queue, workflows=[Waiting], workflow_runner=UnsandboxedWorkflowRunner())
    async with worker:
        handle = await client.start_workflow(Waiting.run, id=queue, task_queue=queue)
        update = await handle.start_update(Waiting.until_cancelled, wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        await handle.cancel()
        assert await handle.result() == {"met": "met", "timed": "timeout", "stopped": "interrupted"}
        assert await update.result() is True
