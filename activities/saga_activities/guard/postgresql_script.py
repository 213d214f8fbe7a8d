"""Scripts of the engine's own statements for PostgreSQL: several in one message of the simple query protocol.

A cursor of psycopg would analyse the text and look for an adapter of each value again for every attempt, which costs
more than sending them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection, generators, pq
from psycopg.errors import error_from_result
from psycopg.pq.abc import Escaping, PGresult

Value = str | int | float | None

_INTEGERS = {20, 21, 23}  # the types int8, int2 and int4


async def run_script(connection: AsyncConnection[Any], text: str, values: Sequence[Value]) -> list[PGresult]:
    """Run the statements of ``text``, with a literal of each value for each `%s`, and return all of their results.

    Raises psycopg's errors.
    """
    escaping = pq.Escaping(connection.pgconn)
    script = (text % tuple([_literal(value, escaping) for value in values])).encode()
    async with connection.lock:
        connection.pgconn.send_query(script)
        results = await connection.wait(generators.execute(connection.pgconn))
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
    return results


def rows_of(result: PGresult) -> list[tuple[Any, ...]]:
    """The rows of a result whose columns are texts and whole numbers."""
    columns = [(at, result.ftype(at) in _INTEGERS) for at in range(result.nfields)]
    return [
        tuple([_read(result.get_value(row, at), is_integer) for at, is_integer in columns])
        for row in range(result.ntuples)
    ]


def _read(value: bytes | None, is_integer: bool) -> str | int | None:
    if value is None:
        return None
    return int(value) if is_integer else value.decode()


def _literal(value: Value, escaping: Escaping) -> str:
    if value is None:
        return "NULL"
    if not isinstance(value, str):
        return repr(value)
    if "\0" in value:  # libpq would cut the text there
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return escaping.escape_literal(value.encode()).decode()
