"""The tables of a database and the rows that differ between two copies of it.

Rows are compared in two passes: first by hashes, so that a large table needs little memory, then by the columns of the
rows whose hashes differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.engine_tables import ENGINE_TABLES

MAX_ROWS = 1000
"""Rows of one table that are compared column by column; the others are counted."""

Kind = Literal["missing", "extra", "changed", "sequence"]


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table. ``name`` is that of the messages: with its schema unless a statement finds it without; ``key`` are the
    columns of the primary key.
    """

    name: str
    schema: str | None
    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not as before. ``key``: its primary key, as text; None: the table has none.

    ``columns``: those that have changed; for a row that is missing or extra, none. ``count``: the number of such rows.
    """

    table: str
    kind: Kind
    key: Mapping[str, str] | None = None
    columns: tuple[str, ...] = ()
    count: int = 1


_POSTGRESQL_TABLES = """
    SELECT n.nspname, c.relname, pg_catalog.pg_table_is_visible(c.oid),
      ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
            WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
            ORDER BY a.attnum),
      ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i
            JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid
              AND a.attnum OPERATOR(pg_catalog.=) ANY (i.indkey::pg_catalog.int2[])
            WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisprimary ORDER BY a.attnum)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    ORDER BY 1, 2
"""

_SQLITE_TABLES = """
    SELECT m.name, c.name, c.pk > 0 FROM sqlite_master m, pragma_table_info(m.name) c
    WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY m.name, c.cid
"""


async def read_tables(connection: AsyncConnection) -> list[ComparedTable]:
    """The tables of the database without those of the engine, in the order of their names."""
    if connection.dialect.name == "postgresql":
        rows: Sequence[Any] = (await connection.exec_driver_sql(_POSTGRESQL_TABLES)).all()
        tables = [
            ComparedTable(name if visible else f"{schema}.{name}", schema, name, tuple(columns), tuple(key))
            for schema, name, visible, columns, key in rows
            if columns
        ]
    else:
        columns: dict[str, list[tuple[str, bool]]] = {}
        described: Sequence[Any] = (await connection.exec_driver_sql(_SQLITE_TABLES)).all()
        for name, column, is_key in described:
            columns.setdefault(name, []).append((column, bool(is_key)))
        tables = [
            ComparedTable(
                name, None, name, tuple(column for column, _ in each), tuple(column for column, key in each if key)
            )
            for name, each in columns.items()
        ]
    return [table for table in tables if table.table not in ENGINE_TABLES]


async def read_sequences(connection: AsyncConnection) -> dict[str, tuple[int, int]]:
    """The last value and the increment of each used sequence of PostgreSQL, by its name."""
    if connection.dialect.name != "postgresql":
        return {}
    statement = (
        "SELECT CASE WHEN schemaname = ANY (current_schemas(false)) THEN '' ELSE schemaname || '.' END "
        "|| sequencename, last_value, increment_by FROM pg_catalog.pg_sequences WHERE last_value IS NOT NULL"
    )
    rows: Sequence[Any] = (await connection.exec_driver_sql(statement)).all()
    return {name: (last, increment) for name, last, increment in rows if not _is_of_engine(name)}


def _is_of_engine(sequence: str) -> bool:
    """True for the sequence of a key of the engine's tables."""
    return any(sequence.rpartition(".")[2].startswith(f"{table}_") for table in ENGINE_TABLES)


async def fingerprints(connection: AsyncConnection, tables: list[ComparedTable]) -> dict[ComparedTable, Any]:
    """A value for each table that is another after every change of its rows."""
    return {table: await _fingerprint(connection, table) for table in tables}


async def _fingerprint(connection: AsyncConnection, table: ComparedTable) -> Any:
    if connection.dialect.name != "postgresql":
        return hash(frozenset((await _row_hashes(connection, table)).items()))
    digest = "coalesce(sum(pg_catalog.hashtextextended(r::text, 0)::numeric), 0)"
    statement = f"SELECT count(*), {digest} FROM {_quoted(connection, table)} r"
    return tuple((await connection.exec_driver_sql(statement)).one())


async def compare(before: AsyncConnection, after: AsyncConnection, table: ComparedTable) -> list[Difference]:
    """The rows of a table that are not as before, at most MAX_ROWS of them one by one."""
    was, now = await _row_hashes(before, table), await _row_hashes(after, table)
    gone, new = was - now, now - was
    count = max(gone.total(), new.total())
    if count > MAX_ROWS:
        return [Difference(table.name, "changed", count=count)]
    old_rows = await _rows_with(before, table, gone)
    new_rows = await _rows_with(after, table, new)
    if not table.key:
        missing = [Difference(table.name, "missing", count=len(old_rows))] if old_rows else []
        return [*missing, *([Difference(table.name, "extra", count=len(new_rows))] if new_rows else [])]
    return _by_key(table, old_rows, new_rows)


def _by_key(table: ComparedTable, old_rows: list[tuple[Any, ...]], new_rows: list[tuple[Any, ...]]) -> list[Difference]:
    places = [table.columns.index(column) for column in table.key]
    old = {tuple(row[place] for place in places): row for row in old_rows}
    new = {tuple(row[place] for place in places): row for row in new_rows}
    differences = []
    for key in sorted({*old, *new}, key=lambda key: tuple(map(str, key))):
        shown = {column: str(value) for column, value in zip(table.key, key, strict=True)}
        if key not in new:
            differences.append(Difference(table.name, "missing", shown))
        elif key not in old:
            differences.append(Difference(table.name, "extra", shown))
        else:
            pairs = zip(table.columns, old[key], new[key], strict=True)
            changed = tuple(column for column, value, other in pairs if repr(value) != repr(other))
            differences.append(Difference(table.name, "changed", shown, changed))
    return differences


def _hash(row: tuple[Any, ...]) -> int:
    """The hash of the row's text: numbers such as -1 and -2, or 1 and 1.0, have the same hash."""
    return hash(repr(row))


async def _row_hashes(connection: AsyncConnection, table: ComparedTable) -> Counter[int]:
    return Counter([_hash(row) async for row in _rows(connection, table)])


async def _rows_with(
    connection: AsyncConnection, table: ComparedTable, hashes: Mapping[int, int]
) -> list[tuple[Any, ...]]:
    """The rows with these hashes, each as often as the hash counts."""
    remaining = dict(hashes)
    rows = []
    if remaining:
        async for row in _rows(connection, table):
            if remaining.get(_hash(row), 0) > 0:
                remaining[_hash(row)] -= 1
                rows.append(row)
    return rows


async def _rows(connection: AsyncConnection, table: ComparedTable) -> AsyncIterator[tuple[Any, ...]]:
    quote = connection.dialect.identifier_preparer.quote_identifier
    # Texts on PostgreSQL, as its drivers give lists and objects for some types, which have no hash.
    cast = "::text" if connection.dialect.name == "postgresql" else ""
    columns = ", ".join(f"{quote(column)}{cast}" for column in table.columns)
    statement = f"SELECT {columns} FROM {_quoted(connection, table)}"
    async with connection.stream(sa.text(statement.replace(":", "\\:"))) as result:
        async for row in result:
            yield tuple(row)


def _quoted(connection: AsyncConnection, table: ComparedTable) -> str:
    quote = connection.dialect.identifier_preparer.quote_identifier
    return f"{quote(table.schema)}.{quote(table.table)}" if table.schema is not None else quote(table.table)
