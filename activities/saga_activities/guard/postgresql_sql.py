"""``step.sql`` on PostgreSQL: an action's text goes to psycopg directly.

SQLAlchemy would build an execution context and switch greenlets around every statement, and do nothing in between
that a plain text needs. What it says of parameters and errors stays the same, whichever way a statement takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import psycopg
from psycopg import AsyncConnection
from sqlalchemy import Executable
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection as Connection
from sqlalchemy.sql.elements import TextClause

from saga_activities.guard.sql_handle import Answer, Row, Sql

_DIALECT = PGDialectAsync_psycopg()


class PostgresSql(Sql):
    """Runs texts itself; lists of parameters and SQLAlchemy's own constructs go the way of every database."""

    def __init__(self, connection: Connection, raw: AsyncConnection[Any]) -> None:
        super().__init__(connection)
        self._raw = raw

    async def _perform(self, clause: Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Answer:
        if not isinstance(clause, TextClause) or not isinstance(parameters, Mapping):
            return await super()._perform(clause, parameters)
        query, names = _compiled(clause)
        if not names <= parameters.keys():
            return await super()._perform(clause, parameters)  # it says which one is missing
        try:
            cursor = await self._raw.execute(cast("Any", query), parameters)
            if cursor.description is None:
                return Answer(None, cursor.rowcount)
            columns = [column.name for column in cursor.description]
            rows = [Row(dict(zip(columns, row, strict=True))) for row in await cursor.fetchall()]
        except psycopg.Error as error:
            raise DBAPIError.instance(
                query,
                dict(parameters),
                error,
                psycopg.Error,
                connection_invalidated=self._raw.closed,
                dialect=_DIALECT,
            ) from error
        return Answer(rows, len(rows))


@lru_cache(maxsize=2048)
def _compiled(clause: TextClause) -> tuple[str, frozenset[str]]:
    """The text as psycopg takes it, and the names of its parameters."""
    compiled = clause.compile(dialect=_DIALECT)
    return compiled.string, frozenset(compiled.params)
