"""Freezes tables and queries of a PostgreSQL database as Parquet files, all inputs of a database from one snapshot."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, LiteralString, cast

import psycopg
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from saga_spark.job_errors import JobFailed, first_line
from saga_spark.sinks.postgresql.tables import where_clause
from saga_spark.storage import create_folder, resolve_uri
from sagas.builtins.sql_statements import RefusedStatement, split_parameters
from sagas.errors import InfrastructureError, UsageError

CSV_BLOCK_BYTES = 16 * 2**20
"""Block size of the CSV parser in bytes; no row may be longer."""

_TYPES: dict[int, pa.DataType] = {
    16: pa.bool_(),
    20: pa.int64(),
    21: pa.int32(),
    23: pa.int32(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}
_NUMERIC, _BYTEA = 1700, 17
_PLAIN_NUMERIC = pa.decimal128(38, 18)
"""The type of a numeric without precision, as in Spark's own JDBC source."""


@dataclass(frozen=True, slots=True)
class DatabaseInput:
    """One input: its values from the definition (``table`` or ``query``, ``columns``, ``where``), and its file."""

    name: str
    values: Mapping[str, Any]
    uri: str


@dataclass(frozen=True, slots=True)
class DatabaseExtract:
    rows: int
    snapshot: str
    taken_at: str


def extract_database_inputs(
    url: str,
    inputs: list[DatabaseInput],
    on_progress: Callable[[dict[str, Any]], None],
    on_cancel: Callable[[Any], None],
) -> dict[str, DatabaseExtract]:
    """Raises JobFailed (an input cannot be read as defined), UsageError, InfrastructureError (the database)."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("Spark steps read tables from PostgreSQL only; provide other data as Parquet")
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # psycopg's message would quote the password.
        raise UsageError("the `url` of a connection that Spark steps read is not a valid PostgreSQL URL") from None
    try:
        with psycopg.connect(url) as connection:
            on_cancel(connection.cancel)
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SET LOCAL timezone = 'UTC'")
            connection.execute("SET LOCAL datestyle = 'ISO'")
            connection.execute("SET LOCAL bytea_output = 'hex'")
            snapshot, at = connection.execute("SELECT pg_current_snapshot()::text, now()::text").fetchone() or ("", "")
            return {
                database_input.name: DatabaseExtract(_copy_input(connection, database_input, on_progress), snapshot, at)
                for database_input in inputs
            }
    except psycopg.OperationalError as error:
        raise InfrastructureError(f"the database of the inputs: {first_line(error)}") from error


def input_query(values: Mapping[str, Any]) -> sql.Composed:
    """The SQL query of an input."""
    columns = sql.SQL("*")
    if values.get("columns"):
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in values["columns"])
    if "query" in values:
        source = sql.SQL("(\n{}\n) AS input").format(_author_sql(values["query"].rstrip().rstrip(";"), values))
    else:
        source = sql.Identifier(*values["table"].split("."))
    query = sql.SQL("SELECT {} FROM {}").format(columns, source)
    where = values.get("where")
    if where is None:
        return query
    if isinstance(where, str):
        return sql.SQL("{} WHERE (\n{}\n)").format(query, _author_sql(where, values))
    return sql.SQL("{} WHERE {}").format(query, where_clause(where, typed=True))


def _author_sql(text: str, values: Mapping[str, Any]) -> sql.Composable:
    """SQL as written by the author of the definition, with the values of `params` as literals: COPY takes no
    parameters. Raises JobFailed."""
    params = values.get("params")
    if params is None:
        return sql.SQL(cast(LiteralString, text))
    try:
        pieces = split_parameters(text, "postgresql")
    except RefusedStatement as error:
        raise JobFailed(f"the SQL of an input cannot be read: {error.message}") from None
    parts: list[sql.Composable] = []
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            parts.append(sql.SQL(cast(LiteralString, piece)))
        elif piece in params and not isinstance(params[piece], dict):
            parts.append(sql.Literal(params[piece]))
        else:
            raise JobFailed(f"the SQL of an input names :{piece}; give it a string, number or list under `params`")
    return sql.Composed(parts)


def _copy_input(
    connection: psycopg.Connection[Any], database_input: DatabaseInput, on_progress: Callable[[dict[str, Any]], None]
) -> int:
    query = input_query(database_input.values)
    try:
        # In binary mode the server accepts a single statement only, so that a value substituted into the SQL cannot end
        # it and begin another one.
        cursor = connection.cursor(binary=True)
        described = cursor.execute(sql.SQL("SELECT * FROM ({}) AS input LIMIT 0").format(query)).description or []
        types = {column.name: arrow_type(column) for column in described}
        if len(types) < len(described):
            raise JobFailed(f"the input {database_input.name} has two columns of the same name; give one an alias")
        binary = [column.name for column in described if column.type_code == _BYTEA]
        with connection.cursor().copy(
            sql.SQL("COPY ({}) TO STDOUT (FORMAT csv, HEADER true, FORCE_QUOTE *)").format(query)
        ) as copy:
            return _write_parquet(copy, types, binary, database_input, on_progress)
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise JobFailed(f"the input {database_input.name} cannot be read: {first_line(error)}") from None
    except pa.ArrowInvalid as error:
        raise JobFailed(f"the input {database_input.name} has a value that Parquet cannot store: {error}") from None


def arrow_type(column: Any) -> pa.DataType:
    """The type in which a column of a result is read: string for types without a counterpart (uuid, json, arrays …)."""
    if column.type_code == _NUMERIC:
        if column.precision is None:
            return _PLAIN_NUMERIC
        if column.precision > 38 or not 0 <= (column.scale or 0) <= column.precision:
            return pa.string()
        return pa.decimal128(column.precision, column.scale or 0)
    return _TYPES.get(column.type_code, pa.string())


def _write_parquet(
    copy: psycopg.Copy,
    types: dict[str, pa.DataType],
    binary: list[str],
    database_input: DatabaseInput,
    on_progress: Callable[..., None],
) -> int:
    # An empty line is a row too: the null of a table with one column.
    reader = pacsv.open_csv(
        io.BufferedReader(_CopyStream(iter(copy)), CSV_BLOCK_BYTES),
        read_options=pacsv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pacsv.ConvertOptions(
            column_types=types,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )
    schema = pa.schema([pa.field(name, pa.binary() if name in binary else kind) for name, kind in types.items()])
    create_folder(database_input.uri.rpartition("/")[0])
    system, path = resolve_uri(database_input.uri)
    rows = 0
    with system.open_output_stream(path) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(_decode_binary(batch, binary, schema))
            rows += batch.num_rows
            on_progress({"input": database_input.name, "rows": rows})
    return rows


def _decode_binary(batch: pa.RecordBatch, binary: list[str], schema: pa.Schema) -> pa.RecordBatch:
    """Decode PostgreSQL's text form of bytea, ``\\x0a0b``."""
    if not binary:
        return batch
    arrays = []
    for field, array in zip(schema, batch.columns, strict=True):
        if field.name in binary:
            values = [None if text is None else bytes.fromhex(text[2:]) for text in array.to_pylist()]
            arrays.append(pa.array(values, pa.binary()))
        else:
            arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _CopyStream(io.RawIOBase):
    """The blocks of a COPY as a stream."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with contextlib.suppress(StopIteration):
            while not self._rest:
                self._rest = memoryview(next(self._blocks))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
