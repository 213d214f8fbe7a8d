"""Freezes a catalog table at one snapshot: as its own data files where Spark can read them alone, else as a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.snapshots import Snapshot

from saga_spark.inputs.parquet_input import convert_table
from saga_spark.inputs.readable_types import UnreadableType, readable_type
from saga_spark.job_errors import JobFailed, UnreadableInput, first_line
from saga_spark.settings import SparkSettings
from saga_spark.sinks.iceberg.catalog import TableName, load_table, open_catalog, translate_errors
from saga_spark.sinks.iceberg.compatibility import COMPACTION_ADVICE, has_equality_deletes, type_label
from saga_spark.storage import FOOTER_READERS, create_folder, resolve_uri, to_uri
from sagas.definition.times import utc_if_naive


def freeze_table(settings: SparkSettings, name: str, values: dict[str, Any], uri: str) -> dict[str, Any]:
    """Freeze a table; ``uri`` is where its rows are written if they must be copied.

    The columns are the table's current ones, or with ``as_of`` those of that snapshot. Raises JobFailed if the table or
    snapshot does not exist or reading it would restore deleted rows; InfrastructureError for the catalog.
    """
    table_name = TableName.parse(values["table"])
    with translate_errors(str(table_name)):
        table = load_table(open_catalog(settings, table_name.catalog), table_name)
    if table is None:
        raise JobFailed(f"the input {name} reads the table {table_name}, which does not exist")
    as_of = values.get("as_of")
    snapshot = snapshot_at(table, as_of, name)
    fingerprint = {"kind": "table", "table": str(table_name), "uuid": str(table.metadata.table_uuid), "snapshot": None}
    if snapshot is None:
        return {"files": [uri], "rows": _write_rows(name, table_name, table.scan(), uri), "fingerprint": fingerprint}
    fingerprint["snapshot"] = snapshot.snapshot_id
    scan = table.scan() if as_of is None else table.scan(snapshot_id=snapshot.snapshot_id)
    with _translate_read_errors(name, table_name):
        if has_equality_deletes(table.io, snapshot):
            raise UnreadableInput(f"the input {name}: the table {table_name} has equality deletes; {COMPACTION_ADVICE}")
        tasks = list(scan.plan_files())
        if tasks and _can_read_files_directly(table, scan.projection(), tasks):
            files = [to_uri(task.file.file_path, resolve_uri(task.file.file_path)[1]) for task in tasks]
            rows = sum(task.file.record_count for task in tasks)
            return {"files": files, "rows": rows, "fingerprint": fingerprint}
        return {"files": [uri], "rows": _write_rows(name, table_name, scan, uri), "fingerprint": fingerprint}


def snapshot_at(table: Table, as_of: Any, name: str) -> Snapshot | None:
    """The snapshot of a table at ``as_of``: a snapshot id, the name of a tag or branch, or a time (ISO 8601; UTC if it
    has no zone).

    None if the table has never had rows. Raises JobFailed if the snapshot does not exist.
    """
    if as_of is None:
        return table.current_snapshot()
    text = str(as_of)
    snapshot = (table.snapshot_by_id(int(text)) if text.isdigit() else None) or table.snapshot_by_name(text)
    if snapshot is not None:
        return snapshot
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise JobFailed(
            f"the input {name}: `as_of` is a snapshot id, a tag, a branch or a timestamp of the table, not {text}"
        ) from None
    snapshot = table.snapshot_as_of_timestamp(int(utc_if_naive(time).timestamp() * 1000))
    if snapshot is None:
        raise JobFailed(f"the input {name}: the table has no snapshot as of {text}")
    return snapshot


@contextmanager
def _translate_read_errors(name: str, table_name: TableName) -> Iterator[None]:
    """Return what pyiceberg does not support fails permanently: one message, and no retries."""
    try:
        yield
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UnreadableInput(
            f"the input {name}: the table {table_name} cannot be read: {first_line(error)}"
        ) from error


def _can_read_files_directly(table: Table, schema: Schema, tasks: Sequence[FileScanTask]) -> bool:
    """Return whether Spark can read the data files without Iceberg.

    Not if rows of them are deleted, and only if each holds exactly the selected columns: columns that were renamed,
    added or widened later need Iceberg's own reader.
    """
    if len(table.metadata.schemas) > 1 or any(map(_is_converted, schema.as_arrow().types)):
        return False
    if any(task.delete_files or task.file.file_format != FileFormat.PARQUET for task in tasks):
        return False
    table_columns = _schema_columns(schema)
    names = table.name_mapping() or schema.name_mapping

    def fits(task: FileScanTask) -> bool:
        return _file_columns(task.file.file_path, names) == table_columns

    # Check every footer: metadata drops schemas that no snapshot uses, while files with these schemas remain.
    with ThreadPoolExecutor(FOOTER_READERS) as pool:
        return all(pool.map(fits, tasks))


def _is_converted(kind: pa.DataType) -> bool:
    try:
        return readable_type(kind, "").converted
    except UnreadableType:
        return True


def _schema_columns(schema: Schema) -> list[tuple[int, str, str]]:
    return [(field.field_id, field.name, type_label(field.field_type)) for field in schema.fields]


def _file_columns(file: str, names: NameMapping) -> list[tuple[int, str, str]] | None:
    """The columns in a file; None if one is not in the table, or has a type that Spark cannot read."""
    system, path = resolve_uri(file)
    with system.open_input_file(path) as source:
        file_schema = pq.read_schema(source)
    try:
        return _schema_columns(pyarrow_to_schema(file_schema, names))
    except (ValueError, TypeError):
        return None


def _write_rows(name: str, table_name: TableName, scan: DataScan, uri: str) -> int:
    """Returns the number of rows."""
    create_folder(uri.rpartition("/")[0])
    system, path = resolve_uri(uri)
    reader = scan.to_arrow_batch_reader()
    label = f"table {table_name}"
    try:
        types = {field.name: readable_type(field.type, field.name).type for field in reader.schema}
    except UnreadableType as error:
        raise UnreadableInput(f"the input {name}: in the {label} {error}") from None
    rows = 0
    with system.open_output_stream(path) as stream, pq.ParquetWriter(stream, pa.schema(list(types.items()))) as writer:
        for batch in reader:
            writer.write_table(convert_table(name, label, pa.Table.from_batches([batch]), types))
            rows += batch.num_rows
    return rows
