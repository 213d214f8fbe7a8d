"""Target and stage tables in PostgreSQL: description from the catalog, types, creation, and loading by COPY."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv
from pyarrow import parquet as pq

from saga_spark.manifest import Target
from saga_spark.sinks.column_names import postgresql_name_problem
from saga_spark.sinks.sink import Publication
from saga_spark.storage import resolve_uri
from sagas.errors import Rejected, UsageError
from sagas.text.exact_json import encode_json
from sagas.text.shortening import counted

PgConnection = psycopg.Connection[tuple[Any, ...]]

FOREIGN_KEY_COLUMNS = """
       (select pg_catalog.array_agg(a.attname::text order by k.place) from pg_catalog.unnest(c.conkey) with ordinality
         as k(number, place)
        join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number),
       (select pg_catalog.array_agg(a.attname::text order by k.place) from pg_catalog.unnest(c.confkey) with
         ordinality as k(number, place)
        join pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.number)"""
"""The columns of the foreign key ``c`` of pg_constraint, and those that it refers to, as two columns of a query."""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target table. ``declared`` is the declared type, ``type`` the same with domains resolved to their
    base type.
    """

    name: str
    declared: str
    type: str
    not_null: bool = False
    has_default: bool = False
    generated: bool = False
    always_identity: bool = False  # generated always as identity


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A target table, existing (``oid``) or still to be created.

    ``unique`` are the columns of each unique index that covers all rows; ``key`` are the primary key's columns.
    ``before_triggers`` may skip or change rows; ``rules`` replace or accompany writes.
    """

    schema: str
    name: str
    oid: int | None = None
    kind: str = "r"
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    row_security: bool = False
    before_triggers: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()

    @property
    def sql(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]

    def column(self, name: str) -> TargetColumn | None:
        return next((column for column in self.columns if column.name == name), None)


_SELECT_COLUMNS = """
select a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       pg_catalog.format_type(coalesce(nullif(t.typbasetype, 0::oid), a.atttypid),
                   case when t.typbasetype = 0::oid then a.atttypmod else t.typtypmod end),
       a.attnotnull or t.typnotnull, a.atthasdef or a.attidentity <> '' or t.typdefault is not null,
       a.attgenerated <> '', a.attidentity = 'a'
from pg_attribute a join pg_type t on t.oid = a.atttypid
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""

_SELECT_UNIQUE_INDEXES = """
select i.indisprimary, pg_catalog.array_agg(a.attname::text order by k.place)
from pg_index i
cross join pg_catalog.unnest(i.indkey::int2[]) with ordinality as k(number, place)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
      and k.place <= i.indnkeyatts
group by i.indexrelid, i.indisprimary order by i.indexrelid
"""

_SELECT_BEFORE_TRIGGERS = """
select distinct tgname from pg_trigger
where (tgrelid = %s or tgrelid in (select relid::oid from pg_catalog.pg_partition_tree(%s)))
      and not tgisinternal and tgenabled in ('O', 'A') and tgtype & 3 = 3 order by tgname
"""
"""The bits of ``tgtype``: for each row (1), before (2)."""

_SELECT_RULES = "select rulename from pg_rewrite where ev_class = %s and ev_enabled in ('O', 'A') order by rulename"

_NAME_PARTS = re.compile(r'\s*("(?:[^"]|"")*"|[^."]+)\s*(?:\.|$)')


def check_table_name(subject: str, name: str) -> None:
    """PostgreSQL would take the table whose name is the beginning of a longer one. Raises UsageError."""
    for part in _NAME_PARTS.findall(name):
        plain = part[1:-1].replace('""', '"') if part.startswith('"') else part.strip()
        if problem := postgresql_name_problem("table or schema", plain):
            raise UsageError(f"{subject}: {problem}")


def describe_table(connection: PgConnection, name: str) -> TargetTable:
    """The table that ``name`` (``table`` or ``schema.table``, as in SQL) refers to. Raises UsageError."""
    try:
        with connection.transaction():
            parsed = _fetch_row(connection, "select parse_ident(%s), current_schema()", name)
    except psycopg.errors.InvalidParameterValue:
        raise UsageError(f"{name} is not a table name; write schema.table, and quote names as in SQL") from None
    parts, schema = parsed
    if len(parts) > 2 or (len(parts) == 1 and schema is None):
        raise UsageError(f"{name} does not name a table; write schema.table")
    row = _fetch_row(
        connection,
        "select c.oid, n.nspname, c.relname, c.relkind::text, pg_catalog.row_security_active(c.oid) from pg_class c "
        "join pg_namespace n on n.oid = c.relnamespace where c.oid = pg_catalog.to_regclass(%s)::oid",
        name,
    )
    if row is None:
        return TargetTable(*parts) if len(parts) == 2 else TargetTable(schema, parts[0])
    oid, schema, name, kind, row_security = row
    indexes = connection.execute(_SELECT_UNIQUE_INDEXES, (oid,)).fetchall()
    return TargetTable(
        schema,
        name,
        oid,
        kind,
        tuple(TargetColumn(*values) for values in connection.execute(_SELECT_COLUMNS, (oid,))),
        next((tuple(columns) for primary, columns in indexes if primary), ()),
        tuple(tuple(columns) for _, columns in indexes),
        row_security,
        tuple(name for (name,) in connection.execute(_SELECT_BEFORE_TRIGGERS, (oid, oid))),
        tuple(name for (name,) in connection.execute(_SELECT_RULES, (oid,))),
    )


def stage_columns(schema: Mapping[str, Any], table: TargetTable) -> list[tuple[str, str, bool]]:
    """Name, type and NOT NULL of each staged column, as in the table or as it will be created."""
    result = []
    for field in schema["fields"]:
        column = table.column(field["name"])
        column_type = column.declared if column else postgresql_type(field["type"])
        if column_type is None:
            raise UsageError(
                f"the column {field['name']} has the type {field['type']}, which PostgreSQL does not support"
            )
        result.append((field["name"], column_type, bool(column and column.not_null)))
    return result


def create_table(
    connection: PgConnection, table: TargetTable, schema: Mapping[str, Any], key: Sequence[str]
) -> TargetTable:
    """Create the table for the staged rows, with ``key`` as its primary key, and return its description."""
    columns = [_column_definition(name, type) for name, type, _ in stage_columns(schema, table)]
    if key:
        columns.append(sql.SQL("primary key ({})").format(identifiers(key)))
    connection.execute(sql.SQL("create table {} ({})").format(table.sql, sql.SQL(", ").join(columns)))
    return describe_table(connection, table.sql.as_string(connection))


def identifiers(names: Sequence[str], alias: str | None = None) -> sql.Composed:
    """``a, b`` or ``t.a, t.b``."""
    return sql.SQL(", ").join(sql.Identifier(*([alias] if alias else []), name) for name in names)


def keys_equal(left: str, right: str, key: Sequence[str]) -> sql.Composed:
    """``l.a = r.a and l.b = r.b``."""
    return sql.SQL(" and ").join(
        sql.SQL("{} = {}").format(sql.Identifier(left, name), sql.Identifier(right, name)) for name in key
    )


def _column_definition(name: str, type: str, not_null: bool = False) -> sql.Composed:
    # The type comes from format_type or from our own table of types: it is valid SQL.
    text = f" {type} not null" if not_null else f" {type}"
    return sql.Composed([sql.Identifier(name), sql.SQL(text)])  # pyright: ignore[reportArgumentType]


def column_definitions(columns: Sequence[tuple[str, str, bool]]) -> sql.Composed:
    """The column list of a CREATE TABLE."""
    return sql.SQL(", ").join(_column_definition(*column) for column in columns)


def database_message(error: psycopg.Error) -> str:
    """The server's message on one line, without the statement."""
    return " ".join((error.diag.message_primary or str(error)).split())


def _fetch_row(connection: PgConnection, statement: str, *values: Any) -> Any:
    return connection.execute(statement, values).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]


# The mapping from Spark's types to PostgreSQL's, and which PostgreSQL types hold them without loss.
_POSTGRESQL_TYPES = {
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "binary": "bytea",
}
_INTEGER_TYPES = {"smallint", "integer", "bigint"}
_NON_TEXT_TYPES = {
    *_POSTGRESQL_TYPES.values(),
    "numeric",
    "time without time zone",
    "time with time zone",
    "interval",
    "money",
    "oid",
}
_NON_TEXT_TYPES -= {"text"}
_TEXT_LENGTH = re.compile(r"(?:var)?char\((\d+)\)")


def postgresql_type(spark: Any) -> str | None:
    """The type of a new table's column for Spark's type (its JSON); None if there is none."""
    if isinstance(spark, dict):
        return "jsonb" if spark.get("type") in ("array", "map", "struct") else None
    if spark.startswith("decimal("):
        return f"numeric{spark.removeprefix('decimal')}"
    if _TEXT_LENGTH.fullmatch(spark):
        return "text"
    return _POSTGRESQL_TYPES.get(spark)


def type_problem(spark: Any, target: str) -> str | None:
    """Why a column of type ``target`` (``format_type`` of the base type) would lose data of Spark's type (its JSON).

    None if the types fit. Single values may still be out of range, which the database checks.
    """
    base, numbers = _split_type(target)
    spark_name = spark if isinstance(spark, str) else spark.get("type", "?")
    message = f"{spark_name} does not fit {target}"
    if isinstance(spark, dict):
        return None if base in ("json", "jsonb") and postgresql_type(spark) else message
    if spark in ("byte", "short", "integer", "long"):
        return None if base in (*_INTEGER_TYPES, "numeric") else message
    if spark.startswith("decimal("):
        scale = int(spark[:-1].split(",")[1])
        if base in _INTEGER_TYPES:
            return None if scale == 0 else f"{message}: digits after the point would be rounded away"
        if base != "numeric":
            return message
        kept = numbers[1] if len(numbers) > 1 else 0
        rounded = bool(numbers) and kept < scale
        return f"{message}: digits after the point would be rounded away" if rounded else None
    if spark in ("timestamp", "timestamp_ntz"):
        if base != _POSTGRESQL_TYPES[spark]:
            return f"{message}: one of them has a time zone" if base.startswith("timestamp") else message
        return f"{message}: microseconds would be rounded away" if numbers and numbers[0] < 6 else None
    if spark == "string" or _TEXT_LENGTH.fullmatch(spark):
        # The database parses uuid, json, inet, its enums … from text and refuses invalid values.
        return message if base in _NON_TEXT_TYPES or target.endswith("[]") else None
    return None if _POSTGRESQL_TYPES.get(spark) == base else message


def _split_type(target: str) -> tuple[str, list[int]]:
    """``timestamp(3) without time zone`` → its name without numbers, and the numbers."""
    match = re.search(r"\(([\d, -]+)\)", target)
    if match is None:
        return target, []
    return target.replace(match.group(), ""), [int(number) for number in match.group(1).split(",")]


# Stage tables, loaded from a manifest's files: Arrow batches → COPY.
COPY_BATCH_ROWS = 65_536
"""Rows per batch."""

_CONTAINS_NUL = pc.MatchSubstringOptions("\0")

_SELECT_CHECKS = """
select conname, pg_catalog.pg_get_constraintdef(oid) from pg_constraint
where conrelid = %s and contype = 'c' and conkey <@ (
    select pg_catalog.array_agg(attnum) from pg_attribute where attrelid = %s and attname = any(%s))
"""


def stage_table_prefix(target: Target) -> str:
    """The common prefix of the names of all stage tables of this target and generation."""
    return f"saga_stage_{target.name}-e"


def stage_table_name(publication: Publication) -> str:
    """Each manifest has its own stage table, so that attempts cannot interfere with each other."""
    return f"{stage_table_prefix(publication.tag.target)}{publication.tag.epoch}"


def is_loaded(connection: PgConnection, publication: Publication) -> bool:
    """Return whether the stage table is complete: its rows and its identifying comment are written in one
    transaction.
    """
    comment = connection.execute(
        "select pg_catalog.obj_description(pg_catalog.to_regclass(pg_catalog.quote_ident(%s))::oid, 'pg_class')",
        (stage_table_name(publication),),
    ).fetchone()
    return comment is not None and comment[0] == _stage_table_comment(publication)


def load_stage_table(connection: PgConnection, publication: Publication, table: TargetTable) -> None:
    """Create and load the stage table. Its columns have the types, NOT NULL and CHECK constraints of the target's, so
    that the database refuses now what it would refuse later.

    Raises Rejected if the rows do not fit. Commits nothing.
    """
    name = stage_table_name(publication)
    stage = sql.Identifier(name)
    columns = stage_columns(publication.manifest.schema, table)
    names = [column for column, _, _ in columns]
    connection.execute(sql.SQL("drop table if exists {}").format(stage))
    connection.execute(sql.SQL("create table {} ({})").format(stage, column_definitions(columns)))
    if table.oid is not None:
        for check, definition in connection.execute(_SELECT_CHECKS, (table.oid, table.oid, names)).fetchall():
            added = sql.SQL("alter table {} add constraint {} ").format(stage, sql.Identifier(check))
            connection.execute(added + sql.SQL(definition))
    try:
        rows = _copy_rows(connection, publication, sql.SQL("copy {} ({}) from stdin (format csv)"), stage, names)
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        message = database_message(error).replace(name, table.name)
        context = error.diag.context or ""
        raise Rejected(
            f"the table {table.qualified_name} does not accept the rows: {message}", context=context
        ) from error
    if rows != publication.manifest.rows:
        raise Rejected(
            f"the staged files have {counted(rows, 'row')}, but their manifest says {publication.manifest.rows}"
        )
    connection.execute(
        sql.SQL("comment on table {} is {}").format(stage, sql.Literal(_stage_table_comment(publication)))
    )
    connection.execute(sql.SQL("analyze {}").format(stage))


def _copy_rows(
    connection: PgConnection, publication: Publication, statement: sql.SQL, stage: sql.Identifier, names: list[str]
) -> int:
    rows = 0
    with connection.cursor() as cursor, cursor.copy(statement.format(stage, identifiers(names))) as copy:
        for batch in _staged_batches(publication, names):
            buffer = pa.BufferOutputStream()
            # Null is written as nothing and text is quoted, which is how COPY distinguishes null from an empty string.
            csv.write_csv(batch, buffer, csv.WriteOptions(include_header=False))
            copy.write(memoryview(buffer.getvalue()))
            rows += batch.num_rows
    return rows


def _staged_batches(publication: Publication, names: list[str]) -> Iterator[pa.RecordBatch]:
    for file in publication.manifest.files:
        system, path = resolve_uri(file.uri)
        try:
            source = pq.ParquetFile(path, filesystem=system)
        except FileNotFoundError:
            raise Rejected(f"the staged file {file.uri} does not exist any more") from None
        with source:
            for batch in source.iter_batches(COPY_BATCH_ROWS, columns=names):
                columns = [_to_copy_format(name, batch.column(name)) for name in names]
                yield pa.RecordBatch.from_arrays(columns, names)


def _to_copy_format(name: str, column: pa.Array) -> pa.Array:
    """Convert the values to a form whose CSV representation PostgreSQL parses exactly."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if pc.call_function("any", [pc.call_function("match_substring", [column], _CONTAINS_NUL)]).as_py():
            raise Rejected(f"the column {name} has a string with a NUL character, which PostgreSQL cannot store")
        return column
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", "UTC" if kind.tz else None))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        texts = [
            None if value is None else encode_json(_json_value(value, kind)).decode() for value in column.to_pylist()
        ]
        return pa.array(texts, pa.string())
    return column


def _json_value(value: Any, kind: pa.DataType) -> Any:
    """A nested value as JSON with exact numbers; dates and times become strings."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Rejected(f"a nested value contains {value}, which JSON cannot express")
        return value
    if value is None or isinstance(value, str | bool | int | Decimal):
        return value
    if pa.types.is_map(kind):
        keys = [_json_value(key, kind.key_type) for key, _ in value]
        texts = [key if isinstance(key, str) else encode_json(key).decode() for key in keys]
        return {text: _json_value(item, kind.item_type) for text, (_, item) in zip(texts, value, strict=True)}
    if pa.types.is_struct(kind):
        return {field.name: _json_value(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_json_value(item, kind.value_type) for item in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def _stage_table_comment(publication: Publication) -> str:
    return encode_json({"manifest": publication.tag.sha, "rows": publication.manifest.rows}).decode()
