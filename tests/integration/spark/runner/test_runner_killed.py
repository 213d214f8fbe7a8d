"""Sagas whose runner is killed again and again: they wait with a reason, none is compensated, and all complete."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.spark.day_close_project import PARQUET, DayCloseProject, open_day_close_project

TIMEOUT = 120.0

DEFINITION = """
saga: day
steps:
  - id: commission
    uses: finance.charge
    with: {total: "1.00"}
    compensate: {uses: finance.refund, with: {}}
  - id: facts
    uses: spark
    needs: [commission]
    heartbeat: 120s
    retry: {max_attempts: 2, max_interval: 1s}
    with:
      sql: select order_id, amount from orders
      inputs:
        orders: {connection: shop, query: "select o.* from orders as o, (select pg_advisory_lock_shared(4711)) as gate"}
      output: {parquet: "out/${{ saga.id }}"}
      audit:
        - sql: select * from output where amount < 0
"""

WAITING = "select count(*) as n from pg_locks where locktype = 'advisory' and objid = 4711 and not granted"


def runner_of(day_close: DayCloseProject) -> psutil.Process | None:
    """The runner that this worker, which is the process of the tests, has started for the project."""
    for process in psutil.Process(os.getpid()).children():
        if "saga_spark.runner" in " ".join(process.cmdline()) and process.cwd() == os.getcwd():
            scratch = process.environ().get("SAGA_SPARK_SCRATCH", "")
            if scratch.startswith(str(day_close.folder)):
                return process
    return None


async def waits_uncounted(client: Client, saga: str, times: int) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT):
        while True:
            story = await client.show(saga)
            [facts] = [step for step in story["steps"] if step["id"] == "facts"]
            assert story["state"] == "RUNNING", story
            if ((facts["error"] or {}).get("details") or {}).get("uncounted") == times:
                return facts
            await asyncio.sleep(0.1)


async def stuck(client: Client, saga: str) -> list[str]:
    wanted = SagaFilter(task_queue=client.project.settings.temporal.task_queue)
    sagas = [stuck_saga async for stuck_saga in list_stuck(client.locator, wanted, limit=10)]
    return [reason for stuck_saga in sagas if stuck_saga.id == saga for reason in stuck_saga.stuck or ()]


@pytest.mark.slow  # one killed JVM is in test_staging.py, what is counted in tests/unit
async def test_killed_runners_cause_no_compensation(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    day_close = await open_day_close_project(tmp_path / "shop", server, temporal.address, PARQUET)
    (day_close.folder / "day.saga.yaml").write_text(DEFINITION)
    project = Project(load_settings(config=str(day_close.folder / "saga.toml")))
    sagas = [f"day-{number}-{uuid.uuid4()}" for number in (1, 2)]
    with psycopg.connect(day_close.url, autocommit=True) as gate:
        gate.execute("select pg_advisory_lock(4711)")
        async with running_worker(project) as client:
            for saga in sagas:
                await client.start("day", {}, id=saga)
            for kills in range(1, 4):
                # PostgreSQL does not notice that who waits for a lock is gone: their waits add up.
                await until(lambda kills=kills: day_close.query(WAITING)[0]["n"] >= 2 * kills)
                runner = await until(lambda: runner_of(day_close))
                runner.kill()
                for saga in sagas:
                    facts = await waits_uncounted(client, saga, kills)
                    assert facts["error"]["type"] == "Infrastructure"
                    assert "the Spark runner was killed by SIGKILL" in facts["error"]["message"]
                    assert facts["attempts"] == 0
            [reason] = await stuck(client, sagas[0])
            assert reason.startswith(
                "facts could not be attempted, 3 times in a row: the Spark runner was killed by SIGKILL"
            )
            gate.execute("select pg_advisory_unlock(4711)")
            for saga in sagas:
                story = await finished(client, saga, f"{TIMEOUT:.0f}s")
                assert story["state"] == "COMPLETED", story["reason"]
                [facts] = [step for step in story["steps"] if step["id"] == "facts"]
                assert (facts["attempts"], facts["result"]["rows"]) == (1, 12)
                assert await stuck(client, saga) == []
    assert day_close.query("select count(*) as n from commissions") == [{"n": 2}]
