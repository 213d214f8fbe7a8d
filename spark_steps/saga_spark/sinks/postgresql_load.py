"""Load a manifest's files into a stage table: Arrow batches → COPY."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv
from pyarrow import parquet as pq

from saga_spark.keys import Target
from saga_spark.sinks.files import resolve
from saga_spark.sinks.postgresql_table import Connection, Table, definitions, identifiers, staged_columns
from saga_spark.sinks.sink import Publication
from sagas.errors import Rejected

BATCH = 65_536
"""Rows that are sent at once."""

_NUL = pc.MatchSubstringOptions("\0")

_CHECKS = """
select conname, pg_get_constraintdef(oid) from pg_constraint
where conrelid = %s and contype = 'c' and conkey <@ (
    select array_agg(attnum) from pg_attribute where attrelid = %s and attname = any(%s))
"""


def stage_prefix(target: Target) -> str:
    """What the names of all stage tables of this target and generation begin with."""
    return f"saga_stage_{target.name}-e"


def stage_name(publication: Publication) -> str:
    """Each manifest has a stage table of its own, so no attempt can spoil another's."""
    return f"{stage_prefix(publication.mark.target)}{publication.mark.epoch}"


def is_loaded(connection: Connection, publication: Publication) -> bool:
    """The stage table is written, and says whose rows it holds, in one transaction."""
    found = connection.execute(
        "select obj_description(to_regclass(quote_ident(%s)), 'pg_class')", (stage_name(publication),)
    ).fetchone()
    return found is not None and found[0] == _comment(publication)


def load(connection: Connection, publication: Publication, table: Table) -> None:
    """Load the stage table anew. Its columns have the types, NOT NULL and CHECK constraints of the target's, so the
    database refuses now what it would refuse later.

    Raises Rejected: the rows do not fit. Commits nothing.
    """
    name = stage_name(publication)
    stage = sql.Identifier(name)
    columns = staged_columns(publication.manifest.schema, table)
    names = [column for column, _, _ in columns]
    connection.execute(sql.SQL("drop table if exists {}").format(stage))
    connection.execute(sql.SQL("create table {} ({})").format(stage, definitions(columns)))
    if table.oid is not None:
        for check, definition in connection.execute(_CHECKS, (table.oid, table.oid, names)).fetchall():
            added = sql.SQL("alter table {} add constraint {} ").format(stage, sql.Identifier(check))
            connection.execute(added + sql.SQL(definition))
    try:
        rows = _copy(connection, publication, sql.SQL("copy {} ({}) from stdin (format csv)"), stage, names)
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        said = (error.diag.message_primary or str(error)).replace(name, table.name)
        place = error.diag.context or ""
        raise Rejected(f"the rows do not fit the table {table.label}: {said}", context=place) from error
    if rows != publication.manifest.rows:
        raise Rejected(f"the staged files hold {rows} rows and their manifest says {publication.manifest.rows}")
    connection.execute(sql.SQL("comment on table {} is {}").format(stage, sql.Literal(_comment(publication))))
    connection.execute(sql.SQL("analyze {}").format(stage))


def _copy(
    connection: Connection, publication: Publication, statement: sql.SQL, stage: sql.Identifier, names: list[str]
) -> int:
    rows = 0
    with connection.cursor() as cursor, cursor.copy(statement.format(stage, identifiers(names))) as copy:
        for batch in _batches(publication, names):
            buffer = pa.BufferOutputStream()
            # Null becomes nothing and text is quoted, which is how COPY tells null from an empty text.
            csv.write_csv(batch, buffer, csv.WriteOptions(include_header=False))
            copy.write(memoryview(buffer.getvalue()))
            rows += batch.num_rows
    return rows


def _batches(publication: Publication, names: list[str]) -> Iterator[pa.RecordBatch]:
    for file in publication.manifest.files:
        system, path = resolve(file.uri)
        try:
            source = pq.ParquetFile(path, filesystem=system)
        except FileNotFoundError:
            raise Rejected(f"the staged file {file.uri} is gone") from None
        with source:
            for batch in source.iter_batches(BATCH, columns=names):
                columns = [_for_copy(name, batch.column(name)) for name in names]
                yield pa.RecordBatch.from_arrays(columns, names)


def _for_copy(name: str, column: pa.Array) -> pa.Array:
    """The same values in a form whose CSV text PostgreSQL reads exactly."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if pc.call_function("any", [pc.call_function("match_substring", [column], _NUL)]).as_py():
            raise Rejected(f"the column {name} holds a text with a NUL character, which PostgreSQL cannot store")
        return column
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", "UTC" if kind.tz else None))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if one is None else f"\\x{one.hex()}" for one in column.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        texts = [
            None if one is None else json.dumps(_plain(one, kind), ensure_ascii=False) for one in column.to_pylist()
        ]
        return pa.array(texts, pa.string())
    return column


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A nested value for JSON. Decimals become text, so that no digit is lost; so do dates and times."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if pa.types.is_map(kind):
        return {str(key): _plain(one, kind.item_type) for key, one in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(one, kind.value_type) for one in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def _comment(publication: Publication) -> str:
    return json.dumps({"manifest": publication.mark.sha, "rows": publication.manifest.rows})
