"""A table of a catalog at one snapshot: its own files where they can be read as they are, else its rows, written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.snapshots import Snapshot

from saga_spark.errors import JobFailed
from saga_spark.settings import SparkSettings
from saga_spark.sinks.files import create_folder, resolve
from saga_spark.sinks.iceberg_catalogs import Place, load_table, open_catalog, trouble
from saga_spark.sinks.iceberg_deletes import ADVICE, has_equality_deletes
from saga_spark.sinks.iceberg_schema import type_text
from saga_spark.storage import READERS, uri_of


def freeze_table(settings: SparkSettings, name: str, values: dict[str, Any], uri: str) -> dict[str, Any]:
    """``uri`` is where the rows go if they must be written.

    The columns are those the table has now; with ``as_of`` those it had then. Raises JobFailed: no such table or
    snapshot, or it cannot be read without bringing deleted rows back; Infrastructure: the catalog.
    """
    place = Place.parse(values["table"])
    with trouble(str(place)):
        table = load_table(open_catalog(settings, place.catalog), place)
    if table is None:
        raise JobFailed(f"the input {name} reads the table {place}, which does not exist")
    as_of = values.get("as_of")
    snapshot = snapshot_at(table, as_of, name)
    fingerprint = {"kind": "table", "table": str(place), "uuid": str(table.metadata.table_uuid), "snapshot": None}
    if snapshot is None:
        return {"files": [uri], "rows": _write(table.scan(), uri), "fingerprint": fingerprint}
    fingerprint["snapshot"] = snapshot.snapshot_id
    scan = table.scan() if as_of is None else table.scan(snapshot_id=snapshot.snapshot_id)
    with _readable(name, place):
        if has_equality_deletes(table.io, snapshot):
            raise JobFailed(f"the input {name}: rows of the table {place} are deleted by equality deletes; {ADVICE}")
        tasks = list(scan.plan_files())
        if tasks and _as_they_are(table, scan.projection(), tasks):
            files = [uri_of(task.file.file_path, resolve(task.file.file_path)[1]) for task in tasks]
            rows = sum(task.file.record_count for task in tasks)
            return {"files": files, "rows": rows, "fingerprint": fingerprint}
        return {"files": [uri], "rows": _write(scan, uri), "fingerprint": fingerprint}


def snapshot_at(table: Table, as_of: Any, name: str) -> Snapshot | None:
    """``as_of`` is a snapshot id, the name of a tag or branch, or a time (ISO 8601; without a zone it is UTC).

    None: the table never had rows. Raises JobFailed: there is no such snapshot.
    """
    if as_of is None:
        return table.current_snapshot()
    text = str(as_of)
    found = (table.snapshot_by_id(int(text)) if text.isdigit() else None) or table.snapshot_by_name(text)
    if found is not None:
        return found
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise JobFailed(
            f"the input {name}: {text} is neither a snapshot of the table, nor one of its tags or branches, nor a time"
        ) from None
    moment = time if time.tzinfo else time.replace(tzinfo=UTC)
    found = table.snapshot_as_of_timestamp(int(moment.timestamp() * 1000))
    if found is None:
        raise JobFailed(f"the input {name}: the table has no snapshot as of {text}")
    return found


@contextmanager
def _readable(name: str, place: Place) -> Iterator[None]:
    """What pyiceberg cannot read stays so: one sentence instead of more attempts."""
    try:
        yield
    except (ValueError, TypeError, NotImplementedError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise JobFailed(f"the input {name}: the table {place} cannot be read: {said}") from error


def _as_they_are(table: Table, schema: Schema, tasks: Sequence[FileScanTask]) -> bool:
    """May Spark read the data files alone? Not if rows of them are deleted, and only if each holds just the columns
    that are wanted: one that was renamed, added or widened later needs Iceberg's own reader."""
    if len(table.metadata.schemas) > 1:
        return False
    if any(task.delete_files or task.file.file_format != FileFormat.PARQUET for task in tasks):
        return False
    wanted = _columns(schema)
    names = table.name_mapping() or schema.name_mapping

    def fits(task: FileScanTask) -> bool:
        return _columns_of(task.file.file_path, names) == wanted

    # All of them: metadata forgets schemas that no snapshot uses, and their files live on.
    with ThreadPoolExecutor(READERS) as pool:
        return all(pool.map(fits, tasks))


def _columns(schema: Schema) -> list[tuple[int, str, str]]:
    return [(field.field_id, field.name, type_text(field.field_type)) for field in schema.fields]


def _columns_of(file: str, names: NameMapping) -> list[tuple[int, str, str]] | None:
    """None: it holds something that is no column of the table, or of a type that Spark does not read."""
    system, path = resolve(file)
    with system.open_input_file(path) as source:
        found = pq.read_schema(source)
    try:
        return _columns(pyarrow_to_schema(found, names))
    except (ValueError, TypeError):
        return None


def _write(scan: DataScan, uri: str) -> int:
    """The number of rows."""
    create_folder(uri.rpartition("/")[0])
    system, path = resolve(uri)
    reader = scan.to_arrow_batch_reader()
    rows = 0
    with system.open_output_stream(path) as stream, pq.ParquetWriter(stream, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
