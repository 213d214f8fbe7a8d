"""A table of a catalog at one snapshot: its own files where they can be read as they are, else its rows, written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.table import DataScan, Table
from pyiceberg.table.snapshots import Snapshot

from spark_steps.errors import JobFailed
from spark_steps.settings import SparkSettings
from spark_steps.sinks.files import create_folder, resolve
from spark_steps.sinks.iceberg_catalogs import Place, load_table, open_catalog
from spark_steps.storage import uri_of


def freeze_table(settings: SparkSettings, name: str, values: dict[str, Any], uri: str) -> dict[str, Any]:
    """``uri`` is where the rows go if they must be written. Raises JobFailed: no such table or snapshot."""
    place = Place.parse(values["table"])
    table = load_table(open_catalog(settings, place.catalog), place)
    if table is None:
        raise JobFailed(f"the input {name} reads the table {place}, which does not exist")
    snapshot = snapshot_at(table, values.get("as_of"), name)
    fingerprint = {"kind": "table", "table": str(place), "uuid": str(table.metadata.table_uuid), "snapshot": None}
    if snapshot is None:
        return {"files": [_write(table.scan(), uri)], "rows": 0, "fingerprint": fingerprint}
    fingerprint["snapshot"] = snapshot.snapshot_id
    scan = table.scan(snapshot_id=snapshot.snapshot_id)
    tasks = list(scan.plan_files())
    rows = sum(task.file.record_count for task in tasks)
    plain = not any(task.delete_files for task in tasks)
    if tasks and plain and _one_schema(table, [task.file.file_path for task in tasks]):
        files = [uri_of(task.file.file_path, resolve(task.file.file_path)[1]) for task in tasks]
        return {"files": files, "rows": rows, "fingerprint": fingerprint}
    return {"files": [_write(scan, uri)], "rows": rows if plain else None, "fingerprint": fingerprint}


def snapshot_at(table: Table, as_of: Any, name: str) -> Snapshot | None:
    """``as_of`` is a snapshot id, the name of a tag or branch, or a time (ISO 8601; without a zone it is UTC).

    None: the table never had rows. Raises JobFailed: there is no such snapshot.
    """
    if as_of is None:
        return table.current_snapshot()
    text = str(as_of)
    found = table.snapshot_by_id(int(text)) if text.isdigit() else table.snapshot_by_name(text)
    if found is None and not text.isdigit():
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise JobFailed(f"the input {name}: {text} is neither a snapshot, nor a tag, nor a time") from None
        moment = time if time.tzinfo else time.replace(tzinfo=UTC)
        found = table.snapshot_as_of_timestamp(int(moment.timestamp() * 1000))
    if found is None:
        raise JobFailed(f"the input {name}: the table has no snapshot as of {text}")
    return found


def _one_schema(table: Table, files: list[str]) -> bool:
    """Do the files hold just the table's columns? One that was renamed or added later needs Iceberg's own reader."""
    if len(table.metadata.schemas) > 1:
        return False
    system, path = resolve(files[0])
    with system.open_input_file(path) as source:
        return pq.read_schema(source).names == [field.name for field in table.schema().fields]


def _write(scan: DataScan, uri: str) -> str:
    create_folder(uri.rpartition("/")[0])
    system, path = resolve(uri)
    reader = scan.to_arrow_batch_reader()
    with system.open_output_stream(path) as stream, pq.ParquetWriter(stream, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return uri
