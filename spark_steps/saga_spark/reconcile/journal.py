"""The sagas' own account as Parquet: one row for each saga, one for each entry of a saga that is over."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

SAGAS = "sagas.parquet"
ENTRIES = "entries.parquet"

FINAL = ("COMPLETED", "COMPENSATED", "RESIDUE")
BROKEN = ("TERMINATED", "FAILED")
"""Over without an end that the engine has written."""

_LIVE = ("DONE", "CONFIRMED")
_BATCH = 50_000

SAGA_SCHEMA = pa.schema(
    [
        ("saga_id", pa.string()),
        ("saga", pa.string()),
        ("state", pa.string()),
        ("started_at", pa.float64()),
        ("ended_at", pa.float64()),
        ("judged", pa.bool_()),  # over, and whole enough to be held against the guards
    ]
)
ENTRY_SCHEMA = pa.schema(
    [
        ("saga_id", pa.string()),
        ("step", pa.string()),
        ("generation", pa.int32()),
        ("state", pa.string()),
        ("guarded", pa.bool_()),
        ("live", pa.bool_()),  # by the saga's word its effect is there
        ("residue", pa.bool_()),  # a person has closed it although it stays or is missing: known, no news
    ]
)


class Rows:
    """Rows of one Parquet file, written in batches. The file is there, perhaps empty, when the block ends."""

    def __init__(self, file: Path, schema: pa.Schema, batch: int = _BATCH) -> None:
        self._file, self._schema, self._batch = file, schema, batch
        self._columns: list[list[Any]] = [[] for _ in schema]
        self._writer: pq.ParquetWriter | None = None
        self.count = 0

    def __enter__(self) -> Self:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(self._file, self._schema)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._writer is not None
        self._flush()
        self._writer.close()

    def add(self, *values: Any) -> None:
        """One row, in the order of the schema."""
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self.count += 1
        if len(self._columns[0]) >= self._batch:
            self._flush()

    def _flush(self) -> None:
        assert self._writer is not None
        if self._columns[0]:
            arrays = [pa.array(column, field.type) for column, field in zip(self._columns, self._schema, strict=True)]
            self._writer.write_table(pa.table(arrays, schema=self._schema))
            self._columns = [[] for _ in self._schema]


class Journal:
    """Writes stories (`saga show` documents) into a folder.

    ``watermark``: the guards may have forgotten sagas that began before it (seconds since the epoch), so nothing is
    said about those. ``states`` tells how each saga that was added ended.
    """

    def __init__(self, folder: Path, watermark: float = 0.0) -> None:
        self._watermark = watermark
        self._sagas = Rows(folder / SAGAS, SAGA_SCHEMA)
        self._entries = Rows(folder / ENTRIES, ENTRY_SCHEMA)
        self.states: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._sagas.__enter__()
        self._entries.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._sagas.__exit__(*error)
        self._entries.__exit__(*error)

    @property
    def count(self) -> int:
        return self._sagas.count

    def add(self, story: Mapping[str, Any]) -> None:
        """One saga. Its id must be new."""
        saga_id, state = story["id"], story["state"]
        started = seconds(story.get("started_at")) or 0.0
        judged = is_judged(story) and started >= self._watermark
        self.states[saga_id] = state
        self._sagas.add(saga_id, story["saga"], state, started, seconds(story.get("ended_at")), judged)
        if not judged or state not in FINAL:
            return
        residue = {one["step"] for one in story.get("residue") or ()}
        decided = {one["step"] for one in story.get("operator") or ()}
        for row in story.get("steps") or ():
            if row["started_at"] is None and row["state"] == "PENDING":
                continue  # never reached: nothing to say
            if row["state"] == "DONE" and row.get("attempts") == 0 and row["id"] not in decided:
                continue  # a for_each over an empty list: nothing was called
            self._entries.add(
                saga_id,
                row["id"],
                row["generation"] or 1,
                row["state"],
                row["guarantee"] == "guarded",
                row["state"] in _LIVE,
                row["id"] in residue,
            )


def is_judged(story: Mapping[str, Any]) -> bool:
    """Over, and no step is missing in its story (a very long one leaves finished items out)."""
    if story["state"] in BROKEN:
        return True  # whatever the guards still have of it is open
    if story["state"] not in FINAL or not story.get("ended_at") or story.get("incomplete"):
        return False
    return not story.get("steps_omitted")


def seconds(moment: str | None) -> float | None:
    """A moment of a story as seconds since the epoch."""
    return None if moment is None else datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()
