"""Tables of PostgreSQL, as its catalog describes them. Values are read and written as the text of their type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from saga_activities.automatic.table_shape import (
    TEXT_ALIAS,
    UNCERTAIN,
    Column,
    DeclaredType,
    ForeignKey,
    TableShape,
)
from saga_activities.automatic.user_types import PARTS_OF_TYPE, check_parts, type_name
from saga_activities.guard.sql_session import SqlSession
from sagas.sql_text.row_changes import NotImageable, RowChange, TableMissing
from sagas.text.sql_names import sql_name

BASE_OF_TYPE = """(WITH RECURSIVE base AS (SELECT t.* UNION ALL
          SELECT d.* FROM base JOIN pg_type d ON d.oid = base.typbasetype WHERE base.typtype = 'd')
        SELECT CASE WHEN typtype = 'e' THEN 'enum' WHEN typnamespace <> 'pg_catalog'::regnamespace::oid THEN 'other'
          WHEN typelem = 0::oid OR typlen <> -1 THEN typname::text
          ELSE (SELECT 'array of ' || typname::text FROM pg_type e WHERE e.oid = base.typelem) END
        FROM base WHERE typtype <> 'd')"""
"""The built-in type behind the domains of the type ``t``."""

_SHAPE = f"""
SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.relispartition AS partition,
  c.relpersistence = 't' AS temporary,
  EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = c.oid OR inhrelid = c.oid) AS inherits,
  pg_catalog.row_security_active(c.oid) AS row_security,
  EXISTS (SELECT 1 FROM pg_rewrite WHERE ev_class = c.oid AND rulename <> '_RETURN') AS rules,
  (SELECT pg_catalog.json_agg(tgname ORDER BY tgname) FROM pg_trigger
    WHERE tgrelid = c.oid AND NOT tgisinternal AND tgenabled <> 'D') AS triggers,
  (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('table', k.conrelid::regclass::text, 'delete', k.confdeltype,
      'update', k.confupdtype, 'columns', (SELECT pg_catalog.json_agg(a.attname) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum = ANY (k.confkey))))
    FROM pg_constraint k WHERE k.contype = 'f' AND k.confrelid = c.oid) AS foreign_keys,
  (SELECT pg_catalog.json_agg(pg_catalog.json_build_object('name', a.attname, 'number', a.attnum,
      'generated', a.attgenerated <> '',
      'type', {type_name("t.oid", "a.atttypmod")}, 'base', {BASE_OF_TYPE},
      'parts', CASE WHEN t.typnamespace <> 'pg_catalog'::regnamespace::oid THEN {PARTS_OF_TYPE} END,
      'equals', (SELECT 'OPERATOR(' || pg_catalog.quote_ident(os.nspname) || '.' || o.oprname::text || ')'
        FROM pg_index i, pg_catalog.generate_series(0, i.indnkeyatts - 1) AS at
        JOIN pg_opclass k ON true JOIN pg_amop m ON m.amopfamily = k.opcfamily
          AND m.amoplefttype = k.opcintype AND m.amoprighttype = k.opcintype
          AND EXISTS (SELECT 1 FROM pg_amop b JOIN pg_am y ON y.oid = b.amopmethod
            WHERE b.amopopr = m.amopopr AND y.amname = 'btree' AND b.amopstrategy = 3)
        JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace os ON os.oid = o.oprnamespace
        WHERE i.indrelid = c.oid AND i.indisprimary AND i.indkey[at] = a.attnum AND k.oid = i.indclass[at]),
      'folds', EXISTS (SELECT 1 FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic),
      'read', pg_catalog.has_column_privilege(c.oid, a.attnum, 'SELECT'),
      'insert', pg_catalog.has_column_privilege(c.oid, a.attnum, 'INSERT')
      ) ORDER BY a.attnum)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
  pg_catalog.has_table_privilege(c.oid, 'DELETE') AS may_delete,
  pg_catalog.has_any_column_privilege(c.oid, 'UPDATE') AS may_lock,
  (SELECT pg_catalog.json_agg(k.conname ORDER BY k.conname) FROM pg_constraint k
    WHERE k.conrelid = c.oid AND NOT k.convalidated) AS unchecked,
  (SELECT n.nspname FROM pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace
    WHERE o.oid = pg_catalog.to_regclass('saga_row_lock')::oid) AS own_locks,
  (SELECT pg_catalog.json_object_agg(n.nspname, pg_catalog.has_table_privilege(o.oid, 'SELECT') AND
    pg_catalog.has_table_privilege(o.oid, 'INSERT')
      AND pg_catalog.has_table_privilege(o.oid, 'UPDATE') AND pg_catalog.has_table_privilege(o.oid, 'DELETE'))
    FROM pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace
    WHERE o.relname = 'saga_row_lock' AND o.relkind = 'r' AND o.relpersistence <> 't') AS locks,
  (SELECT pg_catalog.json_agg(a.attname ORDER BY pg_catalog.array_position(i.indkey::int2[], a.attnum))
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = c.oid AND i.indisprimary) AS key,
  (SELECT pg_catalog.min(p.proname) FROM pg_attrdef d
    JOIN pg_depend e ON e.classid = 'pg_attrdef'::regclass::oid AND e.objid = d.oid AND e.refclassid =
      'pg_proc'::regclass::oid
    JOIN pg_proc p ON p.oid = e.refobjid
    WHERE d.adrelid = c.oid AND p.provolatile = 'v' AND p.pronamespace <> 'pg_catalog'::regnamespace::oid) AS defaults,
  (WITH RECURSIVE part(oid) AS (
    SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION SELECT p.oid FROM part JOIN pg_type t ON t.oid = part.oid, LATERAL (
      SELECT t.typbasetype AS oid WHERE t.typtype = 'd' UNION ALL SELECT t.typelem WHERE t.typelem <> 0::oid
      UNION ALL SELECT x.atttypid FROM pg_attribute x
        WHERE x.attrelid = t.typrelid AND x.attnum > 0 AND NOT x.attisdropped
      UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) p)
    SELECT pg_catalog.min(p.proname) FROM pg_constraint k
    JOIN pg_depend e ON e.classid = 'pg_constraint'::regclass::oid AND e.objid = k.oid
    LEFT JOIN pg_operator o ON e.refclassid = 'pg_operator'::regclass::oid AND o.oid = e.refobjid
    JOIN pg_proc p ON p.oid = CASE e.refclassid WHEN 'pg_proc'::regclass::oid THEN e.refobjid ELSE o.oprcode::oid END
    WHERE (k.conrelid = c.oid OR k.contypid IN (SELECT oid FROM part)) AND k.contype = 'c'
      AND p.provolatile = 'v' AND p.pronamespace <> 'pg_catalog'::regnamespace::oid) AS checks
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = pg_catalog.to_regclass(:name)::oid
"""

_MERGE_RETURNS = 170000

_CHANGING_ACTIONS = ("c", "n", "d")
"""CASCADE, SET NULL, SET DEFAULT."""


UNHASHABLE = """
WITH RECURSIVE part(oid, inner_part) AS (
  SELECT a.atttypid, false FROM pg_attribute a WHERE a.attrelid = pg_catalog.to_regclass(:name)::oid AND a.attname =
    ANY (:columns)
  UNION SELECT p.oid, part.inner_part OR t.typtype <> 'd' FROM part JOIN pg_type t ON t.oid = part.oid, LATERAL (
    SELECT t.typbasetype AS oid WHERE t.typtype = 'd' UNION ALL SELECT t.typelem WHERE t.typelem <> 0::oid AND
      t.typlen = -1
    UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) p
)
SELECT pg_catalog.min(pg_catalog.format_type(t.oid, NULL)) FROM part JOIN pg_type t ON t.oid = part.oid
WHERE (t.typtype = 'b' AND NOT (t.typelem <> 0::oid AND t.typlen = -1) AND t.typname <> 'varchar' AND NOT EXISTS (
    SELECT 1 FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod
    WHERE m.amname = 'hash' AND o.opcdefault AND o.opcintype = t.oid))
  OR (part.inner_part AND (t.typname = 'jsonb' OR (t.typelem <> 0::oid AND t.typlen = -1)))
  OR pg_catalog.to_regproc('pg_catalog.hash_record_extended') IS NULL
"""
"""A type in those of key columns without a hash function, or whose hash inside another value ignores its form.

The parts are those of arrays, rows and ranges.
"""

_SAME_TEXT = frozenset(
    """
    bool int2 int4 int8 oid text varchar bpchar name char enum uuid bytea date time timetz timestamp timestamptz
    inet cidr macaddr macaddr8 bit varbit pg_lsn xid xid8
    """.split()  # noqa: SIM905
)
"""Types whose equal values have the same text, unless their collation folds letters."""

_CANONICAL = {
    "numeric": "trim_scale({})::text",
    "float4": "({}::float8 + 0::float8)::text",  # no negative zero
    "float8": "({} + 0::float8)::text",
    "money": "{}::numeric::text",
    "interval": "justify_interval({})::text",
}

_HASH_FUNCTION = "hash_record_extended("
_HASHES = "hash_record_extended(ROW({0}), 0)::text || '/' || hash_record_extended(ROW({0}), 7432)::text"
"""Equal values have equal hashes, by the collation of the column; 128 bits tell other values apart."""

_FORMS = {
    "jsonb": "regexp_replace({0}::text, '[0-9.]+', '0', 'g')",  # equal numbers may have other digits
    "array": "coalesce(array_dims({0}), '')",
}
"""The form that the hash of a type ignores: `[]` and `[[]]` have the same one, and `{1,2}` and `{{1},{2}}`."""

_NAMES_OF_OBJECTS = frozenset(
    """
    regclass regcollation regconfig regdictionary regnamespace regoper regoperator regproc regprocedure regrole regtype
    """.split()  # noqa: SIM905
)
"""Types whose text depends on the search path."""

_READ = {"bpchar": "textin(bpcharout({}))", "char": "textin(charout({}))", "xml": "textin(xml_out({}))"}
"""Types whose cast to text drops a part of the value."""


async def read_shape(sql: SqlSession, written: str) -> TableShape:
    """The table that ``written`` names. Raises :class:`NotImageable` if there is none."""
    row = await sql.one_or_none(_SHAPE, {"name": written})
    if row is None:
        raise TableMissing(f"there is no table {written} in this database")
    name = f"{row['schema']}.{row['name']}"
    key = tuple(row["key"] or ())
    columns = tuple(_column(fields) for fields in row["columns"] or () if not fields["generated"])
    hashed = [column.name for column in columns if column.name in key and needs_hash(str(column.canonical))]
    unhashable = hashed and await sql.scalar(UNHASHABLE, {"name": written, "columns": hashed})
    if unhashable:
        columns = tuple(replace(column, canonical=None) if column.name in hashed else column for column in columns)
    lock_table, lock_obstacle = _lock_table(row, name)
    defaults = row["defaults"]
    return TableShape(
        name=name,
        quoted=_quoted(row),
        key=key,
        columns=columns,
        references=tuple(_references(row["foreign_keys"] or ())),
        obstacles=(*_obstacles(row, name), *lock_obstacle),
        insert_obstacle=f"a default of {name} calls the function {defaults}, which may have an effect"
        if defaults
        else None
        if row["may_delete"]
        else f"its undo deletes from {name}, for which the user of the connection has no right; grant delete on"
        f" {_quoted(row)}",
        delete_obstacle=_not_insertable(row, name),
        doubts=tuple(
            f"the constraint {constraint} of {name} is not validated, and rows that violate it are refused; validate it"
            for constraint in row["unchecked"] or ()
        ),
        overriding=" OVERRIDING SYSTEM VALUE",
        returns_updates=True,
        lock_table=lock_table,
    )


def _column(fields: Any) -> Column:
    quoted, base, kind = sql_name(fields["name"]), fields["base"], fields["type"]
    read, write = whole_text(base, quoted), f"CAST(CAST({{}} AS text) AS {kind})"
    if base in _NAMES_OF_OBJECTS:
        write = f"CAST(CAST({{}} AS oid) AS {kind})"
    # The equality of the key's own index: `=` of another schema may be missing in the search path. What the index
    # itself excludes is not an equality: WITHOUT OVERLAPS means `&&`.
    compare = f"{fields['equals'] or '='} {write}"
    return Column(
        fields["name"],
        quoted,
        kind,
        read,
        write,
        equal_text(base, quoted, folds=fields["folds"]),
        compare,
        parts=fields["parts"] or {},
        number=fields["number"],
    )


def whole_text(base: str, quoted: str) -> str:
    """The expression for the text that has all of a column's value; ``base`` as in BASE_OF_TYPE."""
    return f"{quoted}::oid::text" if base in _NAMES_OF_OBJECTS else _READ.get(base, "{}::text").format(quoted)


def equal_text(base: str, quoted: str, *, folds: bool) -> str:
    """The expression for a text of a column's value that is the same for equal values, and another for others.

    ``folds``: the collation of the column is not deterministic. If :func:`needs_hash`, the type has to have a hash
    function.
    """
    if base in _NAMES_OF_OBJECTS:
        return whole_text(base, quoted)
    if not folds and (base in _SAME_TEXT or base.removeprefix("array of ") in _SAME_TEXT - {"bpchar"}):
        return f"{quoted}::text"  # without the blanks at the end of char(n), which do not count
    form = _FORMS.get("array" if base.startswith("array of ") else base)
    return _CANONICAL.get(base, _HASHES + (f" || '/' || {form}" if form else "")).format(quoted)


def needs_hash(expression: str) -> bool:
    """True for an expression of :func:`equal_text` that the server evaluates only if the type has a hash function."""
    return _HASH_FUNCTION in expression


def _quoted(row: Any) -> str:
    return f"{sql_name(row['schema'])}.{sql_name(row['name'])}"


def _not_insertable(row: Any, name: str) -> str | None:
    columns = [fields["name"] for fields in row["columns"] or () if not fields["generated"] and not fields["insert"]]
    if not columns:
        return None
    return (
        f"its undo inserts into {name}, and the user of the connection has no right for the column {columns[0]};"
        f" grant insert on {_quoted(row)}"
    )


def _lock_table(row: Any, name: str) -> tuple[str, list[str]]:
    """The table with the locks of the rows, and why there is none that all connections see."""
    locks, own = row["locks"] or {}, row["own_locks"]
    if row["schema"] == own or (row["schema"] not in locks and len(locks) <= 1):
        return "saga_row_lock", []
    if row["schema"] not in locks:
        return "saga_row_lock", [
            f"{name} is in a schema without a table saga_row_lock, and those of {' and '.join(sorted(locks))} do not"
            f" see each other's locks; run `saga setup` with a connection to the schema {row['schema']}"
        ]
    other = f"{sql_name(row['schema'])}.saga_row_lock"
    if not locks[row["schema"]]:
        return other, [
            f"the locks of the rows of {name} are in {row['schema']}.saga_row_lock, for which the user of the"
            f" connection has no rights; grant select, insert, update, delete on {other}"
        ]
    return other, []


def _references(keys: Iterable[Any]) -> Iterable[ForeignKey]:
    for unique in keys:
        on_delete, on_update = unique["delete"] in _CHANGING_ACTIONS, unique["update"] in _CHANGING_ACTIONS
        if on_delete or on_update:
            yield ForeignKey(unique["table"], tuple(unique["columns"]), on_delete, on_update)


def _obstacles(row: Any, name: str) -> Iterable[str]:
    if row["kind"] != "r":
        yield f"{name} is not an ordinary table"
    if row["temporary"]:
        yield f"{name} is a temporary table, which ends with its session"
    if row["inherits"] or row["partition"]:
        yield f"{name} has partitions or inherits"
    if row["row_security"]:
        yield f"row security hides rows of {name}"
    if row["rules"]:
        yield f"{name} has rules, which may change other rows"
    if row["triggers"]:
        yield f"{name} has the trigger {row['triggers'][0]}, which may change other rows"
    if row["checks"]:
        yield (
            f"a constraint of {name} or of its types calls the function {row['checks']}, which may have an effect; if"
            " it has none, declare it stable or immutable"
        )
    columns = [fields for fields in row["columns"] or () if not fields["generated"]]
    for fields in columns:
        if not fields["read"]:
            yield (
                f"the user of the connection has no right to read the column {fields['name']} of {name}; grant"
                f" select on {_quoted(row)}"
            )
        if fields["base"].removeprefix("array of ") in _NAMES_OF_OBJECTS and fields["base"].startswith("array of "):
            yield f"values of the column {fields['name']} of {name} ({fields['type']}) have no exact text"
    if not row["may_lock"]:
        yield f"the user of the connection has no right to lock rows of {name}; grant update on {_quoted(row)}"


_SAME_VALUES = (
    ("int2", "int4", "int8", "numeric"),
    ("float4", "float8"),
    ("text", "varchar", "bpchar", "enum"),
    ("date", "timestamp"),
)
"""Types whose values are the same if the cast back says so, whatever the session that casts them."""

_OTHER_VALUES = ("other", "bit")
"""Types whose values may differ although they have the same base: it is not known, or the cast adds to them."""


def _keeps_values(before: str, now: str) -> bool:
    """True if a change from one base to the other does not depend on its session."""
    array = "array of "
    if before.startswith(array) and now.startswith(array):
        before, now = before.removeprefix(array), now.removeprefix(array)
    if before == now:
        return before not in _OTHER_VALUES
    return any(before in family and now in family for family in _SAME_VALUES)


async def convert(sql: SqlSession, declared: DeclaredType, column: Column, texts: Sequence[str]) -> list[str]:
    """The texts of values whose column had the type ``declared`` as the texts of its type now.

    Raises :class:`NotImageable` if a value is not the same afterwards.
    """
    old, parts = declared["type"], declared.get("parts") or {}
    if old == column.type:
        check_parts(parts, column.parts)
        return list(texts)
    query = f"SELECT {BASE_OF_TYPE} AS base, {PARTS_OF_TYPE} AS parts FROM pg_type t WHERE t.oid = to_regtype(:type)"
    before, now = [await sql.one_or_none(query, {"type": kind}) for kind in (old, column.type)]
    if before is None or now is None:
        raise NotImageable(f"the type {old} does not exist any more")
    check_parts(parts, before["parts"] or {})
    if not _keeps_values(before["base"], now["base"]):
        raise NotImageable(UNCERTAIN)
    was = f"CAST(given.value AS {old})"
    value = f"CAST({was} AS {column.type})"
    # The column stands alone in its query, so that no other name there can be its own.
    statement = (
        f"SELECT (SELECT {column.read} FROM (SELECT {value} AS {column.quoted}) AS changed) AS text,"
        f" CAST(CAST({value} AS {old}) AS text) = CAST({was} AS text) AS same"
        " FROM unnest(CAST(:texts AS text[])) WITH ORDINALITY AS given(value, number) ORDER BY given.number"
    )
    rows = await sql.all(statement, {"texts": list(texts)})
    if not all(row["same"] for row in rows):
        raise NotImageable(f"the new type cannot hold all values of {old}")
    return [row["text"] for row in rows]


async def check_merge(sql: SqlSession) -> None:
    """Raise :class:`NotImageable` if the server cannot say which rows a MERGE has changed."""
    if await sql.scalar("SELECT current_setting('server_version_num')::int") < _MERGE_RETURNS:
        raise NotImageable("PostgreSQL returns the rows of a MERGE from version 17 on")


def merge_with_returning(change: RowChange, expressions: str) -> str:
    """A MERGE that returns ``expressions`` of its table, and whether each row was inserted.

    In RETURNING itself a column of the source could have the same name.
    """
    return (
        f"WITH saga_merge AS (\n{change.statement}\nRETURNING merge_action() AS {TEXT_ALIAS}action,"
        f" {change.alias or change.table}.*\n)"
        f" SELECT {expressions}, {TEXT_ALIAS}action = 'INSERT' AS {TEXT_ALIAS}inserted FROM saga_merge"
    )
