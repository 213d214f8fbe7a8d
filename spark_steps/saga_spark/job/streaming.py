"""Exactly-once writes of streaming queries: a micro-batch and its number are written in one PostgreSQL transaction.

Spark calls ``foreachBatch`` at least once per batch and repeats the last batch after a crash. A batch whose number is
already stored writes nothing. The numbers belong to the query's checkpoint, so a query with a new checkpoint needs a
new name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from saga_activities.session_settings import require_foreign_keys
from saga_spark.database_sessions import database_session
from saga_spark.job_errors import JobFailed, first_line
from sagas.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

BATCH_TABLE = "saga_stream_batch"
_CREATE = f"""
CREATE TABLE IF NOT EXISTS {BATCH_TABLE} (
    query text NOT NULL, batch bigint NOT NULL, row_count bigint NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (query, batch))
"""

BatchWriter = Callable[["psycopg.Connection[Any]", "DataFrame"], int]
"""Writes the rows of a batch over a connection with an open transaction; returns the number of rows written."""


def write_batch_once(url: str, query: str, write: str | BatchWriter) -> Callable[[DataFrame, int], None]:
    """For ``DataStreamWriter.foreachBatch``: write each batch of ``query`` exactly once to PostgreSQL.

    ``url`` is ``postgresql://…``; ``query`` is a permanent name of the query; ``write`` is a table that receives the
    rows (columns by name), or a function that writes them itself. The rows pass through the driver, so a batch must fit
    into its memory.

    Raises UsageError immediately if the name or the URL is invalid.
    """
    if not re.fullmatch(r"[\w.:-]{1,200}", query):
        raise UsageError(f"{query!r} is not a name of a query: use letters, digits and . : - _")
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("the URL must be postgresql://…: batches are written to PostgreSQL only")
    writer = _copy_into(write) if isinstance(write, str) else write

    def batch(frame: DataFrame, number: int) -> None:
        with database_session(url, f"of the query {query}") as connection:
            require_foreign_keys(connection)
            _create_batch_table(connection)
            # The number first: a concurrent duplicate blocks here until the other transaction ends, then finds the row.
            taken = connection.execute(
                f"INSERT INTO {BATCH_TABLE} (query, batch, row_count) VALUES (%s, %s, 0) ON CONFLICT DO NOTHING",
                (query, number),
            )
            if taken.rowcount == 0:
                return
            rows = writer(connection, frame)
            connection.execute(
                f"UPDATE {BATCH_TABLE} SET row_count = %s WHERE query = %s AND batch = %s", (rows, query, number)
            )

    return batch


def _create_batch_table(connection: psycopg.Connection[Any]) -> None:
    """Create the table if it is missing. Checked first, because CREATE takes a lock that blocks other batches."""
    row = connection.execute("SELECT to_regclass(%s)", (BATCH_TABLE,)).fetchone()
    if row is None or row[0] is None:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s)::bigint)", (BATCH_TABLE,))
        connection.execute(_CREATE)


def _copy_into(table: str) -> BatchWriter:
    """A writer that copies the rows into a table with COPY."""
    target = sql.Identifier(*table.split("."))

    def write(connection: psycopg.Connection[Any], frame: DataFrame) -> int:
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in frame.columns)
        kinds = [field.dataType for field in frame.schema.fields]
        rows = 0
        try:
            with (
                connection.cursor() as cursor,
                cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(target, columns)) as copy,
            ):
                for row in frame.toLocalIterator():
                    copy.write_row([_with_zone(value, kind) for value, kind in zip(row, kinds, strict=True)])
                    rows += 1
        except psycopg.DataError as error:
            raise JobFailed(f"the batch does not fit into {table}: {first_line(error)}") from error
        return rows

    return write


def _with_zone(value: Any, kind: DataType) -> Any:
    """Spark gives the instants of timestamps without their zone, which is that of this process."""
    from pyspark.sql import types as T

    if value is None:
        return None
    if isinstance(kind, T.ArrayType):
        return [_with_zone(item, kind.elementType) for item in value]
    return value.astimezone(UTC) if isinstance(kind, T.TimestampType) else value
