"""What the catalog of PostgreSQL knows of a target table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from saga_spark.sinks.postgresql_types import created_type
from sagas.errors import UsageError

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """``declared`` is the type as declared, ``type`` the same with a domain resolved to what is below it."""

    name: str
    declared: str
    type: str
    not_null: bool = False
    default: bool = False
    generated: bool = False
    always: bool = False  # generated always as identity


@dataclass(frozen=True, slots=True)
class Table:
    """A table, there (``oid``) or still to be created. ``unique`` are the columns of each unique index that holds for
    all rows; ``key`` the primary key's."""

    schema: str
    name: str
    oid: int | None = None
    kind: str = "r"
    columns: tuple[TableColumn, ...] = ()
    key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    row_security: bool = False

    @property
    def sql(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def column(self, name: str) -> TableColumn | None:
        return next((one for one in self.columns if one.name == name), None)


_COLUMNS = """
select a.attname, format_type(a.atttypid, a.atttypmod),
       format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid),
                   case when t.typbasetype = 0 then a.atttypmod else t.typtypmod end),
       a.attnotnull or t.typnotnull, a.atthasdef or a.attidentity <> '' or t.typdefault is not null,
       a.attgenerated <> '', a.attidentity = 'a'
from pg_attribute a join pg_type t on t.oid = a.atttypid
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""

_UNIQUE = """
select i.indisprimary, array_agg(a.attname::text order by k.place)
from pg_index i
cross join unnest(i.indkey::int2[]) with ordinality as k(number, place)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
      and k.place <= i.indnkeyatts
group by i.indexrelid, i.indisprimary order by i.indexrelid
"""


def describe(connection: Connection, place: str) -> Table:
    """The table that ``place`` (``table`` or ``schema.table``, as SQL reads it) names. Raises UsageError."""
    try:
        with connection.transaction():
            found = _row(connection, "select parse_ident(%s), current_schema()", place)
    except psycopg.errors.InvalidParameterValue:
        raise UsageError(f"{place} is not the name of a table") from None
    parts, schema = found
    if len(parts) > 2 or (len(parts) == 1 and schema is None):
        raise UsageError(f"{place} does not name a table and its schema")
    row = _row(
        connection,
        "select c.oid, n.nspname, c.relname, c.relkind::text, row_security_active(c.oid) from pg_class c "
        "join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)",
        place,
    )
    if row is None:
        return Table(*parts) if len(parts) == 2 else Table(schema, parts[0])
    oid, schema, name, kind, row_security = row
    indexes = connection.execute(_UNIQUE, (oid,)).fetchall()
    return Table(
        schema,
        name,
        oid,
        kind,
        tuple(TableColumn(*one) for one in connection.execute(_COLUMNS, (oid,))),
        next((tuple(columns) for primary, columns in indexes if primary), ()),
        tuple(tuple(columns) for _, columns in indexes),
        row_security,
    )


def staged_columns(schema: Mapping[str, Any], table: Table) -> list[tuple[str, str, bool]]:
    """Name, type and NOT NULL of each staged column: as the table has it, or as it is created."""
    result = []
    for field in schema["fields"]:
        column = table.column(field["name"])
        made = column.declared if column else created_type(field["type"])
        if made is None:
            raise UsageError(f"the column {field['name']} has the type {field['type']}, which PostgreSQL does not have")
        result.append((field["name"], made, bool(column and column.not_null)))
    return result


def create(connection: Connection, table: Table, schema: Mapping[str, Any], key: Sequence[str]) -> Table:
    """Create the table for what is staged, with ``key`` as its primary key, and describe it."""
    columns = [_definition(name, type) for name, type, _ in staged_columns(schema, table)]
    if key:
        columns.append(sql.SQL("primary key ({})").format(identifiers(key)))
    connection.execute(sql.SQL("create table {} ({})").format(table.sql, sql.SQL(", ").join(columns)))
    return describe(connection, table.sql.as_string(connection))


def identifiers(names: Sequence[str], alias: str | None = None) -> sql.Composed:
    """``a, b`` or ``t.a, t.b``."""
    return sql.SQL(", ").join(sql.Identifier(*([alias] if alias else []), name) for name in names)


def same_key(left: str, right: str, key: Sequence[str]) -> sql.Composed:
    """``l.a = r.a and l.b = r.b``."""
    return sql.SQL(" and ").join(
        sql.SQL("{} = {}").format(sql.Identifier(left, name), sql.Identifier(right, name)) for name in key
    )


def condition(where: Mapping[str, Any], alias: str | None = None) -> sql.Composable:
    """``where`` of an output as SQL: each column equals a value, or one of a list of them.

    No parameters: beside them the driver would take a percent sign in the name of a column for a placeholder.
    """
    parts: list[sql.Composable] = []
    for name, value in where.items():
        column = sql.Identifier(*([alias] if alias else []), name)
        if value is None:
            parts.append(sql.SQL("{} is null").format(column))
            continue
        # Literals without a type: the database reads them as the column's.
        wanted = [sql.Literal(_text(one)) for one in (value if isinstance(value, list) else [value])]
        parts.append(sql.SQL("{} in ({})").format(column, sql.SQL(", ").join(wanted)))
    return sql.SQL(" and ").join(parts) if parts else sql.SQL("true")


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _definition(name: str, type: str, not_null: bool = False) -> sql.Composed:
    # The type comes from format_type or from our own list: it is SQL already.
    text = f" {type} not null" if not_null else f" {type}"
    return sql.Composed([sql.Identifier(name), sql.SQL(text)])  # pyright: ignore[reportArgumentType]


def definitions(columns: Sequence[tuple[str, str, bool]]) -> sql.Composed:
    """The column list of a create table."""
    return sql.SQL(", ").join(_definition(*one) for one in columns)


def _row(connection: Connection, statement: str, *values: Any) -> Any:
    return connection.execute(statement, values).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
