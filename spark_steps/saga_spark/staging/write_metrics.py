"""Metrics of an output counted while it is written: rows, nulls, exact sums, the hash, and numbers of checks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from saga_spark.manifest import MAX_SUM_PRECISION, ManifestColumn, ManifestMetric, StagedFile
from saga_spark.row_fingerprint import Fingerprint, fingerprint_aggregates, read_fingerprint, row_words
from saga_spark.session_conf import changed_conf
from saga_spark.staging.parquet_metrics import FileMetrics, count_files
from saga_spark.storage import local_path
from sagas.text.sql_names import backquoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import DataType, StructType


ROW_COUNT = "hash_rows"
"""Name of the row count among the observed values."""


@dataclass(frozen=True, slots=True)
class ObservedMetrics:
    fingerprint: Fingerprint
    columns: tuple[ManifestColumn, ...]
    counts: Mapping[str, int | str | None]

    @property
    def rows(self) -> int:
        return self.fingerprint.rows


class WriteMetrics:
    """The aggregates over rows of a type, and how their values are read. ``check_aggregates`` are more, by name.

    Null counts of plain columns are not among them: the footers of the files have these (``footer_columns``).
    """

    def __init__(self, schema: StructType, check_aggregates: Mapping[str, Column | ManifestMetric]) -> None:
        self._schema = schema
        self._check_aggregates = dict(check_aggregates)
        self.footer_columns = tuple(field.name for field in schema.fields if _is_single_parquet_column(field.dataType))

    def expressions(self) -> list[Column]:
        """The aggregates for ``DataFrame.agg``."""
        return [*self._base_expressions(wrapping=False), *self._check_expressions()]

    def observe(self, frame: DataFrame, base: Observation | None, checks: Observation, *, classic: bool) -> DataFrame:
        """The frame with its metrics observed during the write.

        Expressions of checks are evaluated in the session's own mode (ANSI or not), hence separately from ``base``,
        which observes the rest. If ``base`` is None, :meth:`file_values` supplies the rest.
        """
        from pyspark.sql import functions as F

        if base is None:
            return (
                frame.observe(checks, F.count(F.lit(1)).alias(ROW_COUNT), *self._check_expressions())
                if self._check_expressions()
                else frame
            )
        if classic:
            with changed_conf(frame.sparkSession, "spark.sql.ansi.enabled", "false"):
                frame = frame.observe(base, *self._base_expressions(wrapping=True))
        else:
            frame = frame.observe(base, *self._base_expressions(wrapping=False))
        return frame.observe(checks, *self._check_expressions()) if self._check_expressions() else frame

    def observed_values(self, base: Observation | None, checks: Observation) -> dict[str, Any]:
        """The values observed by :meth:`observe`, with the row count (``ROW_COUNT``) if it was counted."""
        return {**({} if base is None else base.get), **(checks.get if self._check_expressions() else {})}

    def file_values(self, counted: FileMetrics) -> dict[str, Any]:
        """The values counted from the files, in place of those that ``base`` would have observed."""
        fingerprint = counted.fingerprint
        values: dict[str, Any] = {
            ROW_COUNT: fingerprint.rows,
            "hash_word1": fingerprint.first,
            "hash_word2": fingerprint.second,
        }
        for index, field in enumerate(self._schema.fields):
            if field.name in counted.sums:
                scale = getattr(field.dataType, "scale", 0)
                values[f"sum_{index}_plain"] = Decimal(f"{counted.sums[field.name]}E-{scale}")
        return values

    def _base_expressions(self, *, wrapping: bool) -> list[Column]:
        from pyspark.sql import functions as F

        expressions = fingerprint_aggregates(row_words(self._schema), "hash_", wrapping=wrapping)
        for index, field in enumerate(self._schema.fields):
            column = F.col(backquoted(field.name))
            if field.name not in self.footer_columns:
                expressions.append(F.count(column).alias(f"values_{index}"))
            expressions += [
                expression.alias(f"sum_{index}_{part}")
                for part, expression in _sum_parts(column, field.dataType).items()
            ]
        return expressions

    def _check_expressions(self) -> list[Column]:
        return [
            aggregate.alias(f"count_{index}")
            for index, aggregate in enumerate(self._check_aggregates.values())
            if not isinstance(aggregate, ManifestMetric)
        ]

    def to_observed(self, values: Mapping[str, Any], nulls: Mapping[str, int]) -> ObservedMetrics:
        """``nulls`` are the null counts of ``footer_columns``, by name."""
        fingerprint = read_fingerprint(values, "hash_")
        columns = []
        for index, field in enumerate(self._schema.fields):
            missing = nulls.get(field.name)
            present = int(values[f"values_{index}"] or 0) if missing is None else fingerprint.rows - missing
            parts = {
                part: values[f"sum_{index}_{part}"]
                for part in ("high", "low", "plain")
                if f"sum_{index}_{part}" in values
            }
            total = _exact_total(parts, present)
            columns.append(ManifestColumn(field.name, field.dataType.simpleString(), fingerprint.rows - present, total))
        seen = {column.name: column for column in columns}
        counts = {
            name: getattr(seen[aggregate.column], aggregate.metric)
            if isinstance(aggregate, ManifestMetric)
            else _json_number(values[f"count_{index}"])
            for index, (name, aggregate) in enumerate(self._check_aggregates.items())
        }
        return ObservedMetrics(fingerprint, tuple(columns), counts)


def _is_single_parquet_column(kind: DataType) -> bool:
    """Return whether the type is a single Parquet column, whose nulls are the nulls of the value."""
    from pyspark.sql import types as T

    return isinstance(kind, T.AtomicType) and not isinstance(kind, T.VariantType)


def _sum_parts(column: Column, kind: DataType) -> dict[str, Column]:
    """The parts of an exact sum. A bigint is summed in two halves, so that no sum of bigints overflows."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.ByteType() | T.ShortType() | T.IntegerType():
            return {"plain": F.sum(column.cast("bigint"))}
        case T.LongType():
            return {
                "high": F.sum(F.shiftright(column, 32)),
                "low": F.sum(column.bitwiseAND(F.lit(2**32 - 1))),
            }
        case T.DecimalType():
            return {"plain": F.sum(column) if kind.precision <= MAX_SUM_PRECISION else F.try_sum(column)}
        case _:
            return {}


def _exact_total(parts: Mapping[str, Any], present: int) -> str | None:
    """The sum as exact decimal text; None if a sum has no meaning, or has more than 38 digits."""
    if not parts:
        return None
    if not present:
        return "0"
    if "high" in parts:
        return str(int(parts["high"]) * 2**32 + int(parts["low"]))
    return None if parts["plain"] is None else _decimal_string(Decimal(parts["plain"]))


def _decimal_string(value: Decimal) -> str:
    return format(value, "f")


def _json_number(value: Any) -> int | str | None:
    match value:
        case None | int():
            return value
        case Decimal():
            return _decimal_string(value)
        case _:
            return str(value)


# Counting files while Spark is still writing others: the tasks of a write rarely end together, so processors are idle.
# Only for a local file system, where a file keeps its identity when it is renamed.
_COMMITTED_TASKS, _TASK_PREFIX = "_temporary/0", "task_"
"""The place in which Hadoop's committer keeps the folders of finished tasks until the job commits: their files are
complete.
"""

_POLL_INTERVAL = 0.1
"""Seconds between two polls."""

_FileIdentity = tuple[int, int, int]
"""Inode, size and modification time: these survive a rename and identify the file."""


class BackgroundCount:
    """Metrics counted while Spark writes; None for a file that Spark has to count."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._known: dict[_FileIdentity, FileMetrics | None] = {}

    def count_new_files(self, folder: Path, stop: threading.Event) -> None:
        """Count new files one by one until ``stop`` is set."""
        for path in _committed_files(folder):
            if stop.is_set():
                return
            try:
                identity = _file_identity(path)
                if identity not in self._known:
                    # One thread: Spark's remaining tasks use the other processors.
                    metrics = count_files([StagedFile(path.as_uri(), identity[1], 0)], self._schema, threads=1)
                    self._known[identity] = metrics
            except (OSError, pa.ArrowException):
                continue  # renamed meanwhile; an unreadable file is reported by the final count

    def count(self, files: Sequence[StagedFile]) -> FileMetrics | None:
        """The metrics of all files; those already counted are not read again. None as in :func:`count_files`."""
        counted: list[FileMetrics] = []
        unmeasured: list[StagedFile] = []
        for file in files:
            path = local_path(file.uri)
            identity = _file_identity(path) if path is not None else None
            if identity is None or identity not in self._known:
                unmeasured.append(file)
                continue
            metrics = self._known[identity]
            if metrics is None:
                return None
            counted.append(metrics)
        unmeasured_metrics = count_files(unmeasured, self._schema)
        return None if unmeasured_metrics is None else sum(counted, unmeasured_metrics)


@contextmanager
def count_in_background(folder: str, schema: StructType) -> Iterator[BackgroundCount]:
    """Count in the background while the block writes below ``folder``, which must be local."""
    ahead, stop, path = BackgroundCount(schema), threading.Event(), local_path(folder)
    assert path is not None

    def run() -> None:
        while not stop.wait(_POLL_INTERVAL):
            ahead.count_new_files(path, stop)

    thread = threading.Thread(target=run, name="count-ahead", daemon=True)
    thread.start()
    try:
        yield ahead
    finally:
        stop.set()
        thread.join()


def _committed_files(folder: Path) -> Iterator[Path]:
    """The files of finished tasks. Files that are renamed meanwhile are skipped."""
    top = str(folder / _COMMITTED_TASKS)
    for parent, folders, names in os.walk(top):
        if parent == top:
            folders[:] = [name for name in folders if name.startswith(_TASK_PREFIX)]
        yield from (Path(parent, name) for name in names if name.endswith(".parquet"))


def _file_identity(path: Path) -> _FileIdentity:
    stat = os.stat(path)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
