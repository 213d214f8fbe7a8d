"""The unique keys of a table, and the order in which its rows can take each other's values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from saga_activities.automatic.table_access import Image, TableAccess
from saga_activities.automatic.table_shape import TableShape
from saga_activities.guard.sql_session import SqlSession
from sagas.sql_text.row_changes import NotImageable
from sagas.text.sql_names import backquoted

_POSTGRESQL = """
SELECT (SELECT pg_catalog.json_agg(a.attname) FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY
  (i.indkey))
  AS columns
FROM pg_index i WHERE i.indrelid = pg_catalog.to_regclass(:name)::oid AND i.indisunique AND i.indexprs IS NULL
"""
_SQLITE = """
SELECT l.name AS index_, i.name AS name FROM pragma_index_list(:name) l JOIN pragma_index_info(l.name) i
WHERE l."unique" AND i.name IS NOT NULL
"""

_MYSQL = """
SELECT s.index_name AS index_, s.column_name AS name, s.sub_part AS length, c.column_default AS default_,
  coalesce(c.generation_expression, '') <> '' AS generated
FROM information_schema.statistics s JOIN information_schema.columns c
  ON c.table_schema = s.table_schema AND c.table_name = s.table_name AND c.column_name = s.column_name
WHERE s.table_schema = :schema AND s.table_name = :name AND s.non_unique = 0 ORDER BY s.index_name, s.seq_in_index
"""

_T = TypeVar("_T")


async def unique_columns(sql: SqlSession, table: TableAccess) -> Sequence[Sequence[str]]:
    """The columns of each unique key, except of those with expressions and generated columns."""
    keys = await _unique_columns(sql, table.shape)
    return [columns for columns in keys if all(name in table.shape.by_name for name in columns)]


async def _unique_columns(sql: SqlSession, shape: TableShape) -> Sequence[Sequence[str]]:
    if sql.dialect == "postgresql":
        return [row["columns"] for row in await sql.all(_POSTGRESQL, {"name": shape.quoted})]
    if sql.dialect != "sqlite":
        return shape.unique_keys
    keys: dict[str, list[str]] = {}
    for row in await sql.all(_SQLITE, {"name": shape.name}):
        keys.setdefault(row["index_"], []).append(row["name"])
    return [*keys.values(), shape.key]


@dataclass(frozen=True, slots=True)
class ConflictKey:
    """A unique key of MySQL or MariaDB: name, indexed length (None: all) and whether it has a default, by column."""

    columns: Sequence[tuple[str, int | None, bool]]

    def expressions(self, values: Mapping[str, str]) -> dict[str, str] | None:
        """The SQL of each column and of its value in a row to insert; None if no row can have the same key."""
        expressions: dict[str, str] = {}
        for name, length, has_default in self.columns:
            column, value = backquoted(name), values.get(name, "default")
            if value.lower() == "default":
                if not has_default:
                    return None  # NULL, or the next number
                value = f"DEFAULT({column})"
            if length is None:
                expressions[column] = value
            else:
                expressions[f"LEFT({column}, {length})"] = f"LEFT({value}, {length})"
        return expressions


async def conflict_keys(sql: SqlSession, table: TableAccess) -> list[ConflictKey]:
    """The unique keys that an upsert of MySQL or MariaDB may meet. Raises :class:`NotImageable`."""
    schema, _, name = table.shape.name.partition(".")
    keys: dict[str, list[tuple[str, int | None, bool]]] = {}
    for row in await sql.all(_MYSQL, {"schema": schema, "name": name}):
        if row["generated"]:
            why = f"the unique key {row['index_']} of {table.shape.name} has a generated column"
            raise NotImageable(f"{why}, so the rows in its way cannot be told before")
        has_default = row["default_"] not in (None, "NULL")
        keys.setdefault(row["index_"], []).append((row["name"], row["length"], has_default))
    return [ConflictKey(columns) for columns in keys.values()]


def in_order_of_values(rows: Mapping[_T, tuple[Image, Image]], keys: Iterable[Sequence[str]]) -> list[_T]:
    """The rows, each after the one that has its wanted values of a unique key; ``rows`` are (present, wanted).

    Rows that wait for each other are in any order.
    """
    waits_for: dict[_T, list[_T]] = {row: [] for row in rows}
    for key in keys:
        holders = {tuple(present[name] for name in key): row for row, (present, _) in rows.items()}
        for row, (_, wanted) in rows.items():
            holder = holders.get(tuple(wanted[name] for name in key))
            if holder is not None and holder != row:
                waits_for[row].append(holder)
    ordered: dict[_T, None] = {}
    visited: set[_T] = set()
    for row in rows:
        path = [row]
        while path:
            visited.add(path[-1])
            open_ones = [row for row in waits_for[path[-1]] if row not in visited]
            if open_ones:
                path.append(open_ones[0])
            else:
                ordered[path.pop()] = None
    return list(ordered)
