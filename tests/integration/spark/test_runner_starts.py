"""What a fresh runner is asked first: several runs at one moment, and what it cannot even begin with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_steps.runner.client import Runner
from spark_steps.settings import SparkSettings
from tests.integration.spark.staged import stage
from tests.integration.spark.test_staging import JOBS, QUICK, World, rows_of


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "staged_jobs.py").write_text(JOBS)
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "numbers.parquet")
    settings = SparkSettings(
        root=tmp_path, stage=(tmp_path / "stage").as_uri(), conf=QUICK, python_path=(str(tmp_path),)
    )
    runner = Runner(settings)
    yield World(runner, tmp_path)
    await runner.close()


async def test_a_fresh_runner_takes_a_job_and_an_audit_at_one_moment(world: World) -> None:
    """After a runner was killed, all of its runs are repeated at once. Both need PySpark, whose modules import each
    other: two threads that import them at one moment get unfinished ones."""
    spec = {"parquet": "out", "mode": "append"}
    settings = SparkSettings(root=world.root, stage=(world.root / "stage").as_uri())
    made = stage(settings, spec, [{"id": 1}, {"id": 2}], saga="s1", generation=1)
    audit = world.runner.run(
        "audit",
        {
            "arguments": {
                "job": "staged_jobs:numbers",
                "outputs": {"output": spec},
                "audit": [{"sql": "select * from output where id > 7"}],
            },
            "manifests": {"output": made.manifest.to_json()},
            "inputs": {},
            "previous_rows": {"output": None},
            "sink_problems": [],
            "report_folder": (world.root / "report").as_uri(),
            "saga": {"id": "s1", "step": "facts"},
        },
        tag="audit",
    )
    (manifest, report) = await asyncio.gather(world.one("staged_jobs:numbers"), audit)
    assert len(rows_of(manifest)) == 10
    assert report["verdict"] == "pass"
