"""The partition of rows and of data files, by Iceberg's own transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import DataFileStatistics
from pyiceberg.partitioning import PartitionField, partition_record_value
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType


def file_partition(
    metadata: TableMetadata, statistics: DataFileStatistics, read_column: Callable[[str], pa.ChunkedArray]
) -> Record:
    """The partition of a file: from its statistics if they prove it, else from the values of ``read_column(name)``.

    Raises ValueError, one message, if the file has rows of several partitions.
    """
    return Record(*(_field_value(metadata, field, statistics, read_column) for field in metadata.spec().fields))


def split_by_partition(metadata: TableMetadata, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
    """The rows of each partition of the table, in their order."""
    codes, values = [], []
    for field in metadata.spec().fields:
        of_rows, distinct = _transformed_codes(metadata, field, _source_column(metadata, field, rows))
        codes.append(of_rows)
        values.append(distinct)
    if not codes:
        yield Record(), rows
        return
    groups, group_of_row = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    for number, group in enumerate(groups):
        partition = Record(*(distinct[code] for distinct, code in zip(values, group, strict=True)))
        yield partition, rows.take(pa.array(np.flatnonzero(group_of_row.reshape(-1) == number)))


def comparable(partition: Record) -> tuple[Any, ...]:
    """The values of a partition for comparison: NaN is one partition."""
    return tuple("NaN" if value != value else value for value in (partition[index] for index in range(len(partition))))


def _field_value(
    metadata: TableMetadata,
    field: PartitionField,
    statistics: DataFileStatistics,
    read_column: Callable[[str], pa.ChunkedArray],
) -> Any:
    if isinstance(field.transform, VoidTransform):
        return None
    schema = metadata.schema()
    nulls = statistics.null_value_counts.get(field.source_id)
    aggregate = statistics.column_aggregates.get(field.source_id)
    if nulls is not None and nulls == statistics.record_count:
        return None
    kind = schema.find_type(field.source_id)
    # Bounds of floating-point numbers prove nothing: writers leave NaN out of them, or make them NaN.
    proves = field.transform.preserves_order and not isinstance(kind, FloatType | DoubleType)
    if nulls == 0 and proves and aggregate is not None and aggregate.current_min is not None:
        transform = field.transform.transform(kind)
        first, last = (
            _in_range(transform(partition_record_value(field, value, schema)), value, metadata, field)
            for value in (aggregate.current_min, aggregate.current_max)
        )
        if first == last:
            return first
        raise _several_partitions(metadata, field)
    name = schema.find_column_name(field.source_id) or ""
    _, distinct = _transformed_codes(metadata, field, read_column(name))
    if len(distinct) > 1:
        raise _several_partitions(metadata, field)
    return distinct[0] if distinct else None


def _in_range(transformed: Any, value: Any, metadata: TableMetadata, field: PartitionField) -> Any:
    """Raises ValueError: the lowest number of a type minus its remainder is not a number of that type."""
    match field.transform.result_type(metadata.schema().find_type(field.source_id)):
        case IntegerType() | LongType() as kind:
            fits = transformed is None or transformed >= kind.min
        case DecimalType() as kind:
            fits = transformed is None or len(transformed.as_tuple().digits) <= kind.precision
        case _:
            fits = True
    if not fits:
        name = metadata.schema().find_column_name(field.source_id)
        raise ValueError(f"has the value {value} in {name}, which {field.transform} takes out of the range of its type")
    return transformed


def _several_partitions(metadata: TableMetadata, field: PartitionField) -> ValueError:
    name = metadata.schema().find_column_name(field.source_id)
    label = name if str(field.transform) == "identity" else f"{field.transform}({name})"
    return ValueError(f"has several values of {label}, by which the table is partitioned")


def _transformed_codes(
    metadata: TableMetadata, field: PartitionField, column: pa.ChunkedArray
) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """For each row the position of its partition value in the list of distinct values."""
    transform = field.transform.transform(metadata.schema().find_type(field.source_id))
    encoded = _internal_values(column).combine_chunks().dictionary_encode(null_encoding="encode")
    distinct: list[Any] = []
    positions: dict[Any, int] = {}
    codes = []
    for value in encoded.dictionary.to_pylist():
        transformed = _in_range(transform(value), value, metadata, field)
        key = "NaN" if transformed != transformed else (transformed,)
        if key not in positions:
            positions[key] = len(distinct)
            distinct.append(transformed)
        codes.append(positions[key])
    return np.array(codes, np.int64)[encoded.indices.to_numpy()], distinct


def _internal_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates as days and timestamps as microseconds, as the transforms take them."""
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pa.types.is_time(kind):
        return column.cast(pa.time64("us")).cast(pa.int64())
    return column


def _source_column(metadata: TableMetadata, field: PartitionField, rows: pa.Table) -> pa.ChunkedArray:
    name = metadata.schema().find_column_name(field.source_id) or ""
    if name not in rows.column_names:
        raise ValueError(
            f"the table is partitioned by {name}, which is part of another column; use a column of its own"
        )
    return rows.column(name)
