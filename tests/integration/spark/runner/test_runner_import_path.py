"""Modules in the folder in which a runner is started are not imported: not by it, and not by Spark's Python workers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_spark.runner.runner_client import RunnerClient
from saga_spark.settings import SparkSettings
from tests.integration.spark.staging.test_staging import NUMBERS_FILE, QUICK, Environment, rows_of

JOB = """
from pyspark.sql import functions as F

@F.udf("long")
def double(number):
    return number * 2

def doubled(spark, inputs):
    return spark.range(3).select(double("id").alias("n"))
"""
SHADOWED = ("psutil", "pyspark", "saga_spark", "msgspec", "numbers", "socket", "select", "traceback", "json", "inspect")
INTRUDER = "open({marker!r}, 'a').write(__name__ + ' ' + open('/proc/self/cmdline').read() + chr(10))\n"


async def test_the_working_folder_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, elsewhere, marker = tmp_path / "project", tmp_path / "elsewhere", tmp_path / "imported"
    project.mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3]}), project / NUMBERS_FILE)
    elsewhere.mkdir()
    (project / "doubling_job.py").write_text(JOB)
    for module in SHADOWED:
        (elsewhere / f"{module}.py").write_text(INTRUDER.format(marker=str(marker)))
    monkeypatch.chdir(elsewhere)
    runner = RunnerClient(
        SparkSettings(root=project, stage=(project / "stage").as_uri(), conf=QUICK, python_path=(str(project),))
    )
    try:
        manifest = await Environment(runner, project).stage_output("doubling_job:doubled")
    finally:
        await runner.close()
    assert not marker.exists(), marker.read_text()
    assert [row["n"] for row in rows_of(manifest)] == [0, 2, 4]
