"""Tables of MySQL and MariaDB whose storage engine has no transactions: no rollback takes their changes back."""

from __future__ import annotations

from collections.abc import Sequence

from saga_activities.engine_tables import is_engine_table
from saga_activities.parameters.column_catalog import Query

TableName = tuple[str | None, str]
"""The schema (None: that of the connection) and the name of a table."""

_ENGINE = """
SELECT t.engine AS engine_
FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine
WHERE t.table_schema = coalesce(:schema, database()) AND t.table_name = :name
  AND coalesce(e.transactions, 'NO') <> 'YES'
"""


async def table_problem(tables: Sequence[TableName], query: Query) -> str | None:
    """Describe the first of the tables that a rollback would not restore; None if there is none."""
    for schema, name in tables:
        if is_engine_table(schema, name.lower()):
            continue
        rows = await query(_ENGINE, {"schema": schema, "name": name})
        if rows:
            shown = name if schema is None else f"{schema}.{name}"
            return (
                f"the table {shown} has no transactions ({rows[0]['engine_']}), so that a failed attempt would leave"
                f" its changes and a retry repeat them: convert it with `alter table {shown} engine = InnoDB`, or do"
                " not write it in a step"
            )
    return None
