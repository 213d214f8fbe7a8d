"""The unique keys of a table, and the order in which its rows can take each other's values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from saga_activities.automatic.table_access import Image, TableAccess
from saga_activities.guard.session import SqlSession

_POSTGRESQL = """
SELECT (SELECT json_agg(a.attname) FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey))
  AS columns
FROM pg_index i WHERE i.indrelid = to_regclass(:name) AND i.indisunique AND i.indexprs IS NULL
"""
_SQLITE = """
SELECT l.name AS index_, i.name AS name FROM pragma_index_list(:name) l JOIN pragma_index_info(l.name) i
WHERE l."unique" AND i.name IS NOT NULL
"""

_T = TypeVar("_T")


async def unique_columns(sql: SqlSession, table: TableAccess) -> Sequence[Sequence[str]]:
    """The columns of each unique key of columns."""
    shape = table.shape
    if sql.dialect == "postgresql":
        return [row["columns"] for row in await sql.all(_POSTGRESQL, {"name": shape.quoted})]
    if sql.dialect != "sqlite":
        return shape.unique_keys
    keys: dict[str, list[str]] = {}
    for row in await sql.all(_SQLITE, {"name": shape.name}):
        keys.setdefault(row["index_"], []).append(row["name"])
    return [*keys.values(), shape.key]


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
            open_ones = [one for one in waits_for[path[-1]] if one not in visited]
            if open_ones:
                path.append(open_ones[0])
            else:
                ordered[path.pop()] = None
    return list(ordered)
