"""The tables of a database whose rows are compared, and those whose rows the session cannot see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.automatic.postgresql import BASE_OF_TYPE, UNHASHABLE, equal_text, needs_hash, whole_text
from saga_activities.engine_tables import ENGINE_TABLES
from sagas.text.sql_names import backquoted, sql_name

LARGE_OBJECTS = "pg_largeobject"


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table. ``name`` is that of the messages: with its schema unless a statement finds it without.

    ``quoted``: its name in statements. ``columns`` are named in messages; ``values`` are the expressions for their
    values, with the same text for equal ones. ``key``: the columns of the primary key; ``key_texts``: the expressions
    for their texts in messages.
    """

    name: str
    quoted: str
    columns: tuple[str, ...]
    values: tuple[str, ...]
    key: tuple[str, ...]
    key_texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HiddenPlace:
    """A table or a sequence that is not compared, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class SearchPath:
    """The schemas in which statements of the connection find a name without a schema, on PostgreSQL.

    ``engine``: schema and name of the tables that the names of the engine's tables lead to.
    """

    schemas: tuple[str, ...] = ()
    engine: frozenset[tuple[str, str]] = frozenset()

    def shown(self, schema: str, name: str, others: Sequence[tuple[str, str]]) -> str:
        """The name in messages; ``others``: the schema and the name of everything that it could be confused with."""
        first = next((each for each in self.schemas if (each, name) in others), None)
        return name if first == schema else f"{schema}.{name}"


async def read_search_path(connection: AsyncConnection) -> SearchPath:
    """The path of a session of the connection itself."""
    if connection.dialect.name != "postgresql":
        return SearchPath()
    schemas = (await connection.exec_driver_sql("SELECT pg_catalog.current_schemas(true)")).scalar_one()
    engine = (await connection.execute(sa.text(_VISIBLE), {"names": sorted(ENGINE_TABLES)})).all()
    return SearchPath(tuple(schemas), frozenset((schema, name) for schema, name in engine))


async def read_tables(connection: AsyncConnection, path: SearchPath) -> tuple[list[ComparedTable], list[HiddenPlace]]:
    """The tables of the database without those of the engine, in the order of their names, and the hidden ones."""
    if connection.dialect.name == "postgresql":
        return await _read_postgresql(connection, path)
    if connection.dialect.name == "sqlite":
        return await _read_sqlite(connection), []
    return await _read_mysql(connection), []


_VISIBLE = """
    SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n
      ON n.oid = c.relnamespace
    WHERE c.relname = ANY (CAST(:names AS text[])) AND pg_catalog.pg_table_is_visible(c.oid)
"""

_POSTGRESQL_TABLES = """
    SELECT c.oid, n.nspname, c.relname, pg_catalog.row_security_active(c.oid),
      pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT'),
      ARRAY(SELECT a.attname::text FROM pg_index i
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
            WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY a.attnum)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
      OR c.oid IN ('pg_largeobject'::regclass, 'pg_largeobject_metadata'::regclass)
    ORDER BY 2, 3
"""

_POSTGRESQL_COLUMNS = f"""
    SELECT a.attrelid, a.attname, {BASE_OF_TYPE},
      EXISTS (SELECT 1 FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = ANY (CAST(:tables AS oid[])) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum
"""


async def _read_postgresql(
    connection: AsyncConnection, path: SearchPath
) -> tuple[list[ComparedTable], list[HiddenPlace]]:
    described: Sequence[Any] = (await connection.exec_driver_sql(_POSTGRESQL_TABLES)).all()
    names = [(schema, name) for _, schema, name, *_ in described]
    columns: dict[int, list[Any]] = {}
    for row in await connection.execute(sa.text(_POSTGRESQL_COLUMNS), {"tables": [oid for oid, *_ in described]}):
        columns.setdefault(row[0], []).append(row)
    role = (await connection.exec_driver_sql("SELECT current_user")).scalar_one()
    tables, hidden = [], []
    for oid, schema, name, secured, readable, key in described:
        shown = path.shown(schema, name, names)
        if (schema, name) in path.engine:
            continue
        if name == LARGE_OBJECTS and schema == "pg_catalog" and not readable:
            if await _has_large_objects(connection):
                hidden.append(HiddenPlace(shown, f"only a superuser may read large objects, and {role} is none"))
        elif not readable:
            hidden.append(HiddenPlace(shown, f"the role {role} may not read it"))
        elif secured:
            hidden.append(HiddenPlace(shown, f"row level security hides rows of it from the role {role}"))
        else:
            described_columns = columns.get(oid, [])
            bases = {column: base for _, column, base, _ in described_columns}
            values = [
                await _value(connection, (schema, name), column, base, folds=folds)
                for _, column, base, folds in described_columns
            ]
            texts = [whole_text(bases[column], sql_name(column)) for column in key]
            quoted = f"{sql_name(schema)}.{sql_name(name)}"
            tables.append(ComparedTable(shown, quoted, tuple(bases), tuple(values), tuple(key), tuple(texts)))
    return tables, hidden


async def _value(connection: AsyncConnection, table: tuple[str, str], column: str, base: str, *, folds: bool) -> str:
    """The expression for a column's value: the text that equal values share, if the type has an equality."""
    quoted = sql_name(column)
    value = equal_text(base, quoted, folds=folds)
    if needs_hash(value):
        given = {"name": ".".join(map(sql_name, table)), "columns": [column]}
        if (await connection.execute(sa.text(UNHASHABLE), given)).scalar() is not None:
            return whole_text(base, quoted)
    return value


async def _has_large_objects(connection: AsyncConnection) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata)"
    return bool((await connection.exec_driver_sql(query)).scalar())


_SQLITE_TABLES = """
    SELECT m.name, c.name, c.pk > 0 FROM sqlite_master m, pragma_table_info(m.name) c
    WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY m.name, c.cid
"""


async def _read_sqlite(connection: AsyncConnection) -> list[ComparedTable]:
    columns: dict[str, list[tuple[str, bool]]] = {}
    described: Sequence[Any] = (await connection.exec_driver_sql(_SQLITE_TABLES)).all()
    for name, column, is_key in described:
        columns.setdefault(name, []).append((column, bool(is_key)))
    tables = []
    for name, each in columns.items():
        key = tuple(column for column, in_key in each if in_key)
        names = tuple(column for column, _ in each)
        quoted, key_quoted = tuple(map(sql_name, names)), tuple(map(sql_name, key))
        tables.append(ComparedTable(name, sql_name(name), names, quoted, key, key_quoted))
    return [table for table in tables if table.name not in ENGINE_TABLES]


_MYSQL_COLUMNS = sa.text("""
    SELECT c.table_name AS table_, c.column_name AS name, lower(c.data_type) AS type_, c.character_set_name AS set_,
      c.column_key = 'PRI' AS is_key
    FROM information_schema.columns c JOIN information_schema.tables t
      ON t.table_schema = c.table_schema AND t.table_name = c.table_name
    WHERE c.table_schema = database() AND t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')
      AND upper(coalesce(c.generation_expression, '')) NOT IN ('ROW START', 'ROW END')
    ORDER BY c.table_name, c.ordinal_position
""")
"""Without the times that a versioned table gives its rows itself, which no undo restores."""

_MYSQL_BYTES = frozenset(
    """
    binary varbinary tinyblob blob mediumblob longblob bit vector geometry point linestring polygon multipoint
    multilinestring multipolygon geometrycollection geomcollection
    """.split()  # noqa: SIM905
)


async def _read_mysql(connection: AsyncConnection) -> list[ComparedTable]:
    columns: dict[str, list[Any]] = {}
    for row in (await connection.execute(_MYSQL_COLUMNS)).all():
        columns.setdefault(row.table_, []).append(row)
    tables = []
    for name, each in columns.items():
        key = [row for row in each if row.is_key]
        tables.append(
            ComparedTable(
                name,
                backquoted(name),
                tuple(row.name for row in each),
                tuple(map(_mysql_value, each)),
                tuple(row.name for row in key),
                tuple(map(_mysql_text, key)),
            )
        )
    return [table for table in tables if table.name not in ENGINE_TABLES]


def _mysql_value(row: Any) -> str:
    """The expression for a column's value: for text its bytes, as collations take different texts for equal ones."""
    quoted = backquoted(row.name)
    if row.type_ in ("float", "double"):
        return f"CAST({quoted} + 0e0 AS CHAR)"
    if row.type_ in ("enum", "set"):
        return f"CAST({quoted} + 0 AS CHAR)"
    if row.set_ is not None or row.type_ in _MYSQL_BYTES:
        return f"HEX({quoted})"
    return f"CAST({quoted} AS CHAR)"


def _mysql_text(row: Any) -> str:
    quoted = backquoted(row.name)
    return f"HEX({quoted})" if row.type_ in _MYSQL_BYTES else f"CONVERT({quoted} USING utf8mb4)"
