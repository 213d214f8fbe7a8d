"""Tables of PostgreSQL, as its catalog describes them. Values are read and written as the text of their type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from saga_activities.automatic.table_shape import TEXT_ALIAS, Column, Reference, TableShape
from saga_activities.guard.session import SqlSession
from sagas.builtins.row_changes import NotImageable, RowChange

OUTPUT_STYLE = (
    "SELECT set_config('datestyle', 'ISO', true), set_config('intervalstyle', 'postgres', true),"
    " set_config('extra_float_digits', '3', true), set_config('bytea_output', 'hex', true),"
    " set_config('lc_monetary', 'C', true)"
)
"""Texts that every session reads back as the same value. The order of days and months is left as it is."""

_SHAPE = """
SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.relispartition AS partition,
  EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = c.oid OR inhrelid = c.oid) AS inherits,
  row_security_active(c.oid) AS row_security,
  EXISTS (SELECT 1 FROM pg_rewrite WHERE ev_class = c.oid AND rulename <> '_RETURN') AS rules,
  (SELECT json_agg(tgname ORDER BY tgname) FROM pg_trigger
    WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled <> 'D') AS triggers,
  (SELECT json_agg(json_build_object('table', k.conrelid::regclass::text, 'delete', k.confdeltype,
      'update', k.confupdtype, 'columns', (SELECT json_agg(a.attname) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum = ANY (k.confkey))))
    FROM pg_constraint k WHERE k.contype = 'f' AND k.confrelid = c.oid) AS foreign_keys,
  (SELECT json_agg(json_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
      'generated', a.attgenerated <> '') ORDER BY a.attnum)
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
  (SELECT json_agg(a.attname ORDER BY array_position(i.indkey::int2[], a.attnum))
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = c.oid AND i.indisprimary) AS key,
  (SELECT min(p.proname) FROM pg_attrdef d
    JOIN pg_depend e ON e.classid = 'pg_attrdef'::regclass AND e.objid = d.oid AND e.refclassid = 'pg_proc'::regclass
    JOIN pg_proc p ON p.oid = e.refobjid
    WHERE d.adrelid = c.oid AND p.provolatile = 'v' AND p.pronamespace <> 'pg_catalog'::regnamespace) AS defaults
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(:name)
"""

_VOLATILE = """
SELECT min(proname) AS name FROM pg_proc
WHERE proname = ANY (:names) AND provolatile = 'v'
  AND NOT (pronamespace = 'pg_catalog'::regnamespace AND proname = ANY (:harmless))
"""

_HARMLESS = [
    "random", "random_normal", "gen_random_uuid", "uuidv4", "uuidv7", "clock_timestamp", "timeofday",
    "nextval", "currval", "lastval", "pg_sleep", "merge_action",
]  # fmt: skip
"""Volatile functions of PostgreSQL itself whose only effect is a gap in a sequence, or none."""

_MERGE_RETURNS = 170000

_CHANGING_ACTIONS = ("c", "n", "d")
"""CASCADE, SET NULL, SET DEFAULT."""


async def read_shape(sql: SqlSession, written: str) -> TableShape:
    """The table that ``written`` names. Raises :class:`NotImageable` if there is none."""
    row = await sql.one_or_none(_SHAPE, {"name": written})
    if row is None:
        raise NotImageable(f"there is no table {written} in this database")
    name = f"{row['schema']}.{row['name']}"
    return TableShape(
        name=name,
        quoted=f"{quote(row['schema'])}.{quote(row['name'])}",
        key=tuple(row["key"] or ()),
        columns=tuple(_column(one) for one in row["columns"] or () if not one["generated"]),
        references=tuple(_references(row["foreign_keys"] or ())),
        obstacles=tuple(_obstacles(row, name)),
        insert_obstacle=row["defaults"]
        and f"a default of {name} calls the function {row['defaults']}, which may have an effect",
        overriding=" OVERRIDING SYSTEM VALUE",
        returns_updates=True,
    )


def _column(one: Any) -> Column:
    quoted = quote(one["name"])
    return Column(one["name"], quoted, f"{quoted}::text", f"CAST(CAST({{}} AS text) AS {one['type']})")


def _references(keys: Iterable[Any]) -> Iterable[Reference]:
    for one in keys:
        on_delete, on_update = one["delete"] in _CHANGING_ACTIONS, one["update"] in _CHANGING_ACTIONS
        if on_delete or on_update:
            yield Reference(one["table"], tuple(one["columns"]), on_delete, on_update)


def _obstacles(row: Any, name: str) -> Iterable[str]:
    if row["kind"] != "r":
        yield f"{name} is not an ordinary table"
    if row["inherits"] or row["partition"]:
        yield f"{name} has partitions or inherits"
    if row["row_security"]:
        yield f"row security hides rows of {name}"
    if row["rules"]:
        yield f"{name} has rules, which may change other rows"
    if row["triggers"]:
        yield f"{name} has the trigger {row['triggers'][0]}, which may change other rows"


async def check_functions(sql: SqlSession, names: Sequence[str]) -> None:
    """Raise :class:`NotImageable` if a called function may have an effect."""
    if not names:
        return
    name = await sql.scalar(_VOLATILE, {"names": list(names), "harmless": _HARMLESS})
    if name is not None:
        raise NotImageable(f"the function {name} is volatile, so it may have an effect of its own")


async def check_merge(sql: SqlSession) -> None:
    """Raise :class:`NotImageable` if the server cannot say which rows a MERGE has changed."""
    if await sql.scalar("SELECT current_setting('server_version_num')::int") < _MERGE_RETURNS:
        raise NotImageable("PostgreSQL returns the rows of a MERGE from version 17 on")


def merge_with_returning(change: RowChange, expressions: str) -> str:
    """A MERGE that returns ``expressions`` of its table, and whether each row was inserted.

    In RETURNING itself a column of the source could have the same name.
    """
    return (
        f"WITH saga_merge AS (\n{change.statement}\nRETURNING merge_action() AS saga_action,"
        f" {change.alias or change.table}.*\n)"
        f" SELECT {expressions}, saga_action = 'INSERT' AS {TEXT_ALIAS}inserted FROM saga_merge"
    )


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
