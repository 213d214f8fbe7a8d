"""The gauge of the runs whose workflow task fails again and again: one appears, and goes when its worker is mended."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import connect
from saga_workers.worker import failing_task_gauges
from saga_workers.worker.failing_task_gauges import FailingTaskGauges
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until


@workflow.defn(dynamic=True)
class BrokenWorkflow:
    """A workflow with a bug in its code."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        raise RuntimeError("a bug")


async def test_a_run_counts_until_its_task_succeeds(
    temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_task_gauges, "GAUGE_MAX_AGE", 0.0)
    saga = f"mended-{uuid.uuid4().hex[:8]}"
    steps = "steps: [{id: rest, uses: wait, with: {signal: never, timeout: 1h, on_timeout: reject}}]"
    project = make_project(tmp_path, {"mended": f"saga: {saga}\n{steps}\n"}, [], address=temporal.address)
    client = Client(await connect(project.settings), project)
    gauges = FailingTaskGauges(client.temporal, lambda: project.definitions)

    async def counted() -> dict[str, float]:
        await gauges.refresh()
        samples = [sample for metric in gauges.collect() for sample in metric.samples]
        return {sample.labels["saga"]: sample.value for sample in samples if sample.labels["saga"] == saga}

    async def fails() -> bool:
        return await counted() == {saga: 2}

    async def is_mended() -> bool:
        return await counted() == {}

    queue = project.settings.temporal.task_queue
    broken = Worker(
        client.temporal, task_queue=queue, workflows=[BrokenWorkflow], workflow_runner=UnsandboxedWorkflowRunner()
    )
    async with broken:
        await asyncio.gather(*(client.start(saga, {}, id=f"{saga}-{number}") for number in range(2)))
        await until(fails)
    async with running_worker(project):
        await until(is_mended)
