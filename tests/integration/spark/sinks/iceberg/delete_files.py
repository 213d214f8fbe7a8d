"""Delete files in Iceberg tables, as other engines write them: pyiceberg itself has no writer for them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.typedef import Record

_numbers = itertools.count(1)

POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        writer = super().new_writer()
        writer.metadata = {**writer.metadata, "content": "deletes"}
        return writer


def delete_positions(table: Table, positions: Mapping[str, Sequence[int]], partition: Record | None = None) -> None:
    """Delete rows by the path of their data file and their number in it; ``partition``: that of the files."""
    rows = [{"file_path": path, "pos": number} for path, numbers in positions.items() for number in sorted(numbers)]
    _commit(table, DataFileContent.POSITION_DELETES, pa.Table.from_pylist(rows, POSITIONS), None, partition)


def delete_equal(table: Table, column: str, values: Sequence[Any]) -> None:
    """Delete every row of earlier snapshots that has one of the values."""
    field = table.schema().find_field(column)
    schema = schema_to_pyarrow(table.schema().select(column))
    _commit(table, DataFileContent.EQUALITY_DELETES, pa.table({column: values}, schema), [field.field_id])


def _commit(
    table: Table,
    content: DataFileContent,
    rows: pa.Table,
    equality_ids: list[int] | None,
    partition: Record | None = None,
) -> None:
    path = f"{table.location()}/data/deletes-{next(_numbers)}.parquet"
    local = Path(path.removeprefix("file://"))
    pq.write_table(rows, local)
    nothing: dict[int, Any] = {}
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition or Record(),
        record_count=len(rows),
        file_size_in_bytes=local.stat().st_size,
        column_sizes=nothing,
        value_counts=nothing,
        null_value_counts=nothing,
        nan_value_counts=nothing,
        lower_bounds=nothing,
        upper_bounds=nothing,
        key_metadata=None,
        split_offsets=None,
        equality_ids=equality_ids,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
    )
    with table.transaction() as transaction:
        producer: Any = transaction.update_snapshot().fast_append()

        def delete_manifest(spec: PartitionSpec) -> ManifestWriter:
            return _DeleteManifest(
                spec, table.schema(), producer.new_manifest_output(), producer.snapshot_id, "deflate"
            )

        producer.new_manifest_writer = delete_manifest  # pyiceberg's own writer is for data files only
        producer.append_data_file(file)
        producer.commit()
