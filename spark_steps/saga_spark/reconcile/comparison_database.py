"""The extracts of a reconciliation as tables of DuckDB, which compares them in this process.

Its memory is limited; what needs more goes to files in the folder of the extracts.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from saga_spark.reconcile.exact_numbers import define_exact_numbers
from saga_spark.reconcile.extracts import (
    ABNORMAL_STATES,
    ENTRIES_FILE,
    ENTRY_SCHEMA,
    FINAL_STATES,
    GUARD_SCHEMA,
    OUTBOX_SCHEMA,
    SAGA_SCHEMA,
    SAGAS_FILE,
    effect_schema,
)
from saga_spark.reconcile.findings import Finding
from saga_spark.reconcile.topic_extract import RECORD_SCHEMA, RECORDS_FILE
from sagas.settings.reconcile import EffectTable
from sagas.text.exact_json import decode_json
from sagas.text.sql_names import sql_text

MEMORY_LIMIT = "512MiB"
"""The memory that DuckDB may use; the process with Python and Arrow then stays below 1 GiB."""

UNKNOWN_STATE = "UNKNOWN"
"""Replaces the state of a saga that is not known."""

SPILL_FOLDER = "spill"

_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
}
_FINDINGS = "class, saga_id, saga, state, step, generation, place, row, details"


@dataclass(frozen=True, slots=True)
class ComparisonDatabase:
    """The database in which the extracts in ``folder`` are compared: the views ``sagas``, ``entries``, ``guard`` (one
    row per generation of each entry and database), ``outbox`` and ``records`` over them, and the table ``findings``.

    ``since``: only what happened at or after it is reported. ``horizon``: sagas older than it may have passed
    Temporal's retention, so nothing older is reported. Both are in seconds since the epoch. ``one_saga``: the guards
    have the rows of one saga and its nested ones, and a table whose rows do not name their saga has those of all.
    """

    connection: duckdb.DuckDBPyConnection
    folder: Path
    since: float | None
    horizon: float
    one_saga: bool = False

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self.connection.execute(statement).fetchall()

    def view(self, name: str, query: str) -> None:
        """Replace a view."""
        self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")

    def table(self, name: str, query: str) -> int:
        """Replace a table by the rows of a query; returns their number."""
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")
        return self.run(f"SELECT count(*) FROM {name}")[0][0]

    def open_effects(self, effects: EffectTable) -> None:
        """The view ``business``: the rows of a business table."""
        self._open("business", self.folder / "effects" / f"{effects.name}.parquet", effect_schema(len(effects.amounts)))

    def add_findings(
        self, rows: str, class_: str, *, place: str, row: str = "NULL", details: Mapping[str, str]
    ) -> None:
        """Add a finding for each of the rows that has a class. All arguments but ``rows`` are SQL about one of them."""
        named = ", ".join(f"{sql_constant(name)}, {value}" for name, value in details.items())
        self.connection.execute(
            f"INSERT INTO findings SELECT {_FINDINGS} FROM (SELECT {class_} AS class, saga_id, saga, state, step,"
            f" generation, {place} AS place, {row} AS row, json_object({named}) AS details FROM ({rows}))"
            " WHERE class IS NOT NULL"
        )

    def counts(self) -> dict[str, int]:
        """The number of findings of each class."""
        return dict(self.run("SELECT class, count(*) FROM findings GROUP BY class ORDER BY class"))

    def findings(self, limit: int) -> Iterator[Finding]:
        """Up to so many findings of each class, in an order that depends on nothing but them."""
        order = "ORDER BY place, saga_id, step, generation, row, details"
        for class_ in self.counts():
            for kind, saga_id, saga, state, step, generation, place, row, details in self.run(
                f"SELECT {_FINDINGS} FROM findings WHERE class = {sql_constant(class_)} {order} LIMIT {limit}"
            ):
                shown = {name: value for name, value in decode_json(details).items() if value is not None}
                key = None if row is None else decode_json(row)
                yield Finding(kind, saga_id, saga, state, step, generation, place, key, shown)

    def _open(self, name: str, path: Path, schema: pa.Schema) -> None:
        """A view of a file, or of the files in a folder; it has no rows if there are none."""
        if path.is_file() or any(path.glob("*.parquet")):
            escaped = glob.escape(str(path))  # DuckDB takes every path as a glob
            files = escaped if path.is_file() else f"{escaped}/*.parquet"
            self.view(name, f"FROM read_parquet({sql_constant(files)})")
        else:
            columns = (f"NULL::{_SQL_TYPES[column.type]} AS {column.name}" for column in schema)
            self.view(name, f"SELECT {', '.join(columns)} WHERE false")


@contextmanager
def open_comparison(
    folder: Path,
    since: float | None,
    horizon: float,
    on_open: Callable[[duckdb.DuckDBPyConnection], None],
    *,
    one_saga: bool = False,
) -> Iterator[ComparisonDatabase]:
    """Open the extracts in a folder. ``on_open`` gets the connection, which another thread may interrupt."""
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(folder / SPILL_FOLDER),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with duckdb.connect(":memory:", config=settings) as connection:
        on_open(connection)
        connection.execute("SET enable_progress_bar = false")  # it would be written into the command's output
        define_exact_numbers(connection)
        database = ComparisonDatabase(connection, folder, since, horizon, one_saga)
        for name, path, schema in (
            ("sagas", SAGAS_FILE, SAGA_SCHEMA),
            ("entries", ENTRIES_FILE, ENTRY_SCHEMA),
            ("guard", "guard", GUARD_SCHEMA),
            ("outbox", "outbox", OUTBOX_SCHEMA),
            ("records", RECORDS_FILE, RECORD_SCHEMA),
        ):
            database._open(name, folder / path, schema)
        connection.execute(
            "CREATE TEMP TABLE findings (class VARCHAR, saga_id VARCHAR, saga VARCHAR, state VARCHAR, step VARCHAR,"
            " generation INTEGER, place VARCHAR, row VARCHAR, details VARCHAR)"
        )
        yield database


def with_saga(rows: str) -> str:
    """A query that adds ``saga``, ``state`` (UNKNOWN_STATE for unknown sagas) and ``judged`` by each row's
    ``saga_id``.
    """
    return (
        f"SELECT rows.*, known.saga, coalesce(known.state, {sql_constant(UNKNOWN_STATE)}) AS state, known.judged"
        f" FROM ({rows}) rows LEFT JOIN sagas known USING (saga_id)"
    )


def sql_constant(value: str | float) -> str:
    """A constant in SQL."""
    return sql_text(value) if isinstance(value, str) else f"{float(value)!r}::DOUBLE"


def members(values: Sequence[str]) -> str:
    """Constants as a list in SQL, for ``IN``."""
    return "(" + ", ".join(map(sql_constant, values)) + ")"


OVER = f"state IN {members(FINAL_STATES)}"
"""The saga has ended, as SQL."""

BROKEN = f"state IN {members(ABNORMAL_STATES)}"
"""The saga ended without a final state written by the engine, as SQL."""

UNKNOWN = f"state = {sql_constant(UNKNOWN_STATE)}"
"""The saga is not known, as SQL."""
