"""A new runner: several concurrent tasks, failures to start, and a job that kills each runner."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_activities.attempt_context import AttemptContext
from saga_spark.actions import SparkSteps
from saga_spark.runner import runner_client
from saga_spark.runner.runner_client import RunnerClient
from saga_spark.settings import SparkSettings
from sagas.errors import NeedsOperator, Unavailable, Unequipped
from tests.integration.spark.staged_outputs import stage
from tests.integration.spark.staging.staging_environment import open_staging
from tests.integration.spark.staging.test_staging import JOBS, NUMBERS_FILE, QUICK, Environment, rows_of


@pytest.fixture
async def env(tmp_path: Path) -> AsyncIterator[Environment]:
    (tmp_path / "staged_jobs.py").write_text(JOBS)
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / NUMBERS_FILE)
    settings = SparkSettings(
        root=tmp_path, stage=(tmp_path / "stage").as_uri(), conf=QUICK, python_path=(str(tmp_path),)
    )
    runner = RunnerClient(settings)
    yield Environment(runner, tmp_path)
    await runner.close()


@pytest.mark.slow
async def test_a_new_runner_accepts_a_job_and_an_audit_concurrently(env: Environment) -> None:
    """After a runner was killed, all of its runs are repeated at once. Both need PySpark, whose modules import each
    other: two threads that import them concurrently get partially initialized ones."""
    spec = {"parquet": "out", "mode": "append"}
    settings = SparkSettings(root=env.root, stage=(env.root / "stage").as_uri())
    made = stage(settings, spec, [{"id": 1}, {"id": 2}], saga="s1", generation=1)
    audit = env.runner.run(
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
            "report_folder": (env.root / "report").as_uri(),
            "saga": {"id": "s1", "step": "facts"},
        },
        tag="audit",
    )
    (manifest, report) = await asyncio.gather(env.stage_output("staged_jobs:numbers"), audit)
    assert len(rows_of(manifest)) == 10
    assert report["verdict"] == "pass"


async def test_a_runner_without_pyspark_is_reported_and_costs_no_attempt(tmp_path: Path) -> None:
    broken = tmp_path / "pyspark"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('half of it is missing')")
    runner = RunnerClient(SparkSettings(root=tmp_path, python_path=(str(tmp_path),)))
    try:
        for _ in range(2):
            with pytest.raises(Unavailable) as raised:
                await runner.run("freeze", {"inputs": {}, "folder": "", "known": {}}, tag="x")
            assert str(raised.value).startswith(
                "the Spark runner did not start: PySpark cannot be imported: ImportError: half of it is missing; see "
            )
    finally:
        await runner.close()


async def test_a_runner_without_a_writable_log_costs_no_attempt(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file")
    runner = RunnerClient(SparkSettings(root=tmp_path, work="work"))
    with pytest.raises(Unavailable, match=r"^the Spark runner did not start: .*work"):
        await runner.run("freeze", {"inputs": {}, "folder": "", "known": {}}, tag="x")


async def test_a_step_waits_for_a_worker_that_has_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = await open_staging(tmp_path, f"sqlite:///{tmp_path / 'day_close.db'}")
    steps = SparkSteps(staging.settings, staging.databases)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    now = time.time()
    attempt = AttemptContext(1, now, now + 60, lambda _: None, logging.getLogger("test"), saga="day")
    try:
        with pytest.raises(Unequipped, match=r"^Spark needs Java 17 or newer: JAVA_HOME is .*") as raised:
            await steps.prepare("spark", staging.invocation(), attempt)
        assert str(raised.value.help).startswith("install a JDK")
    finally:
        await steps.close()
        await staging.databases.close()


KILLER = """

def killer(spark, inputs):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
async def test_a_job_that_kills_every_runner_is_isolated_and_then_parked(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_client, "DEDICATED_RUNNER_AFTER", 1)
    monkeypatch.setattr(runner_client, "MAX_CONSECUTIVE_LOSSES", 2)
    (env.root / "killing_jobs.py").write_text(KILLER)
    with pytest.raises(Unavailable, match="the Spark runner was killed by SIGKILL"):
        await killed(env)
    good = await env.stage_output("staged_jobs:numbers")
    assert env.runner.process is not None
    shared = env.runner.process.pid
    with pytest.raises(
        NeedsOperator,
        match=r"^2 consecutive Spark runners were lost while running this task; the last error: the Spark",
    ):
        await killed(env)
    assert env.runner.process.pid == shared, "it had a runner of its own"
    assert rows_of(await env.stage_output("staged_jobs:numbers")) == rows_of(good)


async def killed(env: Environment) -> None:
    spec = {"parquet": "out", "mode": "append"}
    target = {"folder": (env.root / "killed").as_uri(), "key": "k", "generation": 1, "epoch": 1}
    arguments = {"job": "killing_jobs:killer", "outputs": {"output": spec}}
    shutil.rmtree(env.root / "killed", ignore_errors=True)
    request = {"arguments": arguments, "inputs": {}, "targets": {"output": target}}
    await env.runner.run("stage", request, tag=f"killer-e{next(env.numbers)}")
