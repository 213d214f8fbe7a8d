"""A saga whose Spark step stops in the middle of its write until a test lets it continue, on any kind of cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.spark.day_close_project import DayCloseProject, open_day_close_project

TIMEOUT = 240.0
WAIT = f"{TIMEOUT:.0f}s"
TABLE = "sales.facts"
ROWS = 40

JOB = """
from __future__ import annotations

import os
import time
import uuid


def gated(spark, inputs, gate):
    def rows(batches):
        from pyspark import TaskContext

        number = TaskContext.get().partitionId()
        open(os.path.join(gate, f"task-{number}-{uuid.uuid4().hex}"), "w").close()
        while number >= 2 and not os.path.exists(os.path.join(gate, "open")):
            time.sleep(0.05)
        yield from batches

    return spark.range(0, ROWS, 1, 4).selectExpr("id", "cast(id * 1.5 as decimal(12,2)) as amount").mapInArrow(
        rows, "id long, amount decimal(12,2)")
""".replace("ROWS", str(ROWS))

SAGA = """
saga: day
steps:
  - id: facts
    uses: spark
    heartbeat: 20s
    retry: {{max_attempts: 2, max_interval: 2s}}
    with:
      job: gated_jobs:gated
      params: {{gate: {gate}}}
      output: {output}
      audit:
        - rows: {{equals: {rows}}}
        - unique: [id]
        - not_null: [amount]
        - sql: select * from output where amount < 0
"""


@dataclass
class GatedProject:
    """The project. Its tasks 0 and 1 write at once, 2 and 3 wait for :meth:`open`."""

    day_close: DayCloseProject
    gate: Path

    @property
    def project(self) -> Project:
        return self.day_close.project

    def started(self, task: int) -> int:
        """How often a task of the job was started."""
        return len(list(self.gate.glob(f"task-{task}-*")))

    def open(self) -> None:
        (self.gate / "open").touch()

    async def reach_the_middle(self) -> None:
        """Wait until two tasks have written, and two more stand in their rows."""
        await until(lambda: self.started(2) and self.started(3))


async def open_gated_project(
    folder: Path, server: DatabaseServer, temporal_address: str, changes: dict[str, str]
) -> GatedProject:
    """``changes`` replace text in saga.toml."""
    day_close = await open_day_close_project(folder, server, temporal_address)
    gate = folder / "gate"
    gate.mkdir()
    (folder / "gated_jobs.py").write_text(JOB)
    (folder / "day.saga.yaml").write_text(SAGA.format(gate=gate, output=f"{{table: lake.{TABLE}}}", rows=ROWS))
    text = (folder / "saga.toml").read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / "saga.toml").write_text(text)
    day_close.project = Project(load_settings(config=str(folder / "saga.toml")))
    return GatedProject(day_close, gate)


async def completed_exactly(client: Client, gated: GatedProject, saga: str, *, attempts: int = 1) -> None:
    """Wait until the saga has completed: each row of the job is published once, by this many attempts of the job."""
    story = await finished(client, saga, WAIT)
    assert story["state"] == "COMPLETED", story["reason"]
    facts = await step(client, saga)
    assert (facts["attempts"], facts["result"]["rows"]) == (attempts, ROWS)
    assert exact_rows(gated.day_close.lake(TABLE))
    assert await stuck(client, saga) == []


def exact_rows(rows: list[dict[str, Any]] | None) -> bool:
    """True if these are the rows of the job, each once."""
    assert rows is not None
    return sorted((row["id"], float(row["amount"])) for row in rows) == [(n, n * 1.5) for n in range(ROWS)]


async def step(client: Client, saga: str) -> dict[str, Any]:
    story = await client.show(saga)
    [facts] = [step for step in story["steps"] if step["id"] == "facts"]
    return facts


async def undo(client: Client, gated: GatedProject, saga: str) -> None:
    await (await client.undo(saga, reason="wrong day", who="ada")).result()
    story = await finished(client, saga, WAIT)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "undone")
    assert gated.day_close.lake(TABLE) == []


async def error_of(client: Client, saga: str, text: str) -> dict[str, Any]:
    """The Spark step when its error contains the text."""
    async with asyncio.timeout(TIMEOUT):
        while text not in ((facts := await step(client, saga))["error"] or {}).get("message", ""):
            assert facts["state"] == "RUNNING", facts
            await asyncio.sleep(0.2)
    return facts


async def stuck(client: Client, saga: str) -> list[str]:
    """Why `saga list --stuck` lists the saga; empty if it does not."""
    wanted = SagaFilter(task_queue=client.project.settings.temporal.task_queue)
    listed = [view async for view in list_stuck(client.locator, wanted, limit=10)]
    return [reason for view in listed if view.id == saga for reason in view.stuck or ()]
