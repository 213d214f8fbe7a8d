"""The runner task `freeze`: resolves the inputs of a job once, so that a retry reads the same rows, and opens them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from saga_spark.column_values import filter_condition
from saga_spark.inputs.parquet_input import freeze_files
from saga_spark.inputs.postgresql_input import DatabaseInput, extract_database_inputs
from saga_spark.job_errors import JobFailed
from saga_spark.runner.task_context import TaskContext
from saga_spark.sinks.parquet.parquet_pointer import CURRENT, read_pointer
from saga_spark.storage import (
    file_size,
    list_parquet_files,
    project_glob,
    project_location,
    spark_path,
    spark_read_path,
    split_glob,
    to_uri,
)
from sagas.errors import UsageError, did_you_mean
from sagas.text.exact_json import encode_json
from sagas.text.sql_names import backquoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def freeze_inputs(
    context: TaskContext, request: dict[str, Any], needed: Mapping[str, Collection[str]] = MappingProxyType({})
) -> dict[str, Any]:
    """``{"inputs": {name: {"kind", "values"}}, "folder": uri, "known": {name: {"files", "schema"}}}`` gives
    ``{"inputs": {name: {"format": "parquet", "files", "rows", "fingerprint", …}}}``, which :func:`open_inputs` opens.

    ``needed``: the columns that are read of an input from a database; default: all.

    Raises JobFailed, UsageError, InfrastructureError.
    """
    frozen: dict[str, dict[str, Any]] = {}
    databases: dict[str, list[DatabaseInput]] = {}
    for name, source in request["inputs"].items():
        kind, values = source["kind"], source["values"]
        uri = f"{request['folder']}/{name}/part-00000.parquet"
        match kind:
            case "connection":
                database_input = DatabaseInput(name, values, uri, needed.get(name))
                databases.setdefault(values["connection"], []).append(database_input)
            case "parquet":
                frozen[name] = {
                    **_freeze_parquet(context, name, values["parquet"], f"{request['folder']}/{name}"),
                    **_filter_and_columns(values),
                }
            case "table":
                from saga_spark.inputs.iceberg_input import (
                    freeze_table,  # imports pyiceberg, so only where tables are read
                )

                frozen[name] = {**freeze_table(context.settings, name, values, uri), **_filter_and_columns(values)}
            case "topic":
                from saga_spark.inputs.kafka_input import freeze_topic

                kafka_input = freeze_topic(context.settings, name, values, uri, context.progress)
                frozen[name] = {**kafka_input, **_filter_and_columns(values)}
            case "step":
                frozen[name] = {**_freeze_step_output(values, request["known"][name]), **_filter_and_columns(values)}
            case _:
                raise UsageError(f"the input {name} has the kind {kind}; use connection, parquet, table, topic or step")
        context.raise_if_cancelled()
    for connection, database_inputs in databases.items():
        extracts = extract_database_inputs(
            context.settings.connection(connection),
            database_inputs,
            context.progress,
            context.on_cancel,
            name=connection,
            trusted_roles=context.settings.trusted_roles.get(connection, ()),
        )
        for database_input in database_inputs:
            result = extracts[database_input.name]
            fingerprint = {"kind": "connection", "connection": connection, "rows": result.rows}
            fingerprint |= {"snapshot": result.snapshot, "taken_at": result.taken_at}
            frozen[database_input.name] = {
                "files": [database_input.uri],
                "rows": result.rows,
                "fingerprint": fingerprint,
            }
    return {"inputs": {name: {"format": "parquet", **frozen[name]} for name in request["inputs"]}}


def _freeze_parquet(context: TaskContext, name: str, path: str, folder: str) -> dict[str, Any]:
    location = project_location(path, context.settings.root)
    base = None
    if file_size(f"{location.rstrip('/')}/{CURRENT}") is not None:
        paths = read_pointer(location)
        if not paths:
            raise JobFailed(f"the input {name}: the Parquet output at {path} has no rows yet")
        uris = [to_uri("file:", path) for path in paths]
        fingerprint = _files_fingerprint(paths)
    else:
        pattern = project_glob(path, context.settings.root)
        listed = list_parquet_files(pattern)
        if not listed:
            raise JobFailed(f"the input {name}: no Parquet files exist at {path}")
        uris = [file.uri for file in listed]
        fingerprint = _files_fingerprint([[file.uri, file.bytes, file.modified] for file in listed])
        above = to_uri(pattern, split_glob(pattern)[0]).rstrip("/")
        if any("=" in unquote(uri[len(above) :]) for uri in uris):
            base = above  # folders like day=2026-01-01 hold a column
    return {**freeze_files(name, uris, base, folder), "rows": None, "fingerprint": fingerprint}


def _freeze_step_output(values: Mapping[str, Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    fingerprint = {**_files_fingerprint(frozen["files"]), "kind": "step", "step": values["step"]}
    return {"files": list(frozen["files"]), "rows": None, "schema": frozen.get("schema"), "fingerprint": fingerprint}


def _files_fingerprint(files: Any) -> dict[str, Any]:
    """A fingerprint of a list of immutable files, or of the files' sizes and modification times."""
    text = encode_json(files)
    return {"kind": "parquet", "files": len(files), "sha256": hashlib.sha256(text).hexdigest()}


def _filter_and_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """The filter and the columns, which are applied when the input is opened."""
    return {key: values[key] for key in ("where", "columns") if values.get(key) is not None}


class JobInputs(Mapping[str, "DataFrame"]):
    """The inputs of a job by name: ``inputs["orders"]`` or ``inputs.orders``."""

    def __init__(self, frames: Mapping[str, DataFrame]) -> None:
        self._frames = dict(frames)

    def __getitem__(self, name: str) -> DataFrame:
        try:
            return self._frames[name]
        except KeyError:
            raise KeyError(f"the job has no input {name}{did_you_mean(name, self._frames)}") from None

    def __getattr__(self, name: str) -> DataFrame:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._frames)

    def __len__(self) -> int:
        return len(self._frames)


def open_inputs(spark: SparkSession, frozen: Mapping[str, Mapping[str, Any]]) -> JobInputs:
    """The result of the task ``freeze`` as DataFrames."""
    return JobInputs({name: open_frozen_input(spark, source, f"the input {name}") for name, source in frozen.items()})


def open_frozen_input(spark: SparkSession, frozen: Mapping[str, Any], label: str = "an input") -> DataFrame:
    """One frozen input with its filter and its columns. Raises UsageError if a column does not exist."""
    from pyspark.sql.types import StructType

    reader = spark.read
    schema = None if frozen.get("schema") is None else StructType.fromJson(dict(frozen["schema"]))
    if not frozen["files"]:
        if schema is None:
            raise JobFailed(f"{label} has neither files nor a schema")
        frame = spark.createDataFrame([], schema)
    else:
        if frozen.get("base"):
            reader = reader.option("basePath", spark_path(frozen["base"]))
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.parquet(*(spark_read_path(uri) for uri in frozen["files"]))
    if frozen.get("where") is not None:
        frame = frame.where(filter_condition(frozen["where"], frame.schema, f"`where` of {label}"))
    if frozen.get("columns") is not None:
        for name in frozen["columns"]:
            if name not in frame.columns:
                raise UsageError(f"{label} has no column {name}{did_you_mean(name, tuple(frame.columns))}")
        frame = frame.select(*(backquoted(name) for name in frozen["columns"]))
    return frame
