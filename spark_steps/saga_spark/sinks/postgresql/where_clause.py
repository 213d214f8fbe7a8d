"""Filters of rows as SQL of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import sql


def where_clause(where: Mapping[str, Any], alias: str | None = None, *, typed: bool = False) -> sql.Composable:
    """A filter as SQL: each column equals a value, or one of a list of values (null too), or is null.

    ``typed``: values keep the types that they have in the definition. Else they are untyped literals, to which the
    database gives the type of the column.
    """
    # Without parameters: with them the driver would take a percent sign in a column name for a placeholder.
    parts: list[sql.Composable] = []
    for name, value in where.items():
        column = sql.Identifier(*([alias] if alias else []), name)
        if value is None:
            parts.append(sql.SQL("{} IS NULL").format(column))
        elif isinstance(value, list):
            # Literals of their own: an array would need values of the same type, and 1.10 and 2 differ.
            items = [sql.Literal(item) if typed else value_literal(item) for item in value if item is not None]
            choices = [sql.SQL("{} IN ({})").format(column, sql.SQL(", ").join(items))] if items else []
            choices += [sql.SQL("{} IS NULL").format(column)] if None in value else []
            parts.append(sql.SQL("({})").format(sql.SQL(" OR ").join(choices)) if choices else sql.SQL("false"))
        else:
            parts.append(sql.SQL("{} = {}").format(column, sql.Literal(value) if typed else value_literal(value)))
    return sql.SQL(" AND ").join(parts) if parts else sql.SQL("true")


def value_literal(value: Any) -> sql.Composable:
    """An untyped literal, which takes the type of the column that it is compared with, or null."""
    if value is None:
        return sql.SQL("null")
    return sql.Literal(("true" if value else "false") if isinstance(value, bool) else str(value))
