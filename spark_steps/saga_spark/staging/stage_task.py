"""The runner task `stage`: runs a job and writes its outputs as immutable Parquet, with metrics from the same pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saga_spark.audit.checks import metric_aggregates
from saga_spark.inputs.frozen_inputs import open_inputs
from saga_spark.job.job_execution import check_sources_unchanged, job_label, run_job, run_program
from saga_spark.job.job_spec import Check, Job, Output
from saga_spark.job_errors import JobFailed, to_job_error
from saga_spark.manifest import Manifest, StagedFile
from saga_spark.runner.runner_protocol import TaskCancelled
from saga_spark.runner.task_context import TaskContext
from saga_spark.session_conf import apply_conf, changed_conf, in_utc
from saga_spark.sinks.column_names import column_name_problems
from saga_spark.staging.parquet_metrics import can_count
from saga_spark.staging.partitioning import PARTITION_COLUMN, partition_key
from saga_spark.staging.write_metrics import ROW_COUNT, ObservedMetrics, WriteMetrics, count_in_background
from saga_spark.storage import (
    create_folder,
    delete_folder,
    is_folder,
    list_staged_files,
    local_path,
    null_counts,
    spark_path,
    spark_read_path,
)
from sagas.builtins.spark import FIXED_CONF, SESSION_ZONE
from sagas.errors import InfrastructureError, UsageError
from sagas.text.shortening import counted
from sagas.text.sql_names import backquoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


ROWS_PER_TRANSACTION = 100_000
"""Rows per file for a topic: a file becomes one Kafka transaction, which must end within a minute."""


@dataclass(frozen=True, slots=True)
class OutputStaging:
    """The parts of a manifest that do not depend on the rows."""

    output: Output
    target: Mapping[str, Any]
    inputs: Mapping[str, Any]
    checks: Sequence[Check]

    @property
    def folder(self) -> str:
        return self.target["folder"]

    def manifest(self, files: tuple[StagedFile, ...], schema: StructType, observed: ObservedMetrics) -> Manifest:
        return Manifest(
            key=self.target["key"],
            generation=self.target["generation"],
            epoch=self.target["epoch"],
            output=self.output.name,
            files=files,
            rows=observed.rows,
            schema=schema.jsonValue(),
            hash=observed.fingerprint.hex,
            columns=observed.columns,
            inputs=self.inputs,
            counts=observed.counts,
        )


def stage_outputs(context: TaskContext, request: dict[str, Any]) -> dict[str, Any]:
    """``{"arguments": …, "inputs": frozen, "targets": {output: {"folder", "key", "generation", "epoch"}}}`` gives
    ``{"manifests": {output: manifest}, "spark_ui": address or null}``.

    If it raises (JobFailed, UsageError, InfrastructureError), the folders of the targets are deleted.
    """
    job = Job.parse(request["arguments"])
    check_sources_unchanged()
    fingerprints = {name: frozen["fingerprint"] for name, frozen in request["inputs"].items()}
    stagings = [
        OutputStaging(
            output, request["targets"][name], fingerprints, [check for check in job.audit if check.output == name]
        )
        for name, output in job.outputs.items()
    ]
    for staging in stagings:
        _create_stage_folder(staging.folder)
    try:
        manifests = _run_and_write(context, job, stagings, request["inputs"])
    except BaseException as error:
        for staging in stagings:
            delete_folder(staging.folder)
        if context.cancelled or isinstance(error, JobFailed | UsageError | InfrastructureError | TaskCancelled):
            raise
        raise to_job_error(error, job_label(job), context.settings.python_path) from error
    return {"manifests": {manifest.output: manifest.to_json() for manifest in manifests}, "spark_ui": context.spark_ui}


def _run_and_write(
    context: TaskContext, job: Job, stagings: Sequence[OutputStaging], inputs: Mapping[str, Any]
) -> list[Manifest]:
    if isinstance(job.code, str) or "sql" in job.code:
        if len(job.outputs) > 1 and not isinstance(job.code, str):
            raise UsageError("a SQL job has one output; write a job with several outputs as a Python function")
        frames = run_job(context.spark, job, open_inputs(context.spark, inputs), context.settings)
        return [_write_output(context, staging, frames[staging.output.name]) for staging in stagings]
    run_program(context, job, inputs, {staging.output.name: staging.folder for staging in stagings})
    return [_adopt_program_output(context, staging, job) for staging in stagings]


def _write_output(context: TaskContext, staging: OutputStaging, frame: DataFrame) -> Manifest:
    """Write one output in a single pass.

    On a cluster Spark counts the rows during the write; on this machine most metrics are computed from the files, which
    costs less. Spark's row count is checked against the footers of the files: if it counted a task twice or not at all,
    it reads the files again.
    """
    context.raise_if_cancelled()
    with in_utc(context.spark) as zone:
        return _write_in_utc(context, staging, frame, zone)


def _write_in_utc(context: TaskContext, staging: OutputStaging, frame: DataFrame, zone: str) -> Manifest:
    from pyspark.sql import Observation

    schema = frame.schema
    _check_names(staging.output, schema)
    metrics = WriteMetrics(schema, metric_aggregates(staging.checks, staging.output.name, frame))
    partition = partition_key(staging.output, schema, context.settings)
    if partition is not None:
        frame = frame.withColumn(PARTITION_COLUMN, partition).hint("rebalance", PARTITION_COLUMN)
    from_files = _spark_is_local(context, staging) and can_count(schema)
    base_observation, check_observation = None if from_files else Observation(), Observation()
    written = metrics.observe(frame, base_observation, check_observation, classic=context.settings.remote is None)
    # Not `errorifexists`: the folder was created empty, so that problems with it surface before the job runs.
    writer = written.write.mode("append")
    if staging.output.kind == "topic":
        writer = writer.option("maxRecordsPerFile", ROWS_PER_TRANSACTION)
    counting_files = count_in_background(staging.folder, schema) if from_files else nullcontext()
    with counting_files as background_count, changed_conf(context.spark, SESSION_ZONE, zone):
        apply_conf(context.spark, FIXED_CONF)  # the job may have changed them
        writer.partitionBy(*([] if partition is None else [PARTITION_COLUMN])).parquet(spark_path(staging.folder))
    context.raise_if_cancelled()
    files = list_staged_files(staging.folder)
    values = metrics.observed_values(base_observation, check_observation)
    observed_rows = values.get(ROW_COUNT)
    if not files and observed_rows:
        raise InfrastructureError(
            f"Spark counted {counted(observed_rows, 'row')} but wrote no file to {staging.folder}"
        )
    if not files:  # partitioned, and without any rows
        context.spark.createDataFrame([], schema).write.mode("append").parquet(spark_path(staging.folder))
        files = list_staged_files(staging.folder)
    file_counts = background_count.count(files) if background_count is not None else None
    if file_counts is not None:
        values |= metrics.file_values(file_counts)
    if observed_rows not in (None, sum(file.rows for file in files)) or (from_files and file_counts is None):
        return staging.manifest(files, schema, _count_with_spark(context, metrics, files, schema))
    return staging.manifest(files, schema, metrics.to_observed(values, _null_counts(context, metrics, files, schema)))


def _check_names(output: Output, schema: StructType) -> None:
    """Before the job computes. Raises UsageError."""
    problems = column_name_problems(output.kind, schema.jsonValue())
    if problems:
        raise UsageError(f"the output {output.name} cannot be written: {'; '.join(problems)}")


def _spark_is_local(context: TaskContext, staging: OutputStaging) -> bool:
    """Return whether Spark runs and writes on this machine, so that its processors are idle once the files
    are written.
    """
    settings = context.settings
    return settings.remote is None and settings.master.startswith("local") and local_path(staging.folder) is not None


def _adopt_program_output(context: TaskContext, staging: OutputStaging, job: Job) -> Manifest:
    """The manifest of the files that a program has written."""
    files = list_staged_files(staging.folder)
    if not files:
        raise JobFailed(f"{job_label(job)} wrote no Parquet files for the output {staging.output.name}")
    frame = context.spark.read.parquet(*(spark_read_path(file.uri) for file in files))
    _check_names(staging.output, frame.schema)
    metrics = WriteMetrics(frame.schema, metric_aggregates(staging.checks, staging.output.name, frame))
    return staging.manifest(files, frame.schema, _count_with_spark(context, metrics, files, frame.schema))


def _count_with_spark(
    context: TaskContext, metrics: WriteMetrics, files: Sequence[StagedFile], schema: StructType
) -> ObservedMetrics:
    frame = context.spark.read.schema(schema).parquet(*(spark_read_path(file.uri) for file in files))
    row = frame.agg(*metrics.expressions()).first()
    assert row is not None
    return metrics.to_observed(row.asDict(), _null_counts(context, metrics, files, schema))


def _null_counts(
    context: TaskContext, metrics: WriteMetrics, files: Sequence[StagedFile], schema: StructType
) -> dict[str, int]:
    """The null counts of plain columns: from the footers, or from the rows for columns without statistics."""
    from pyspark.sql import functions as F

    counts = null_counts(files, metrics.footer_columns)
    without_statistics = [name for name in metrics.footer_columns if name not in counts]
    if without_statistics:
        frame = context.spark.read.schema(schema).parquet(*(spark_read_path(file.uri) for file in files))
        row = frame.agg(*(F.count_if(F.col(backquoted(name)).isNull()) for name in without_statistics)).first()
        assert row is not None
        counts |= zip(without_statistics, row, strict=True)
    return counts


def _create_stage_folder(folder: str) -> None:
    """Raises JobFailed if the stage area is not writable; InfrastructureError if another process has written here."""
    if is_folder(folder):
        raise InfrastructureError(f"the stage folder {folder} already exists")
    try:
        create_folder(folder)
    except OSError as error:
        raise JobFailed(f"the stage area is not writable: {error}", {"folder": folder}) from None
