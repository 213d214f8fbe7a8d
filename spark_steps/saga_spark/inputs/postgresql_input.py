"""Freezes tables and queries of a PostgreSQL database as Parquet files, all inputs of a database from one snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, LiteralString, cast

import psycopg
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from psycopg import sql
from psycopg.rows import dict_row

from saga_activities.guard.sqlstates import healing_of, sqlstate_of
from saga_activities.parameters.float_operands import with_floats
from saga_activities.parameters.parameter_columns import Parameters
from saga_activities.parameters.parameter_types import types_of
from saga_activities.parameters.postgresql_places import checked_places
from saga_activities.session_settings import psycopg_arguments
from saga_spark.database_sessions import database_session
from saga_spark.inputs.copied_values import CopiedColumn, DecimalRange, convert_batch
from saga_spark.job_errors import JobFailed, UnreadableInput, first_line
from saga_spark.sinks.column_names import postgresql_name_problem
from saga_spark.sinks.postgresql.tables import check_table_name
from saga_spark.sinks.postgresql.where_clause import where_clause
from saga_spark.storage import create_folder, resolve_uri
from sagas.builtins.sql_places import Path, SqlPlace, check_query
from sagas.errors import InfrastructureError, UsageError
from sagas.sql_text.parsed import ParsedSql, parse_sql
from sagas.sql_text.tokens import RefusedStatement, split_tokens

CSV_BLOCK_BYTES = 16 * 2**20
"""Block size of the CSV parser in bytes; no row may be longer."""

_READ_ONLY = "25006"
"""SQLSTATE of a statement that writes, in a transaction that only reads."""


@dataclass(frozen=True, slots=True)
class DatabaseInput:
    """One input: its values from the definition (``table`` or ``query``, ``columns``, ``where``), and its file.

    ``needed`` are the columns that are read of those that it has; None: all.
    """

    name: str
    values: Mapping[str, Any]
    uri: str
    needed: Collection[str] | None = None


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
    *,
    name: str,
    trusted_roles: Sequence[str] = (),
) -> dict[str, DatabaseExtract]:
    """Read the inputs in one transaction. ``name`` is that of the connection.

    Raises UnreadableInput, JobFailed (another attempt may read it), UsageError, InfrastructureError (the server).
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("Spark steps read tables from PostgreSQL only; provide other data as Parquet")
    try:
        psycopg_arguments(url)
    except psycopg.ProgrammingError:
        # psycopg's message would quote the password.
        raise UsageError("the `url` of a connection that Spark steps read is not a valid PostgreSQL URL") from None
    try:
        with database_session(url, name, trusted_roles) as connection:
            on_cancel(connection.cancel)
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            snapshot, taken_at = connection.execute("SELECT pg_current_snapshot()::text, now()::text").fetchone() or (
                "",
                "",
            )
            return {
                database_input.name: DatabaseExtract(
                    _copy_input(connection, database_input, on_progress), snapshot, taken_at
                )
                for database_input in inputs
            }
    except psycopg.OperationalError as error:
        names = ", ".join(database_input.name for database_input in inputs)
        raise InfrastructureError(
            f"the database of the inputs {names} cannot be reached: {first_line(error)}"
        ) from error


def input_query(values: Mapping[str, Any]) -> sql.Composed:
    """The SQL query of an input. Raises UsageError for a name that PostgreSQL would cut off."""
    for name in values.get("columns") or ():
        if problem := postgresql_name_problem("column", name):
            raise UsageError(problem)
    if "table" in values:
        check_table_name("an input", values["table"])
    columns = sql.SQL("*")
    if values.get("columns"):
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in values["columns"])
    if "query" in values:
        source = sql.SQL("(\n{}\n) AS input").format(_author_sql(values, "query"))
    else:
        source = sql.Identifier(*values["table"].split("."))
    query = sql.SQL("SELECT {} FROM {}").format(columns, source)
    where = values.get("where")
    if where is None:
        return query
    if isinstance(where, str):
        return sql.SQL("{} WHERE (\n{}\n)").format(query, _author_sql(values, "where"))
    return sql.SQL("{} WHERE {}").format(query, where_clause(where, typed=True))


_SQL = ("query", "where")
"""The fields of an input that may be SQL, with the same parameters."""


def _author_sql(values: Mapping[str, Any], field: str) -> sql.Composable:
    """SQL as written by the author of the definition, with the values of `params` as literals: COPY takes no
    parameters. Raises UnreadableInput."""
    params = values.get("params") or {}
    try:
        fields: tuple[Path, ...] = tuple((name,) for name in _SQL if isinstance(values.get(name), str))
        check_query(SqlPlace(fields, ("connection",), ("params",)), values)
        parsed = parse_sql(values[field], "postgresql")
    except RefusedStatement as error:
        raise UnreadableInput(f"the SQL of an input cannot be run: {error.message}; {error.help or ''}") from None
    parts: list[sql.Composable] = []
    for index, piece in enumerate(parsed.pieces()):
        if index % 2 == 0:
            parts.append(sql.SQL(cast(LiteralString, piece)))
        else:
            parts.append(sql.Literal(_parameter(piece, params[piece])))
    return sql.Composed(parts)


def _checked(connection: psycopg.Connection[Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of an input, with decimals for text that is an operand, and text for numbers that are compared with
    floats: PostgreSQL reads that as it reads the column, but 0.1 with all its digits is equal to no `real`.

    Raises UnreadableInput for text of which PostgreSQL would drop a part or read another number, and psycopg.Error.
    """
    params = {name: _parameter(name, value) for name, value in (values.get("params") or {}).items()}
    given = dict(params)
    where, conditions = values.get("where"), list[str]()
    if isinstance(where, str):
        conditions = [f"(\n{where}\n)"]
    elif where is not None:
        pairs = [
            (name, item) for name, value in where.items() for item in (value if isinstance(value, list) else [value])
        ]
        for number, (name, item) in enumerate(pairs):
            given[_value_name(number)] = item
            conditions.append(f"{sql.Identifier(name).as_string(connection)} = :{_value_name(number)}")
    of_table = sql.Identifier(*values["table"].split(".")).as_string(connection) if "table" in values else ""
    source = of_table or f"(\n{_without_end(values['query'])}\n) AS input"
    text = f"SELECT * FROM {source} WHERE {' AND '.join(conditions) or 'true'}"  # noqa: S608 - the author's own SQL
    statement = parse_sql(text, "postgresql")

    async def ask_types(statement: ParsedSql, values: Mapping[str, Any]) -> Mapping[str, int]:
        with connection.lock:
            return connection.wait(types_of(connection, statement, values))

    async def query(text: str, values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        rendered = parse_sql(text, "postgresql").render("pyformat").text
        with connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(cast(LiteralString, rendered), values).fetchall()

    async def check() -> Parameters:
        row = await with_floats(statement, {name: given[name] for name in statement.parameters}, ask_types)
        (checked,) = await checked_places(statement, [row], ask_types, query, authors=statement)
        return checked

    try:
        checked = asyncio.run(check())
    except UsageError as error:
        raise UnreadableInput(error.message) from None
    if isinstance(where, Mapping):
        numbers = itertools.count()
        where = {
            name: [checked[_value_name(next(numbers))] for _ in value]
            if isinstance(value, list)
            else checked[_value_name(next(numbers))]
            for name, value in where.items()
        }
    checked_params = {name: checked[name] for name in params if name in checked}
    return {**values, "where": where, "params": {**params, **checked_params}}


def _value_name(number: int) -> str:
    """The parameter for one value of a mapping `where`."""
    return f"saga_value_{number}"


def _without_end(query: str) -> str:
    """The text of a query before its semicolon."""
    return query[: next((token.start for token in split_tokens(query, "postgresql") if token.kind == "end"), None)]


def _parameter(name: str, value: Any) -> Any:
    """The value as the driver takes it: an array has values of one type. Raises UnreadableInput."""
    kinds = {type(item) for item in _items(value) if item is not None}
    if dict in kinds:
        raise UnreadableInput(f"`:{name}` of an input is an object; give it a string, number or list under `params`")
    if kinds == {int, Decimal}:
        return _decimals(value)
    if len(kinds) > 1:
        raise UnreadableInput(
            f"`:{name}` of an input is a list of strings and other values; write all of them as strings, or as numbers"
        )
    return value


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _items(item)
    else:
        yield value


def _decimals(value: Any) -> Any:
    if isinstance(value, list):
        return [_decimals(item) for item in value]
    return None if value is None else Decimal(value)


def _copy_input(
    connection: psycopg.Connection[Any], database_input: DatabaseInput, on_progress: Callable[[dict[str, Any]], None]
) -> int:
    name = database_input.name
    input_query(database_input.values)  # raises before anything is asked
    try:
        query = input_query(_checked(connection, database_input.values))
        # In binary mode the server accepts a single statement only, so that a value substituted into the SQL cannot end
        # it and begin another one.
        cursor = connection.cursor(binary=True)
        described = cursor.execute(sql.SQL("SELECT * FROM ({}) AS input LIMIT 0").format(query)).description or []
        columns = [CopiedColumn.of(column) for column in described]
        _check_names(name, columns)
        if database_input.needed is not None:
            columns = [column for column in columns if column.name in database_input.needed] or columns
        selected = sql.SQL(", ").join(_selected(column) for column in columns)
        with connection.cursor().copy(
            sql.SQL("COPY (SELECT {} FROM ({}) AS input) TO STDOUT (FORMAT csv, HEADER true, FORCE_QUOTE *)").format(
                selected, query
            )
        ) as copy:
            return _write_parquet(copy, columns, database_input, on_progress)
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise _translate(name, error, is_lost=connection.closed) from None


def _translate(
    name: str, error: psycopg.Error | UnicodeEncodeError, *, is_lost: bool
) -> UnreadableInput | JobFailed | InfrastructureError:
    """An error of the driver itself has no SQLSTATE: it cannot send a value, whenever it is tried."""
    message = f"the input {name} cannot be read: {first_line(error)}"
    code = None if isinstance(error, UnicodeEncodeError) else error.sqlstate
    if is_lost or (code is None and isinstance(error, psycopg.OperationalError)):
        return InfrastructureError(message)
    if code is None:
        return UnreadableInput(f"{message}; correct its `params` or its `where`")
    if code == _READ_ONLY or healing_of(sqlstate_of(error) or "") == "never":
        return UnreadableInput(f"{message}; correct its SQL or the table")
    return InfrastructureError(message) if isinstance(error, psycopg.OperationalError) else JobFailed(message)


def _selected(column: CopiedColumn) -> sql.Composable:
    identifier = sql.Identifier(column.name)
    return sql.SQL("{}::numeric AS {}").format(identifier, identifier) if column.as_numeric else identifier


def _check_names(name: str, columns: Sequence[CopiedColumn]) -> None:
    """Spark does not distinguish names by case."""
    if not columns:
        raise UnreadableInput(f"the input {name} has no columns; select at least one")
    seen: dict[str, str] = {}
    for column in columns:
        folded = column.name.lower()
        if folded in seen:
            raise UnreadableInput(
                f"the input {name} has two columns of the same name ({seen[folded]}, {column.name}), and Spark ignores "
                "case; give one an alias in a `query`"
            )
        seen[folded] = column.name


def _write_parquet(
    copy: psycopg.Copy,
    columns: Sequence[CopiedColumn],
    database_input: DatabaseInput,
    on_progress: Callable[..., None],
) -> int:
    create_folder(database_input.uri.rpartition("/")[0])
    system, path = resolve_uri(database_input.uri)
    batches = _csv_batches(copy, columns, database_input.name)
    ranges = {column.name: DecimalRange(database_input.name, column) for column in columns if column.type is None}
    if not ranges:
        return _write_batches(batches, columns, {}, database_input, on_progress)
    # The scale is known after the last row, and the query may give other rows when it runs again.
    text_path = f"{path}.text"
    try:
        texts = pa.schema([(column.name, column.copied_type) for column in columns])
        with (
            system.open_output_stream(text_path) as stream,
            pq.ParquetWriter(stream, texts, compression="zstd") as text,
        ):
            for batch in batches:
                for decimals in ranges.values():
                    decimals.add(batch)
                text.write_batch(batch)
                on_progress({"input": database_input.name, "copied": batch.num_rows})
        types = {name: decimals.decide() for name, decimals in ranges.items()}
        with system.open_input_file(text_path) as source, pq.ParquetFile(source) as file:
            return _write_batches(file.iter_batches(), columns, types, database_input, on_progress)
    finally:
        with contextlib.suppress(FileNotFoundError):
            system.delete_file(text_path)


def _write_batches(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[CopiedColumn],
    decimal_types: Mapping[str, pa.DataType],
    database_input: DatabaseInput,
    on_progress: Callable[..., None],
) -> int:
    system, path = resolve_uri(database_input.uri)
    types = [column.type or decimal_types[column.name] for column in columns]
    schema = pa.schema([(column.name, kind) for column, kind in zip(columns, types, strict=True)])
    rows = 0
    with system.open_output_stream(path) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        for batch in batches:
            arrays = convert_batch(database_input.name, batch, columns, types)
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            rows += batch.num_rows
            on_progress({"input": database_input.name, "rows": rows})
    return rows


def _csv_batches(copy: psycopg.Copy, columns: Sequence[CopiedColumn], name: str) -> Iterator[pa.RecordBatch]:
    """Raises UnreadableInput."""
    try:
        # An empty line is a row too: the null of a table with one column.
        yield from pacsv.open_csv(
            io.BufferedReader(_CopyStream(iter(copy)), CSV_BLOCK_BYTES),
            read_options=pacsv.ReadOptions(block_size=CSV_BLOCK_BYTES, use_threads=False),
            parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pacsv.ConvertOptions(
                column_types={column.name: column.copied_type for column in columns},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
    except pa.ArrowInvalid as error:
        match = re.search(r"CSV column #(\d+)", str(error))
        if match is not None and "UTF8" in str(error):
            raise UnreadableInput(
                f"the input {name} has text in the column {columns[int(match[1])].name} that is not UTF-8; convert it "
                "in a `query` (convert_from)"
            ) from None
        raise UnreadableInput(
            f"the input {name} cannot be read: a row may have at most {CSV_BLOCK_BYTES} bytes ({first_line(error)})"
        ) from None


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
