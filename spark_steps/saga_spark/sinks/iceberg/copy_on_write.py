"""Copy-on-write for the replacing modes: files are replaced whole where their metrics allow it, else rewritten.

One snapshot deletes the replaced files and adds the rewritten and the new ones. Rewriting holds one file at a time in
memory.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    IsNull,
    LessThanOrEqual,
    Or,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow
from pyiceberg.manifest import DATA_FILE_TYPE, DEFAULT_READ_VERSION, DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from saga_spark.column_values import NoEqual, finite_number, iso_time, plain_text
from saga_spark.job.job_spec import Output
from saga_spark.job_errors import first_line
from saga_spark.manifest import Manifest
from saga_spark.sinks.iceberg.compatibility import COMPACTION_ADVICE, has_equality_deletes
from saga_spark.sinks.iceberg.partition_values import comparable, split_by_partition
from saga_spark.sinks.iceberg.pyiceberg_internals import complement_filter, data_file_writer, strict_file_matcher
from saga_spark.storage import resolve_uri
from sagas.definition.times import utc_if_naive
from sagas.text.exact_numbers import is_exact_double, is_exact_single
from sagas.text.shortening import counted


@dataclass(slots=True)
class ReplacedFiles:
    """Live files to delete, and the rewritten files that replace them in addition to the new rows."""

    removed: list[DataFile] = field(default_factory=list)
    rewritten: list[DataFile] = field(default_factory=list)


def find_replaced_files(
    io: FileIO,
    metadata: TableMetadata,
    output: Output,
    manifest: Manifest,
    new: Sequence[DataFile],
    rewrite_folder: str,
) -> ReplacedFiles:
    """The files that the mode of the output replaces. Rewritten files go below ``rewrite_folder``.

    Raises ValueError if it cannot be determined which rows of the table are deleted.
    """
    head = metadata.current_snapshot()
    if head is None or output.mode == "append":
        return ReplacedFiles()
    if has_equality_deletes(io, head):
        raise ValueError(f"the table has equality deletes; {COMPACTION_ADVICE}")
    if output.mode == "overwrite":
        return ReplacedFiles([task.file for task in _plan_files(io, metadata, AlwaysTrue())])
    result = ReplacedFiles()
    write = _row_writer(io, metadata, rewrite_folder)
    for task, kept in _affected_files(io, metadata, output, manifest, new):
        if kept is None:
            result.removed.append(task.file)
            continue
        before = _read_file(io, metadata, task)
        rows = kept(before)
        if len(rows) == len(before):
            continue
        result.removed.append(task.file)
        if len(rows):
            result.rewritten += write(rows)
    return result


def rewrite_files(
    io: FileIO, metadata: TableMetadata, image: Snapshot, names: Container[str], folder: str
) -> list[DataFile]:
    """New files below ``folder`` with the rows that these files of the snapshot ``image`` had."""
    write = _row_writer(io, metadata, folder)
    tasks = _plan_files(io, metadata, AlwaysTrue(), image.snapshot_id)
    rows = (_read_file(io, metadata, task) for task in tasks if task.file.file_path in names)
    return [file for part in rows if len(part) for file in write(part)]


_PARTITION_FIELD = [field.name for field in DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields].index("partition")

KeepRows = Callable[[pa.Table], pa.Table]


def _affected_files(
    io: FileIO, metadata: TableMetadata, output: Output, manifest: Manifest, new: Sequence[DataFile]
) -> Iterator[tuple[FileScanTask, KeepRows | None]]:
    """Files in which rows may be replaced, each with the function that selects the rows to keep (None: no row)."""
    schema = metadata.schema()
    if output.mode == "merge":
        keys = read_staged_rows(manifest, output.key)
        if not len(keys):
            return
        for task in _plan_files(io, metadata, _key_range(keys)):
            yield task, functools.partial(_without_keys, keys=keys)
        return
    if output.mode == "overwrite_partitions":
        yield from _files_of_partitions(io, metadata, {comparable(file.partition) for file in new})
        return
    predicate = where_expression(output.where, schema)
    all_rows_match, complement = strict_file_matcher(schema, predicate), complement_filter(schema, predicate)
    for task in _plan_files(io, metadata, predicate):
        yield task, None if all_rows_match(task.file) else functools.partial(_filter_rows, condition=complement)


def _files_of_partitions(
    io: FileIO, metadata: TableMetadata, partitions: set[tuple[Any, ...]]
) -> Iterator[tuple[FileScanTask, KeepRows | None]]:
    """Files of an earlier partitioning may have rows of several partitions."""
    if not partitions:
        return
    for task in _plan_files(io, metadata, AlwaysTrue()):
        if task.file.spec_id != metadata.default_spec_id:
            yield task, functools.partial(_outside_partitions, metadata=metadata, partitions=partitions)
        elif comparable(task.file.partition) in partitions:
            yield task, None


def _outside_partitions(rows: pa.Table, metadata: TableMetadata, partitions: set[tuple[Any, ...]]) -> pa.Table:
    kept = [part for partition, part in split_by_partition(metadata, rows) if comparable(partition) not in partitions]
    return pa.concat_tables(kept) if kept else rows.slice(0, 0)


def _filter_rows(rows: pa.Table, condition: pc.Expression) -> pa.Table:
    return rows.filter(condition)


def _without_keys(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows whose key is not among ``keys``. A key with a null equals no other."""
    names = keys.column_names
    numbered = rows.select(names).append_column("#", pa.array(range(len(rows)), pa.int64()))
    same_types = keys.cast(pa.schema([rows.schema.field(name).with_nullable(True) for name in names]))
    remaining = numbered.join(same_types, names, join_type="left anti").column("#")
    return rows.take(remaining.take(pc.call_function("sort_indices", [remaining])))


def _plan_files(
    io: FileIO, metadata: TableMetadata, predicate: BooleanExpression, snapshot_id: int | None = None
) -> list[FileScanTask]:
    """Files of the current snapshot, or of an earlier one."""
    return list(DataScan(table_metadata=metadata, io=io, row_filter=predicate, snapshot_id=snapshot_id).plan_files())


def _read_file(io: FileIO, metadata: TableMetadata, task: FileScanTask) -> pa.Table:
    scan = ArrowScan(table_metadata=metadata, io=io, projected_schema=metadata.schema(), row_filter=AlwaysTrue())
    return scan.to_table([FileScanTask(task.file, delete_files=task.delete_files)])


def _row_writer(io: FileIO, metadata: TableMetadata, folder: str) -> Callable[[pa.Table], list[DataFile]]:
    """A function that writes rows as data files of the table below ``folder``, which the clean-up of the publication
    deletes.

    pyiceberg's own writer computes neither buckets nor truncated values without its native package, and takes each
    column as the source of one partition field only: so it writes files without partitions here.
    """
    properties = {**metadata.properties, TableProperties.WRITE_DATA_PATH: folder}
    plain = metadata.model_copy(
        update={
            "properties": properties,
            "partition_specs": [UNPARTITIONED_PARTITION_SPEC],
            "default_spec_id": UNPARTITIONED_PARTITION_SPEC.spec_id,
        }
    )
    write_plain = data_file_writer(plain, io)

    def write(rows: pa.Table) -> list[DataFile]:
        files = []
        for partition, part in split_by_partition(metadata, rows):
            for file in write_plain(part):
                file[_PARTITION_FIELD] = partition
                file.spec_id = metadata.default_spec_id
                files.append(file)
        return files

    return write


def where_expression(where: Mapping[str, Any], schema: Schema) -> BooleanExpression:
    """`{column: value}` means equality, a list means any of its values, null means is null. All columns must match.

    Raises ValueError if a column does not exist, or its type cannot hold a value exactly.
    """
    parts: list[BooleanExpression] = []
    for column, value in where.items():
        kind = schema.find_field(column).field_type
        items = value if isinstance(value, (list, tuple)) else [value]
        parts.append(_any_of([_equal(column, exact_value(column, kind, item)) for item in items]))
    return _all_of(parts)


def exact_value(column: str, kind: IcebergType, value: Any) -> Any:
    """The value as pyiceberg compares it with a column of this type; pyiceberg would cut 2.5 to 2 for a long.

    A time without a zone is in UTC. Raises ValueError for a value that the type cannot have.
    """
    try:
        return None if value is None else _exact_value(kind, value)
    except (ValueError, KeyError, InvalidOperation, NoEqual):
        raise ValueError(f"the column {column} is {kind} and cannot be {value}") from None


def _exact_value(kind: IcebergType, value: Any) -> Any:
    exact: Any = value
    match kind:
        case IntegerType() | LongType() | DecimalType():
            number = finite_number(value)
            scale = kind.scale if isinstance(kind, DecimalType) else 0
            exact = number.quantize(Decimal(1).scaleb(-scale), context=Context(prec=80))
            if exact != number:
                raise ValueError
            return exact if isinstance(kind, DecimalType) else int(exact)
        case FloatType() | DoubleType():
            number = finite_number(value)
            if not (is_exact_single(number) if isinstance(kind, FloatType) else is_exact_double(number)):
                raise ValueError
            exact = float(number)
        case BooleanType():
            exact = {"true": True, "false": False}[str(value).lower()]
        case DateType():
            exact = dt.date.fromisoformat(plain_text(value)).isoformat()
        case TimestamptzType():
            at = iso_time(value)
            exact = utc_if_naive(at).astimezone(dt.UTC).isoformat()
        case TimestampType():
            at = iso_time(value)
            if at.tzinfo:
                raise ValueError
            exact = at.isoformat()
        case StringType():
            exact = plain_text(value)
    return exact


def _key_range(keys: pa.Table) -> BooleanExpression:
    """A predicate that is true for every row that can have one of the keys: the ranges of the key's columns."""
    parts: list[BooleanExpression] = []
    for name in keys.column_names:
        kind = keys.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)):
            continue  # other types have pitfalls (NaN, time zones), and the range is only an optimisation
        ends = pc.call_function("min_max", [keys.column(name)]).as_py()
        parts += [_predicate(GreaterThanOrEqual, name, ends["min"]), _predicate(LessThanOrEqual, name, ends["max"])]
    return _all_of(parts)


def _all_of(parts: Sequence[BooleanExpression]) -> BooleanExpression:
    return functools.reduce(And, parts, AlwaysTrue())


def _any_of(parts: Sequence[BooleanExpression]) -> BooleanExpression:
    if not parts:
        return AlwaysFalse()
    either: Any = Or
    return either(*parts) if len(parts) > 1 else parts[0]


def _equal(column: str, value: Any) -> BooleanExpression:
    is_null: Any = IsNull
    return is_null(column) if value is None else _predicate(EqualTo, column, value)


def _predicate(kind: Any, column: str, value: Any) -> BooleanExpression:
    return kind(column, value.isoformat() if isinstance(value, (dt.datetime, dt.date, dt.time)) else value)


def where_problems(manifest: Manifest, schema: Schema, where: Mapping[str, Any]) -> list[str]:
    """Every staged row must be within the overwritten range, else the next run would duplicate it."""
    try:
        expression = where_expression(where, schema)
        condition = expression_to_pyarrow(bind(schema, expression, case_sensitive=True), schema)
    except (ValueError, TypeError) as error:
        return [f"`where` of the output does not match its columns: {first_line(error)}"]
    data = _staged_dataset(manifest)
    outside = data.count_rows() - data.count_rows(filter=condition) if data is not None else 0
    if not outside:
        return []
    return [
        f"{outside} of {counted(manifest.rows, 'row')} {'is' if outside == 1 else 'are'} outside of the "
        f"range `where` that the mode overwrites"
    ]


def key_problems(manifest: Manifest, schema: Schema, key: Sequence[str]) -> list[str]:
    """Keys must be unique and without nulls, else the result of a merge would be arbitrary."""
    names = {field.name for field in schema.fields}
    unknown = [name for name in key if name not in names]
    if unknown:
        return [f"the output has no column {', '.join(unknown)}, which `key` names"]
    rows = read_staged_rows(manifest, key)
    problems = [
        f"{counted(rows.column(name).null_count, 'row has', 'rows have')} no {name}, which is part of `key`"
        for name in key
        if rows.column(name).null_count
    ]
    duplicates = len(rows) - len(rows.group_by(list(key)).aggregate([]))
    if duplicates:
        problems.append(
            f"{counted(duplicates, 'row has', 'rows have')} the same key "
            f"({', '.join(key)}) as another row of the output"
        )
    return problems


def read_staged_rows(manifest: Manifest, columns: Sequence[str]) -> pa.Table:
    """The given columns of the staged rows."""
    data = _staged_dataset(manifest)
    if data is None:
        return pa.table({name: pa.nulls(0) for name in columns})
    return data.to_table(columns=list(columns))


def _staged_dataset(manifest: Manifest) -> ds.Dataset | None:
    files = [resolve_uri(file.uri) for file in manifest.files if file.rows]
    if not files:
        return None
    return ds.dataset([path for _, path in files], filesystem=files[0][0], format="parquet")
