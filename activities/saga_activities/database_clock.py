"""The time by the clock of a database, which stamps the rows that are deleted or retried by age.

Several machines write and purge the same rows. One of them whose clock is wrong must not make rows of others old.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import Compiled

from saga_activities.guard.tables import now_sql


class DatabaseNow(sa.sql.expression.ColumnElement[float]):
    """The current time in seconds since the epoch, as a part of a statement."""

    inherit_cache = True
    type = sa.Double()


@compiles(DatabaseNow)
def _now(element: DatabaseNow, compiler: Compiled, **_: Any) -> str:
    return f"({now_sql(compiler.dialect.name)})"


async def database_time(connection: AsyncConnection) -> float:
    """The current time in seconds since the epoch. That of a file of SQLite is the time of this machine."""
    return float((await connection.execute(sa.select(DatabaseNow()))).scalar_one())


async def time_of(engine: AsyncEngine) -> float:
    """Like :func:`database_time`, over a connection of its own."""
    async with engine.connect() as connection:
        return await database_time(connection)


async def database_datetime(connection: AsyncConnection) -> datetime:
    return datetime.fromtimestamp(await database_time(connection), UTC)
