"""CSV and JSON that a job reads itself: what Spark cannot parse is an error, never null in silence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from saga_spark.job.job_execution import run_job
from saga_spark.job.job_spec import Job
from saga_spark.job_errors import UnreadableInput, to_job_error
from saga_spark.settings import SparkSettings
from sagas.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOBS = """
def rows(spark, inputs, path, format, **options):
    schema = "id bigint, amount decimal(12,2), note string"
    return spark.read.schema(schema).options(**options).format(format).load(path).where("id > 0")
"""
FAILFAST = {"mode": "FAILFAST", "header": True, "multiLine": True, "enforceSchema": False}


def run(spark: SparkSession, root: Path, path: Path, format: str, **options: Any) -> DataFrame:
    (root / "text_jobs.py").write_text(JOBS)
    arguments = {
        "job": "text_jobs:rows",
        "params": {"path": str(path), "format": format, **options},
        "outputs": {"output": {"parquet": "out"}},
    }
    settings = SparkSettings(root, stage=(root / "stage").as_uri(), python_path=(str(root),))
    return run_job(spark, Job.parse(arguments), {}, settings)["output"]


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.csv", 'id,amount,note\n1,2.50,"x\ny"\n2,abc,z\n', ["a.csv: ", "[2,null,z]"]),
        ("b.csv", "id,sum,note\n1,2.50,x\n", ["b.csv: ", "CSV header does not conform to the schema"]),
        ("c.csv", "id;amount;note\n1;2.50;x\n", ["c.csv: ", "Number of column in CSV header is not equal to"]),
        ("d.json", '{"id": 1}\n{"id": "x"}\n', ["d.json: ", "'id' and the value x"]),
        ("e.json", '{"id": 1}\n{"id":\n', ["e.json: ", "Malformed records"]),
    ],
)
def test_what_cannot_be_parsed_is_named_and_not_retried(
    name: str, content: str, parts: list[str], spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    options = {**FAILFAST, "multiLine": name.endswith("csv")}
    frame = run(spark, tmp_path, tmp_path / name, name.rpartition(".")[2], **options)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's own error, translated below
        frame.collect()
    error = to_job_error(raised.value, "the job text_jobs:rows")
    assert isinstance(error, UnreadableInput)
    assert str(error).startswith("the job text_jobs:rows cannot read a file: file:///")
    assert all(part in str(error) for part in parts), str(error)


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_job_must_choose_what_happens_to_malformed_records(format: str, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"id": 1}\n' if format == "json" else "1,2.50,x\n")
    message = f"the job text_jobs:rows reads {format.upper()} from file:.* without `mode`, so Spark would read"
    with pytest.raises(UsageError, match=message):
        run(spark, tmp_path, tmp_path / "a", format)
    for mode in ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"):
        assert [row.id for row in run(spark, tmp_path, tmp_path / "a", format, mode=mode).collect()] == [1]
