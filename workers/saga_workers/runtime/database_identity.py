"""Tells whether two connections lead to the same database or table: a server has several names and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

_POSTGRESQL = """
    SELECT pg_catalog.pg_postmaster_start_time()::text AS started, oid AS database_
    FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()
"""
"""The start of the server in microseconds."""

_MYSQL = "SELECT concat_ws(' ', @@hostname, @@port, @@datadir, @@pid_file) AS started, database() AS database_"


async def database_identity(engine: AsyncEngine) -> str:
    """A text that all connections to a database share. Raises SQLAlchemyError if it does not answer."""
    if engine.dialect.name == "sqlite":
        return _file(engine.url.database or "")
    async with engine.connect() as session:
        query = _POSTGRESQL if engine.dialect.name == "postgresql" else _MYSQL
        row: Any = (await session.exec_driver_sql(query)).one()
    return f"{row.started} {row.database_}"


def _file(path: str) -> str:
    return f"sqlite {Path(path).resolve()}"


async def table_identity(engine: AsyncEngine, table: str) -> str:
    """A text that all connections share for which the unqualified name is the same table, or for which there is none in
    the same database. Raises SQLAlchemyError if the database does not answer.
    """
    database = await database_identity(engine)
    if engine.dialect.name != "postgresql":
        return database
    async with engine.connect() as session:
        query = sa.text("SELECT pg_catalog.to_regclass(:name)::oid")
        return f"{database} {(await session.execute(query, {'name': table})).scalar_one()}"


class TableReaders:
    """The connection that reads a table for all those that lead to it: the first of them."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self.others: dict[str, list[str]] = {}
        """The other connections to a table of a reader, by its name."""

    async def is_read(self, connection: str, engine: AsyncEngine, table: str) -> bool:
        """True if an earlier connection has led to the same table. Raises SQLAlchemyError if it does not answer."""
        reader = self._first.setdefault(f"{table} {await table_identity(engine, table)}", connection)
        if reader == connection:
            return False
        self.others.setdefault(reader, []).append(connection)
        return True
