"""Sagas whose jobs need more memory than there is, and a saga that outlives several runners."""

from __future__ import annotations

import asyncio
import functools
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from saga_activities.connections import DatabaseConnections
from saga_spark import actions
from saga_spark.runner.runner_client import RunnerClient
from saga_spark.settings import spark_settings
from saga_spark.staging import stage_clean_up
from saga_workers.client import Client
from sagas.project import Project
from sagas.settings import SqlConnection, load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import (
    BRIEF,
    ICEBERG,
    JOBS,
    DayCloseProject,
    open_day_close_project,
    read,
)

TIMEOUT = "400s"
SECONDS = 400.0

GREEDY = """

def both(spark, inputs):
    import os
    import time

    if os.path.exists(os.path.join(os.path.dirname(__file__), "modest")):
        facts = inputs.orders
        return {"facts": facts, "totals": facts.groupBy("day").agg(F.sum("amount").alias("amount"))}

    def heap():
        many = spark.range(4).select(F.col("id").alias("order_id"), F.expr("array_repeat(id, 500000000)").alias("many"))
        return {"facts": many, "totals": many}

    def python():
        def hog(batches):
            held = [b"x" * 2**20 for _ in range(1500)]
            time.sleep(600)
            yield from batches

        many = spark.range(1).mapInArrow(hog, "order_id bigint")
        return {"facts": many, "totals": many}

    return WAY()
"""

# What is said of each way to run out of memory. The process is given little beyond the heap, so that the test does not
# need the two gigabytes that a worker grants.
WAYS = {
    "heap": "the JVM of Spark ran out of memory; raise `memory` under [spark], now 512m, or use more partitions",
    "python": "of memory, more than its limit of 1.5 GiB, and was killed; raise `memory` under [spark], now 512m",
}


def runners(day_close: DayCloseProject) -> list[psutil.Process]:
    collected = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        line = " ".join(process.info["cmdline"] or ())
        scratch = str(day_close.folder / ".saga" / "spark" / "scratch")
        if "saga_spark.runner" in line and scratch in process.environ().get("SAGA_SPARK_SCRATCH", ""):
            collected.append(process)
    return collected


def altered(day_close: DayCloseProject, **settings: Any) -> DayCloseProject:
    """The project with other Spark settings and long timeouts for a loaded machine: no attempt may end here for
    a missed heartbeat."""
    definition, file = day_close.folder / "day.saga.yaml", day_close.folder / "saga.toml"
    definition.write_text(definition.read_text().replace("heartbeat: 5s", "heartbeat: 120s"))
    words = "".join(f"{name} = {value}\n" for name, value in settings.items())
    file.write_text(file.read_text().replace("[spark]\n", f"[spark]\n{words}"))
    return replace(day_close, project=Project(load_settings(config=str(file))))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_a_job_that_always_runs_out_of_memory(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(actions, "RunnerClient", functools.partial(RunnerClient, margin=2**30))
    day_close = await open_day_close_project(tmp_path / "shop", server, temporal.address)
    (day_close.folder / "jobs.py").write_text(JOBS + GREEDY.replace("WAY()", f"{way}()"))
    brief = BRIEF.format(publish="each", **ICEBERG).replace("max_attempts: 50", "max_attempts: 3")
    (day_close.folder / "day.saga.yaml").write_text(brief)
    day_close = altered(day_close, memory='"512m"')
    async with running_worker(day_close.project) as client:
        saga = f"greedy-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-01"}, id=saga)
        async with asyncio.timeout(SECONDS):
            while not (output := await failures(client, saga)):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert WAYS[way] in output[0], "the reason can be read meanwhile"
        story = await finished(client, saga, TIMEOUT)
        assert story["state"] == "COMPENSATED", story["reason"]
        assert WAYS[way] in story["reason"]["message"]
        [facts] = [step for step in story["steps"] if step["id"] == "facts"]
        assert facts["attempts"] == 3
        assert read(day_close, ICEBERG) == (None, None), "nothing was published"
        await clean_up(day_close)
        assert day_close.staged() == []

        (day_close.folder / "modest").write_text("")
        good = f"modest-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-01"}, id=good)
        story = await finished(client, good, TIMEOUT)
        assert story["state"] == "COMPLETED", story["reason"]
        assert len(runners(day_close)) == 1, "a fresh runner, and nothing is left of the others"


async def clean_up(day_close: DayCloseProject) -> None:
    """The worker's own round, which deletes what a saga that is over has left in the stage."""
    databases = DatabaseConnections([SqlConnection(name="shop", url_setting=day_close.url)])

    async def over(_: str) -> stage_clean_up.SagaLiveness:
        return "over"

    await stage_clean_up.clean_up_stage(databases.engine("shop"), spark_settings(day_close.project.settings), over)
    await databases.close()


async def failures(client: Client, saga: str) -> list[str]:
    """Messages of the last failed attempts of pending activities, as the Web UI shows them."""
    described = await client.temporal.get_workflow_handle(saga).describe()
    pending = described.raw_description.pending_activities
    return [activity.last_failure.message for activity in pending if activity.HasField("last_failure")]


@pytest.mark.slow
async def test_a_saga_with_more_jobs_than_a_runner_accepts(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    day_close = altered(await open_day_close_project(tmp_path / "shop", server, temporal.address), recycle_after=2)
    async with running_worker(day_close.project) as client:
        saga = f"long-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-01"}, id=saga)
        story = await finished(client, saga, TIMEOUT)
        assert story["state"] == "COMPLETED", story["reason"]
        assert {step["id"]: step["attempts"] for step in story["steps"] if step["id"] in ("facts", "totals")} == {
            "facts": 1,
            "totals": 1,
        }
        logs = list((day_close.folder / ".saga" / "spark").glob("runner-*.log"))
        assert len(logs) == 3, "six runs, two for each runner"
        facts, totals = read(day_close, ICEBERG)
        assert (len(facts), len(totals)) == (10, 3)
