"""A worker without the packages of Spark steps, in a project that has some: everything else works."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as Temporal

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import HeaderInterceptor
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import LIMIT
from tests.integration.spark.day_close_project import open_day_close_project

ROOT = Path(__file__).parents[4]
HIDDEN = "import sys\nsys.modules.update(dict.fromkeys(('pyspark', 'pandas', 'pyarrow', 'pyiceberg')))\n"
"""Python takes a module that is None there for one that is not installed."""

SENTENCE = (
    "Spark steps cannot run on this worker: the package pyspark is not installed; "
    "pip install 'saga-orchestrator[spark]'"
)
COUNTED = """
saga: counted
steps:
  - id: count
    uses: sql
    effect: none
    with: {connection: shop, run: select count(*) as n from orders}
output: {n: "${{ steps.count.result[0].n }}"}
"""


@pytest.mark.asyncio
async def test_spark_steps_wait_for_another_worker_with_a_reason(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    day_close = await open_day_close_project(tmp_path / "shop", server, temporal.address)
    (day_close.folder / "counted.saga.yaml").write_text(COUNTED)
    (tmp_path / "sitecustomize.py").write_text(HIDDEN)
    worker = WorkerProcess("worker", day_close.folder, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, fresh=True)
    worker.start(60.0)
    try:
        client = Client(await Temporal.connect(temporal.address, interceptors=[HeaderInterceptor()]), day_close.project)
        spark = f"day-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-02"}, id=spark)
        other = await client.start("counted", {}, id=f"counted-{uuid.uuid4()}")
        assert await other.result() == {"n": 12}
        step = await _waiting_step(client, spark)
        assert step["state"] == "RUNNING"
        await client.cancel(spark, reason="not today", who="test")
        assert (await finished(client, spark, "120s"))["state"] == "COMPENSATED"
    finally:
        worker.stop()
    assert worker.log.read_text().count(SENTENCE) >= 1
    assert "Traceback" not in worker.log.read_text()


async def _waiting_step(client: Client, saga: str) -> dict[str, Any]:
    """The step, once its view shows what it waits for."""
    end = time.monotonic() + LIMIT
    step: dict[str, Any] = {}
    while time.monotonic() < end:
        step = next(step for step in (await client.show(saga))["steps"] if step["id"] == "facts")
        if SENTENCE in str(step):
            return step
        await asyncio.sleep(0.2)
    raise AssertionError(step)
