"""Runs the relay's frequent statements, on PostgreSQL directly with psycopg.

The relay reads every event, so the time of each row counts: psycopg's binary rows cost a fifth of what SQLAlchemy's do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import TextClause
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.postgresql import compile_clause, driver_error

STATEMENT_TIMEOUT = 10.0
"""Seconds that a statement may take."""


class StatementRows(NamedTuple):
    """The rows that a statement returned, and how many it returned or changed."""

    rows: Sequence[Any]
    rowcount: int


async def run_statement(
    engine: AsyncEngine, statement: TextClause, values: Mapping[str, Any], timeout: float = STATEMENT_TIMEOUT
) -> StatementRows:
    """Run a statement in a transaction of its own; each row is a tuple. Raises SQLAlchemyError and TimeoutError.

    ``statement`` should be the same object each time: it is compiled once.
    """
    async with asyncio.timeout(timeout), engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            return await _run_binary(connection, statement, values)
        result = await connection.execute(statement, values)
        rows = result.all() if result.returns_rows else ()
        return StatementRows(rows, result.rowcount if not result.returns_rows else len(rows))


async def _run_binary(connection: AsyncConnection, statement: TextClause, values: Mapping[str, Any]) -> StatementRows:
    raw: Any = (await connection.get_raw_connection()).driver_connection
    query, _ = compile_clause(statement)
    try:
        async with raw.cursor(binary=True) as cursor:
            await cursor.execute(query, values)
            rows = await cursor.fetchall() if cursor.description is not None else ()
            return StatementRows(rows, cursor.rowcount)
    except psycopg.Error as error:
        if raw.closed:
            with suppress(DBAPIError):  # SQLAlchemy then invalidates every older connection of the pool
                await connection.exec_driver_sql("SELECT 1")
        raise driver_error(query, values, error, is_closed=raw.closed) from error
