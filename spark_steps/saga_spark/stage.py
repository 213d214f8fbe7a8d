"""The task `stage`: runs a job and writes its outputs as immutable Parquet, counting in the same pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saga_spark.audit.counting import counting
from saga_spark.counting_ahead import counting_ahead
from saga_spark.errors import JobFailed
from saga_spark.file_counts import countable
from saga_spark.frames import open_inputs
from saga_spark.hashing import quoted
from saga_spark.job import Check, Job, Output
from saga_spark.jobs import name_of, refuse_stale, run_job
from saga_spark.manifest import Manifest, StagedFile
from saga_spark.observing import ROWS, Metrics, Observed
from saga_spark.partitions import partition_columns
from saga_spark.problems import explain
from saga_spark.runner.messages import Cancelled
from saga_spark.runner.run import Run
from saga_spark.sinks.files import create_folder, delete_folder, is_folder, local_path
from saga_spark.storage import null_counts, spark_path, staged_files
from sagas.errors import Infrastructure, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

RECORDS_PER_TRANSACTION = 100_000
"""Rows of one file for a topic: it becomes one transaction of Kafka, which has a minute."""

PARTITION = "saga_partition_{}"
"""The copies of columns that name the folders; a name with an underscore in front would hide them."""


@dataclass(frozen=True, slots=True)
class Staging:
    """What a manifest says apart from the rows."""

    output: Output
    target: Mapping[str, Any]
    inputs: Mapping[str, Any]
    checks: Sequence[Check]

    @property
    def folder(self) -> str:
        return self.target["folder"]

    def manifest(self, files: tuple[StagedFile, ...], schema: StructType, seen: Observed) -> Manifest:
        return Manifest(
            key=self.target["key"],
            generation=self.target["generation"],
            epoch=self.target["epoch"],
            output=self.output.name,
            files=files,
            rows=seen.rows,
            schema=schema.jsonValue(),
            hash=seen.fingerprint.hex,
            columns=seen.columns,
            inputs=self.inputs,
            counts=seen.counts,
        )


def stage(run: Run, request: dict[str, Any]) -> dict[str, Any]:
    """``{"arguments": …, "inputs": frozen, "targets": {output: {"folder", "key", "generation", "epoch"}}}`` gives
    ``{"manifests": {output: manifest}, "spark_ui": address or null}``.

    Whatever it raises (JobFailed, UsageError, Infrastructure), the folders of the targets are gone afterwards.
    """
    job = Job.parse(request["arguments"])
    refuse_stale()
    fingerprints = {name: one["fingerprint"] for name, one in request["inputs"].items()}
    stagings = [
        Staging(output, request["targets"][name], fingerprints, [one for one in job.audit if one.output == name])
        for name, output in job.outputs.items()
    ]
    for one in stagings:
        _prepare(one.folder)
    try:
        manifests = _stage(run, job, stagings, request["inputs"])
    except BaseException as error:
        for one in stagings:
            delete_folder(one.folder)
        if run.cancelled or isinstance(error, JobFailed | UsageError | Infrastructure | Cancelled):
            raise
        raise explain(error, name_of(job), run.settings.python_path) from error
    return {"manifests": {one.output: one.to_json() for one in manifests}, "spark_ui": run.ui}


def _stage(run: Run, job: Job, stagings: Sequence[Staging], inputs: Mapping[str, Any]) -> list[Manifest]:
    if isinstance(job.code, str) or "sql" in job.code:
        if len(job.outputs) > 1 and not isinstance(job.code, str):
            raise UsageError("SQL has one output; a job with several is a Python function")
        frames = run_job(run.spark, job, open_inputs(run.spark, inputs), run.settings)
        return [_write(run, one, frames[one.output.name]) for one in stagings]
    from saga_spark.programs import run_program

    run_program(run, job, inputs, {one.output.name: one.folder for one in stagings})
    return [_adopt(run, one, job) for one in stagings]


def _write(run: Run, staging: Staging, frame: DataFrame) -> Manifest:
    """One pass of Spark over the rows. On a cluster it counts them meanwhile; on this machine most is counted from the
    files, which costs less. What Spark has counted is held against the footers of the files: where it has counted a
    task twice, or not at all, it reads the files once more."""
    from pyspark.sql import Observation

    run.check()
    schema = frame.schema
    metrics = Metrics(schema, counting(staging.checks, staging.output.name, frame))
    partitions = partition_columns(staging.output, schema, run.settings)
    if partitions:
        frame = frame.hint("rebalance", *partitions)
    from_files = _beside(run, staging) and countable(schema)
    own, asked = None if from_files else Observation(), Observation()
    written = metrics.observe(frame, own, asked, classic=run.settings.remote is None)
    names = [PARTITION.format(at) for at in range(len(partitions))]
    for name, column in zip(names, partitions, strict=True):
        written = written.withColumn(name, column)
    # Not `errorifexists`: the folder is ours, new and empty, so that a problem with it was seen before the job ran.
    writer = written.write.mode("append")
    if staging.output.kind == "topic":
        writer = writer.option("maxRecordsPerFile", RECORDS_PER_TRANSACTION)
    counting_files = counting_ahead(staging.folder, schema) if from_files else nullcontext()
    with counting_files as ahead:
        writer.partitionBy(*names).parquet(spark_path(staging.folder))
    run.check()
    files = staged_files(staging.folder)
    values = metrics.observed(own, asked)
    told = values.get(ROWS)
    if not files and told:
        raise Infrastructure(f"Spark counted {told} rows and left no file in {staging.folder}")
    if not files:  # partitioned, and no row at all
        run.spark.createDataFrame([], schema).write.mode("append").parquet(spark_path(staging.folder))
        files = staged_files(staging.folder)
    counted = ahead.count(files) if ahead is not None else None
    if counted is not None:
        values |= metrics.in_files(counted)
    if told not in (None, sum(file.rows for file in files)) or (from_files and counted is None):
        return staging.manifest(files, schema, _count(run, metrics, files, schema))
    return staging.manifest(files, schema, metrics.read(values, _nulls(run, metrics, files, schema)))


def _beside(run: Run, staging: Staging) -> bool:
    """Does Spark run, and write, on this machine? Then its processors are idle as soon as the files are written."""
    settings = run.settings
    return settings.remote is None and settings.master.startswith("local") and local_path(staging.folder) is not None


def _adopt(run: Run, staging: Staging, job: Job) -> Manifest:
    """What a program has written."""
    files = staged_files(staging.folder)
    if not files:
        raise JobFailed(f"{name_of(job)} wrote no Parquet files for the output {staging.output.name}")
    frame = run.spark.read.parquet(*(spark_path(file.uri) for file in files))
    metrics = Metrics(frame.schema, counting(staging.checks, staging.output.name, frame))
    return staging.manifest(files, frame.schema, _count(run, metrics, files, frame.schema))


def _count(run: Run, metrics: Metrics, files: Sequence[StagedFile], schema: StructType) -> Observed:
    frame = run.spark.read.schema(schema).parquet(*(spark_path(file.uri) for file in files))
    row = frame.agg(*metrics.expressions()).first()
    assert row is not None
    return metrics.read(row.asDict(), _nulls(run, metrics, files, schema))


def _nulls(run: Run, metrics: Metrics, files: Sequence[StagedFile], schema: StructType) -> dict[str, int]:
    """The nulls of plain columns: from the footers, and for columns of which these do not tell, from the rows."""
    from pyspark.sql import functions as F

    found = null_counts(files, metrics.in_footers)
    untold = [name for name in metrics.in_footers if name not in found]
    if untold:
        frame = run.spark.read.schema(schema).parquet(*(spark_path(file.uri) for file in files))
        row = frame.agg(*(F.count_if(F.col(quoted(name)).isNull()) for name in untold)).first()
        assert row is not None
        found |= zip(untold, row, strict=True)
    return found


def _prepare(folder: str) -> None:
    """Raises JobFailed: the stage area cannot be written; Infrastructure: somebody else has written here."""
    if is_folder(folder):
        raise Infrastructure(f"the stage folder {folder} exists already")
    try:
        create_folder(folder)
    except OSError as error:
        raise JobFailed(f"the stage area cannot be written: {error}", {"folder": folder}) from None
