"""The functions that a statement calls, also through views: none may have an effect that no image would undo."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from saga_activities.guard.sql_session import SqlSession
from sagas.sql_text.row_changes import NotImageable, RowChange, Source, analyse_view, refuse_effects

_VOLATILE = """
SELECT pg_catalog.min(proname) AS name FROM pg_proc
WHERE proname = ANY (:names) AND provolatile = 'v'
  AND NOT (pronamespace = 'pg_catalog'::regnamespace::oid AND proname = ANY (:harmless))
"""

_HARMLESS = [
    "random", "random_normal", "gen_random_uuid", "uuidv4", "uuidv7", "clock_timestamp", "timeofday",
    "nextval", "currval", "lastval", "pg_sleep", "merge_action",
]  # fmt: skip
"""Volatile functions of PostgreSQL itself whose only effect is a gap in a sequence, or none."""

_ROUTINES = """
SELECT routine_name AS name FROM information_schema.routines
WHERE routine_type = 'FUNCTION' AND routine_schema <> 'sys'
"""

_VIEWS = """
WITH RECURSIVE read(oid) AS (
  SELECT pg_catalog.to_regclass(name)::oid FROM pg_catalog.unnest(CAST(:names AS text[])) AS name
  UNION SELECT d.refobjid FROM read JOIN pg_rewrite r ON r.ev_class = read.oid
  JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass::oid AND d.objid = r.oid AND d.refclassid =
    'pg_class'::regclass::oid
)
SELECT c.oid::regclass::text AS name, pg_catalog.pg_get_viewdef(c.oid) AS query
FROM read JOIN pg_class c ON c.oid = read.oid WHERE c.relkind = 'v'
"""

_VIEW = """
SELECT table_schema AS schema_, table_name AS name, view_definition AS query FROM information_schema.views
WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
"""


async def check_functions(sql: SqlSession, change: RowChange) -> None:
    """Raise :class:`NotImageable` if a called function may have an effect, as far as the database knows."""
    if sql.dialect == "sqlite":  # its functions are those of SQLite itself
        return
    await _check(sql, change.functions)
    views = _postgresql_views if sql.dialect == "postgresql" else _mysql_views
    for name, functions in await views(sql, change.sources):
        try:
            refuse_effects(functions)
            await _check(sql, functions)
        except NotImageable as refusal:
            raise NotImageable(f"it reads the view {name}, and {refusal.why}") from None


async def _check(sql: SqlSession, names: Collection[str]) -> None:
    if not names:
        return
    if sql.dialect == "postgresql":
        name = await sql.scalar(_VOLATILE, {"names": list(names), "harmless": _HARMLESS})
        if name is not None:
            raise NotImageable(f"the function {name} is volatile, so it may have an effect of its own")
        return
    stored = {row["name"].lower() for row in await sql.all(_ROUTINES)}
    if called := sorted(stored & set(names)):
        raise NotImageable(f"the stored function {called[0]} may have an effect of its own")


async def _postgresql_views(sql: SqlSession, sources: Sequence[Source]) -> list[tuple[str, Collection[str]]]:
    if not sources:
        return []
    rows = await sql.all(_VIEWS, {"names": [written for written, _, _ in sources]})
    return [(row["name"], _functions_of(row, sql.dialect)[0]) for row in rows]


async def _mysql_views(sql: SqlSession, sources: Sequence[Source]) -> list[tuple[str, Collection[str]]]:
    views: dict[tuple[str, str], tuple[str, Collection[str]]] = {}
    waiting = list(sources)
    while waiting:
        _, schema, name = waiting.pop()
        row = await sql.one_or_none(_VIEW, {"schema": schema, "name": name})
        if row is None or (row["schema_"], row["name"]) in views:
            continue
        if not row["query"]:
            raise NotImageable(
                f"the user of the connection cannot see which functions the view {name} calls; grant it SHOW VIEW"
            )
        functions, read = _functions_of(row, sql.dialect)
        views[row["schema_"], row["name"]] = (name, functions)
        waiting += read
    return list(views.values())


def _functions_of(row: Any, dialect: str) -> tuple[Collection[str], Sequence[Source]]:
    try:
        return analyse_view(row["query"], dialect)
    except NotImageable as refusal:
        raise NotImageable(f"it reads the view {row['name']}, which is not understood: {refusal.why}") from None
