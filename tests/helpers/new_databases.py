"""New databases on the servers that all tests of a process share."""

from __future__ import annotations

import uuid
from pathlib import Path

import psycopg
import pytest

from saga_activities.connections import open_engine
from tests.helpers.database_servers import DatabaseServer


def new_database(server: DatabaseServer, *, encoding: str = "UTF8") -> str:
    """The URL of a new database on PostgreSQL."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server.url(), autocommit=True) as administrator:
        # Without this strategy each new database is written to the log, too: twice the processor time.
        administrator.execute(f"create database {name} encoding '{encoding}' template template0 strategy file_copy")  # pyright: ignore[reportArgumentType,reportCallIssue]
    return server.url(name)


async def new_mariadb_database(server: DatabaseServer) -> str:
    """The URL of a new database on MariaDB."""
    name = f"test_{uuid.uuid4().hex}"
    administrator = open_engine("administrator", server.url("mysql"), 1)
    async with administrator.connect() as connection:
        await connection.exec_driver_sql(f"create database {name}")
    await administrator.dispose()
    return server.url(name)


async def new_url(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a new database of this kind; SQLite's is in the folder."""
    if kind == "sqlite":
        return f"sqlite:///{folder / 'shop.db'}"
    if kind == "postgresql":
        return new_database(request.getfixturevalue("postgres_server"))
    return await new_mariadb_database(request.getfixturevalue("mariadb_server"))
