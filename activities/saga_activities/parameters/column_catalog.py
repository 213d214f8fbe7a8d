"""The columns of a table as the catalog of its database describes them, as far as they limit parameters."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from saga_activities.parameters.parameter_columns import ParameterColumn, Parameters
from saga_activities.parameters.time_columns import mysql_time, postgresql_time, sqlite_time
from sagas.sql_text.parameters.assigned_parameters import AssignedParameter, StarColumn

Query = Callable[[str, Parameters], Awaitable[Sequence[Mapping[str, Any]]]]
"""Runs a query with named parameters on the connection of the statement."""

# The columns of a table, from the catalog. Read for each statement: a migration may change a type at any time.
_POSTGRESQL_PARTS = """
WITH RECURSIVE part AS (
    {source}
  UNION ALL
    SELECT part.position, part.name, part.type, inner_part.part_type, inner_part.modifier, inner_part.is_array,
           inner_part.is_range, inner_part.field, inner_part.field_position
    FROM part JOIN pg_catalog.pg_type t ON t.oid = part.part_type
    CROSS JOIN LATERAL (
        SELECT t.typbasetype AS part_type, t.typtypmod AS modifier, part.is_array, part.is_range, part.field,
               part.field_position
        WHERE t.typtype = 'd'
      UNION ALL
        SELECT t.typelem, part.modifier, true, part.is_range, part.field, part.field_position
        WHERE t.typcategory = 'A' AND t.typtype <> 'd'
      UNION ALL
        SELECT r.rngsubtype, -1, part.is_array, true, part.field, part.field_position
        FROM pg_catalog.pg_range r
        WHERE t.typtype IN ('r', 'm') AND t.oid IN (r.rngtypid, r.rngmultitypid)
      UNION ALL
        SELECT f.atttypid, f.atttypmod, part.is_array, part.is_range, coalesce(part.field, f.attname),
               CASE WHEN part.field IS NULL THEN f.attnum::int ELSE part.field_position END
        FROM pg_catalog.pg_attribute f
        WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
    ) AS inner_part
)
SELECT part.position, part.name, part.type, t.typname AS base, part.modifier, part.is_array, part.is_range, part.field,
       part.field_position, t.typtype = 'b' AND t.oid::bigint >= 16384 AS is_own
FROM part JOIN pg_catalog.pg_type t ON t.oid = part.part_type
WHERE t.typtype NOT IN ('c', 'd', 'm', 'r') AND t.typcategory <> 'A'
ORDER BY part.position, part.field_position
"""
"""The scalar types in each type of the source: behind domains, in arrays, ranges and the fields of composite types.

The object identifiers from 16384 on are those of the database's own types.
"""

_POSTGRESQL_COLUMNS = _POSTGRESQL_PARTS.format(
    source="""
    SELECT a.attnum AS position, a.attname AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,
           a.atttypid AS part_type, a.atttypmod AS modifier, false AS is_array, false AS is_range, NULL::name AS field,
           0 AS field_position
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = pg_catalog.to_regclass(:table)::oid AND a.attnum > 0 AND NOT a.attisdropped
"""
)

_POSTGRESQL_TYPES = _POSTGRESQL_PARTS.format(
    source="""
    SELECT y.oid::bigint AS position, y.typname AS name, pg_catalog.format_type(y.oid, NULL) AS type, y.oid AS
      part_type,
           -1 AS modifier, false AS is_array, false AS is_range, NULL::name AS field, 0 AS field_position
    FROM pg_catalog.pg_type y WHERE y.oid = any(:types)
"""
)
_MYSQL_COLUMNS = """
SELECT column_name AS name, column_type AS type, data_type AS base, numeric_precision AS digits, numeric_scale AS scale,
       character_maximum_length AS length, datetime_precision AS second_digits
FROM information_schema.columns
WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
ORDER BY ordinal_position
"""

_MARIADB_COLUMNS = _MYSQL_COLUMNS.replace(
    "data_type AS base",
    """CASE WHEN concat('json_valid(`', column_name, '`)') IN (
         SELECT k.check_clause FROM information_schema.check_constraints k
         WHERE k.constraint_schema = coalesce(:schema, database()) AND k.table_name = :name
       ) THEN 'json' ELSE data_type END AS base""",
)
"""MariaDB's type JSON is text with a check. With EXISTS the server would open each of its tables."""

_SQLITE_COLUMNS = "SELECT name, type, hidden FROM pragma_table_xinfo(:name, coalesce(:schema, 'main')) ORDER BY cid"

_ROWID = frozenset({"rowid", "oid", "_rowid_"})
"""The names of SQLite for the number of a row, which each table may have besides its columns."""

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_$]{0,62}", re.ASCII | re.IGNORECASE)
"""A name that every database takes as it is written, but for the case: it cuts none, and there is nothing to decode."""


@dataclass(frozen=True, slots=True)
class _TableColumns:
    """The columns of a table in their order. ``others``: the names, in lower case, by which a statement can write
    besides.
    """

    columns: Sequence[ParameterColumn]
    others: frozenset[str] = frozenset()

    def of(self, target: AssignedParameter) -> ParameterColumn | None:
        """The column that the target names, or has the position of."""
        if target.column is None or isinstance(target.column, StarColumn):
            return None
        if isinstance(target.column, int):
            return self.columns[target.column] if target.column < len(self.columns) else None
        exact = next((column for column in self.columns if column.name == target.column), None)
        folded = target.column.lower()
        return exact or next((column for column in self.columns if column.name.lower() == folded), None)

    def lacks(self, target: AssignedParameter) -> bool:
        """Return whether the statement writes a column that the table does not have: the database refuses it."""
        if not target.named or not self.columns or self.of(target) is not None:
            return False
        if not isinstance(target.column, str):
            return isinstance(target.column, int)
        return _PLAIN_NAME.fullmatch(target.column) is not None and target.column.lower() not in self.others


async def read_columns(
    assigned: Sequence[AssignedParameter], dialect: str, query: Query
) -> list[tuple[AssignedParameter, ParameterColumn]]:
    """Each column that a parameter reaches, or may reach."""
    tables: dict[str, _TableColumns] = {}
    stars = [target.column for target in assigned if isinstance(target.column, StarColumn)]
    for target in (*assigned, *stars):
        if target.table not in tables:
            tables[target.table] = await _read_table(target, dialect, query)
    assigned = [replace(target, column=_place(target.column, tables)) for target in assigned]
    seen = {(target.parameter, target.column) for target in assigned if tables[target.table].of(target) is not None}
    return [pair for target in assigned for pair in _pairs(target, tables[target.table], seen)]


def _place(column: str | int | StarColumn | None, tables: Mapping[str, _TableColumns]) -> str | int | None:
    """The name or position of a column; None: any."""
    if not isinstance(column, StarColumn):
        return column
    names = [other.name.lower() for other in tables[column.table].columns]
    if column.column.lower() not in names:
        return None
    position = column.offset + names.index(column.column.lower())
    if column.columns is None:
        return position
    return column.columns[position] if position < len(column.columns) else None


def _pairs(
    target: AssignedParameter, table: _TableColumns, seen: set[tuple[str, str | int | StarColumn | None]]
) -> Iterator[tuple[AssignedParameter, ParameterColumn]]:
    column = table.of(target)
    if column is not None:
        yield target, column
    elif (target.parameter, target.column) not in seen and not table.lacks(target):
        # Not a column of this table, as it was read: it may be a part of any.
        yield from ((replace(target, certain=False), column) for column in table.columns)


async def _read_table(target: AssignedParameter | StarColumn, dialect: str, query: Query) -> _TableColumns:
    if dialect == "postgresql":
        rows = await query(_POSTGRESQL_COLUMNS, {"table": target.table})
        return _TableColumns([_of_parts(list(parts)) for _, parts in groupby(rows, key=lambda row: row["position"])])
    text = {"sqlite": _SQLITE_COLUMNS, "mariadb": _MARIADB_COLUMNS, "mysql": _MYSQL_COLUMNS}[dialect]
    rows = await query(text, {"schema": target.schema, "name": target.name})
    if dialect != "sqlite":
        return _TableColumns(list(map(mysql_column, rows)))
    hidden = {str(row["name"]).lower() for row in rows if row["hidden"]}
    return _TableColumns([_sqlite_column(row) for row in rows if not row["hidden"]], _ROWID | hidden)


async def read_types(types: Collection[int], query: Query) -> Mapping[int, ParameterColumn]:
    """Types of PostgreSQL by their object identifiers, each as a column of this type without a limit."""
    columns = {oid: column for oid in types if (column := _builtin_column(oid)) is not None}
    if own := sorted(oid for oid in {*types} - {*columns} if oid):
        rows = await query(_POSTGRESQL_TYPES, {"types": own})
        of_types = groupby(rows, key=lambda row: int(row["position"]))
        columns |= {oid: _of_parts(list(parts)) for oid, parts in of_types}
    return columns


def _builtin_column(oid: int) -> ParameterColumn | None:
    """A type that psycopg knows as a column; the type of the items of an array or a range decides."""
    import psycopg
    from psycopg.types.multirange import MultirangeInfo
    from psycopg.types.range import RangeInfo

    types = psycopg.adapters.types
    if (info := types.get(oid)) is None:
        return None
    is_range = isinstance(info, RangeInfo | MultirangeInfo)
    item = types.get(info.subtype_oid) if is_range else info
    column = _postgresql_column(info.name, info.regtype, item.name if item is not None else info.name, -1)
    return replace(column, is_array=oid == info.array_oid, is_range=is_range)


def _of_parts(rows: Sequence[Mapping[str, Any]]) -> ParameterColumn:
    """A column of PostgreSQL, from the scalar types in it."""
    name, shown = str(rows[0]["name"]), str(rows[0]["type"])
    parts = [
        replace(
            _postgresql_column(name, shown, str(row["base"]), int(row["modifier"])),
            is_array=bool(row["is_array"]),
            is_range=bool(row["is_range"]),
            is_own=bool(row["is_own"]),
        )
        for row in rows
    ]
    if rows[0]["field"] is None:
        return parts[0]
    fields = list(dict.fromkeys(str(row["field"]) for row in rows))
    numbered = ((fields.index(str(row["field"])), str(row["field"])) for row in rows)
    is_own = any(part.is_own for part in parts)
    return ParameterColumn(name, shown, "composite", is_own=is_own, parts=tuple(zip(numbered, parts, strict=True)))


def makes_numbers_of_text(declared: str) -> bool:
    """Return whether SQLite makes numbers of text in a column whose type is the name of no number, such as `string`."""
    column = _sqlite_column({"name": "", "type": declared})
    return column.rewrites_text and column.kind != "json"


def _sqlite_column(row: Mapping[str, Any]) -> ParameterColumn:
    name, shown = str(row["name"]), str(row["type"])
    declared = shown.upper()
    if "JSON" in declared:
        return ParameterColumn(name, shown, "json", rewrites_text=not _keeps_text(declared))
    if "INT" in declared:
        return ParameterColumn(name, shown, "number")
    if any(word in declared for word in _TEXT_NAMES):
        return ParameterColumn(name, shown, "text")
    if not declared or declared == "ANY" or "BLOB" in declared:
        return ParameterColumn(name, shown, "other")
    is_double, time = any(word in declared for word in ("REAL", "FLOA", "DOUB")), sqlite_time(declared)
    is_named = is_double or time is not None or any(word in declared for word in _NUMBER_NAMES)
    return ParameterColumn(name, shown, "double" if is_double else "number", time=time, rewrites_text=not is_named)


_TEXT_NAMES = ("CHAR", "CLOB", "TEXT")
_NUMBER_NAMES = ("NUM", "DEC", "BOOL", "MONEY", "CURRENCY", "FIXED", "BIT", "YEAR")
"""Parts of names of types for numbers; SQLite makes numbers of text also with other names, such as `string`."""


def _keeps_text(declared: str) -> bool:
    return any(word in declared for word in (*_TEXT_NAMES, "BLOB"))


_BITS = {
    **{"int2": 16, "int4": 32, "int8": 64},
    **{"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64},
}


def _integer_column(name: str, shown: str, bits: int, *, unsigned: bool = False) -> ParameterColumn:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return ParameterColumn(name, shown, "integer", low, high)


def _postgresql_column(name: str, shown: str, base: str, modifier: int) -> ParameterColumn:
    if base in _BITS:
        return _integer_column(name, shown, _BITS[base])
    match base:
        case "numeric" if modifier >= 4:
            precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
            return ParameterColumn(name, shown, "decimal", precision=precision, scale=(scale ^ 1024) - 1024)
        case "numeric":
            return ParameterColumn(name, shown, "decimal")
        case "oid":
            return ParameterColumn(name, shown, "integer", 0, (1 << 32) - 1)
        case "money":
            return ParameterColumn(name, shown, "decimal", precision=18, scale=2)
        case "float8":
            return ParameterColumn(name, shown, "double")
        case "float4":
            return ParameterColumn(name, shown, "single")
        case "json" | "jsonb":
            return ParameterColumn(name, shown, "json")
        case "varchar" | "bpchar" if modifier >= 4:
            return ParameterColumn(name, shown, "text", length=modifier - 4)
        case "text" | "varchar" | "bpchar":
            return ParameterColumn(name, shown, "text")
        case "point" | "lseg" | "path" | "box" | "polygon" | "line" | "circle":
            return ParameterColumn(name, shown, "geometric")
    return ParameterColumn(name, shown, "other", time=postgresql_time(base, modifier))


def mysql_column(row: Mapping[str, Any]) -> ParameterColumn:
    """A column of MySQL or MariaDB, or an argument of a function."""
    name, shown, base = str(row["name"]), str(row["type"]), str(row["base"]).lower()
    digits, scale = row["digits"], row["scale"]
    if base in _BITS:
        return _integer_column(name, shown, _BITS[base], unsigned="unsigned" in shown.lower())
    if (time := mysql_time(base, row["second_digits"])) is not None:
        return ParameterColumn(name, shown, "other", time=time)
    match base:
        case "char" | "varchar" | "tinytext" | "text" | "mediumtext":
            return ParameterColumn(name, shown, "text", length=row["length"], in_bytes=base.endswith("text"))
        case "longtext":
            return ParameterColumn(name, shown, "text")
        case "enum" | "set":
            return ParameterColumn(name, shown, "enum")
        case "json":
            return ParameterColumn(name, shown, "json")
        case "decimal":
            return ParameterColumn(name, shown, "decimal", precision=digits, scale=scale)
        case "double":
            return ParameterColumn(name, shown, "double", scale=scale)
        case "float":
            return ParameterColumn(name, shown, "single", scale=scale, printed=6)
        case "year":
            return ParameterColumn(name, shown, "integer", 1901, 2155)  # of two digits it would make four
        case "bit":
            return ParameterColumn(name, shown, "bits")
    return ParameterColumn(name, shown, "other")
