"""Advice about a publication that cannot be reverted: how its columns have changed, and SQL that restores its rows."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from saga_spark.sinks.postgresql.tables import TargetTable, identifiers, keys_equal
from saga_spark.sinks.postgresql.undo_images import TableChange


def column_changes(published: Sequence[tuple[str, str]], table: TargetTable) -> list[str]:
    """Messages about columns that differ from ``published``, pairs of name and type; empty if none does."""
    before = dict(published)
    now = {column.name: column.declared for column in table.columns}
    changes = [f"column {name}: dropped ({type})" for name, type in before.items() if name not in now]
    changes += [f"column {name}: added ({type})" for name, type in now.items() if name not in before]
    changes += [f"column {name}: {type} → {now[name]}" for name, type in before.items() if now.get(name, type) != type]
    if not changes and list(before) != list(now):
        return ["the columns are in another order"]
    return changes


def restoring_sql(change: TableChange) -> str | None:
    """SQL that restores what the publication has replaced and deletes what it has inserted, whatever the rows are now.

    None if the images are gone, or if nothing identifies the rows.
    """
    if change.table.oid is None or not change.key or not change.has_images():
        return None
    connection, table = change.connection, change.table
    images = connection.execute(
        "select attname from pg_attribute where attrelid = pg_catalog.to_regclass(%s)::oid and attnum > 0"
        " and not attisdropped",
        (change.before_image.as_string(connection),),
    ).fetchall()
    kept = {name for (name,) in images}
    writable = [column for column in table.columns if column.name in kept and not column.generated]
    if any(table.column(name) is None for name in change.key):
        return None
    updated = [column.name for column in writable if column.name not in change.key and not column.always_identity]
    [(schema,)] = connection.execute("select current_schema()").fetchall()
    parts = {
        "table": table.sql,
        "before": sql.Identifier(schema, change.before_name),
        "after": sql.Identifier(schema, change.after_name),
        "of_after": keys_equal("t", "a", change.key),
        "of_before": keys_equal("t", "b", change.key),
        "replaced": keys_equal("b", "a", change.key),
        "columns": identifiers([column.name for column in writable]),
        "sets": sql.SQL(", ").join(
            sql.SQL("{} = b.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in updated
        ),
    }
    statements = [
        "BEGIN",
        "DELETE FROM {table} AS t USING {after} AS a WHERE {of_after}"
        " AND NOT EXISTS (SELECT FROM {before} AS b WHERE {replaced})",
    ]
    if change.mode != "append":
        statements += ["UPDATE {table} AS t SET {sets} FROM {before} AS b WHERE {of_before}"] if updated else []
        statements.append(
            "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {before} AS b"
            " WHERE NOT EXISTS (SELECT FROM {table} AS t WHERE {of_before})"
        )
    statements.append("COMMIT")
    return "\n".join(sql.SQL(text + ";").format(**parts).as_string(connection) for text in statements)  # pyright: ignore
