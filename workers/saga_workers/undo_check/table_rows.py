"""The rows of a table that differ between two copies of a database.

Rows are compared in two passes: first by hashes, so that a large table needs little memory, then by the columns of the
rows whose hashes differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_workers.undo_check.compared_tables import ComparedTable

MAX_ROWS = 1000
"""Rows of one table that are compared column by column; the others are counted."""

Kind = Literal["missing", "extra", "changed", "sequence"]


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


async def fingerprints(connection: AsyncConnection, tables: list[ComparedTable]) -> dict[ComparedTable, Any]:
    """A value for each table that is another after every change of its rows."""
    return {table: await _fingerprint(connection, table) for table in tables}


async def _fingerprint(connection: AsyncConnection, table: ComparedTable) -> Any:
    match connection.dialect.name:
        case "sqlite":
            return hash(frozenset((await _row_hashes(connection, table)).items()))
        case "postgresql":
            total = f"sum(hashtextextended(ROW({', '.join(table.values)})::text, 0)::numeric)"
        case _:
            hashes = ", ".join(f"coalesce(sha1({value}), '-')" for value in table.values)
            total = f"sum(cast(conv(left(sha1(concat_ws(',', {hashes})), 15), 16, 10) AS decimal(30)))"
    statement = f"SELECT count(*), coalesce({total}, 0) FROM {table.quoted}"
    return tuple((await connection.exec_driver_sql(statement.replace("%", "%%"))).one())


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
        texts = (new.get(key) or old[key])[len(table.columns) :]
        shown = {column: str(text) for column, text in zip(table.key, texts, strict=True)}
        if key not in new:
            differences.append(Difference(table.name, "missing", shown))
        elif key not in old:
            differences.append(Difference(table.name, "extra", shown))
        else:
            pairs = zip(table.columns, old[key], new[key], strict=False)
            changed = tuple(column for column, value, other in pairs if repr(value) != repr(other))
            differences.append(Difference(table.name, "changed", shown, changed))
    return differences


def _hash(table: ComparedTable, row: tuple[Any, ...]) -> int:
    """The hash of the text of the row's values: numbers such as -1 and -2 have the same hash."""
    return hash(repr(row[: len(table.columns)]))


async def _row_hashes(connection: AsyncConnection, table: ComparedTable) -> Counter[int]:
    return Counter([_hash(table, row) async for row in _rows(connection, table)])


async def _rows_with(
    connection: AsyncConnection, table: ComparedTable, hashes: Mapping[int, int]
) -> list[tuple[Any, ...]]:
    """The rows with these hashes, each as often as the hash counts."""
    remaining = dict(hashes)
    rows = []
    if remaining:
        async for row in _rows(connection, table):
            if remaining.get(_hash(table, row), 0) > 0:
                remaining[_hash(table, row)] -= 1
                rows.append(row)
    return rows


async def _rows(connection: AsyncConnection, table: ComparedTable) -> AsyncIterator[tuple[Any, ...]]:
    """The values of each row, and behind them the texts of its key."""
    statement = f"SELECT {', '.join((*table.values, *table.key_texts))} FROM {table.quoted}"
    async with connection.stream(sa.text(statement.replace(":", "\\:"))) as result:
        async for row in result:
            yield tuple(map(_of_equal_values, row))


def _of_equal_values(value: Any) -> Any:
    """The integer for a number of SQLite that is equal to it: `10.0` is `10` there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
