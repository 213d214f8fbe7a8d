"""Frozen inputs as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from saga_spark.errors import JobFailed
from saga_spark.hashing import quoted
from saga_spark.storage import spark_path
from sagas.settings.model import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class Inputs(Mapping[str, "DataFrame"]):
    """The inputs of a job by name: ``inputs["orders"]`` or ``inputs.orders``."""

    def __init__(self, frames: Mapping[str, DataFrame]) -> None:
        self._frames = dict(frames)

    def __getitem__(self, name: str) -> DataFrame:
        try:
            return self._frames[name]
        except KeyError:
            raise KeyError(f"there is no input {name}{did_you_mean(name, self._frames)}") from None

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


def open_inputs(spark: SparkSession, frozen: Mapping[str, Mapping[str, Any]]) -> Inputs:
    """What the task ``freeze`` has answered, as DataFrames."""
    return Inputs({name: open_frozen(spark, one) for name, one in frozen.items()})


def open_frozen(spark: SparkSession, frozen: Mapping[str, Any]) -> DataFrame:
    """One frozen input with its filter and its columns. Raises JobFailed: it has no such column."""
    from pyspark.sql.types import StructType

    reader = spark.read
    schema = None if frozen.get("schema") is None else StructType.fromJson(dict(frozen["schema"]))
    if not frozen["files"]:
        if schema is None:
            raise JobFailed("an input has neither files nor a schema")
        frame = spark.createDataFrame([], schema)
    else:
        if frozen.get("base"):
            reader = reader.option("basePath", spark_path(frozen["base"]))
        if schema is not None:
            reader = reader.schema(schema)
        frame = reader.parquet(*(spark_path(uri) for uri in frozen["files"]))
    if frozen.get("where") is not None:
        frame = frame.where(condition(frozen["where"]))
    if frozen.get("columns") is not None:
        for name in frozen["columns"]:
            if name not in frame.columns:
                raise JobFailed(f"an input has no column {name}{did_you_mean(name, tuple(frame.columns))}")
        frame = frame.select(*(quoted(name) for name in frozen["columns"]))
    return frame


def condition(where: str | Mapping[str, Any]) -> Column:
    """A filter as people write it: SQL, or for each column a value, one of a list, or null."""
    from pyspark.sql import functions as F

    if isinstance(where, str):
        return F.expr(where)
    found = F.lit(True)
    for name, value in where.items():
        column = F.col(quoted(name))
        if value is None:
            found &= column.isNull()
        else:
            found &= column.isin(value) if isinstance(value, list) else column == F.lit(value)
    return found
