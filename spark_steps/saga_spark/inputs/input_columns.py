"""The columns of an input as Spark would read it, from footers and catalogs: Spark is not started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from saga_spark.column_values import exact_values
from saga_spark.inputs.parquet_input import columns_of_files
from saga_spark.inputs.readable_types import UnreadableType, readable_type, spark_schema
from saga_spark.settings import SparkSettings
from saga_spark.sinks.parquet.parquet_pointer import CURRENT, read_pointer
from saga_spark.storage import file_size, list_parquet_files, project_glob, project_location, split_glob, to_uri
from sagas.errors import UsageError

MAX_FILES = 50
"""Files whose footers are read."""


@dataclass(frozen=True, slots=True)
class InputColumns:
    """The names of the columns, and the types of those that have one before Spark has read them.

    ``is_complete`` False: there are more files, which may have more columns.
    """

    names: Sequence[str]
    types: Mapping[str, pa.DataType]
    is_complete: bool = True

    def value_problem(self, column: str, values: Sequence[Any]) -> str | None:
        """The sentence about a value of a mapping `where` that the column cannot have."""
        from pyspark.sql.types import StructType  # without a JVM

        if column not in self.types:
            return None
        schema = StructType.fromJson(spark_schema({column: self.types[column]}))
        try:
            exact_values(column, schema.fields[0].dataType, values, "`where`")
        except UsageError as error:
            return error.message
        return None


def table_columns(settings: SparkSettings, name: str) -> InputColumns | None:
    """The columns of a table of a catalog; None if it does not exist. Raises UsageError, InfrastructureError."""
    from saga_spark.sinks.iceberg.catalog import TableName, read_schema

    schema = read_schema(settings, TableName.parse(name))
    if schema is None:
        return None
    types: dict[str, pa.DataType] = {}
    for field in schema.as_arrow():
        try:
            types[field.name] = readable_type(field.type, field.name).type
        except UnreadableType:
            continue  # the step says so, if it reads the column
    return InputColumns([field.name for field in schema.fields], types)


def parquet_columns(path: str, root: Path) -> InputColumns | None:
    """The columns of Parquet files; None without any. Raises UnreadableInput, JobFailed, UsageError."""
    location = project_location(path, root)
    if file_size(f"{location.rstrip('/')}/{CURRENT}") is not None:
        uris, base = [to_uri("file:", file) for file in read_pointer(location)], None
        if not uris:
            return InputColumns([], {}, is_complete=False)
    else:
        pattern = project_glob(path, root)
        uris = [file.uri for file in list_parquet_files(pattern)]
        if not uris:
            return None
        above = to_uri(pattern, split_glob(pattern)[0]).rstrip("/")
        base = above if any("=" in unquote(uri[len(above) :]) for uri in uris) else None
    types, folders = columns_of_files(path, uris[:MAX_FILES], base)
    # Spark infers the types of the columns in names of folders.
    return InputColumns([*types, *sorted(folders)], types, is_complete=len(uris) <= MAX_FILES)
