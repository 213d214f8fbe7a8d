"""New databases on the servers that all tests of a process share, dropped when the tests of their file have ended."""

from __future__ import annotations

import uuid
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from saga_activities.connections import open_engine
from tests.helpers.database_servers import DatabaseServer

_made: list[tuple[DatabaseServer, str]] = []


def new_database(server: DatabaseServer, *, encoding: str = "UTF8") -> str:
    """The URL of a new database on PostgreSQL."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server.url(), autocommit=True) as administrator:
        # Without this strategy each new database is written to the log, too: twice the processor time.
        administrator.execute(f"create database {name} encoding '{encoding}' template template0 strategy file_copy")  # pyright: ignore[reportArgumentType,reportCallIssue]
    _made.append((server, name))
    return server.url(name)


def drop_databases() -> None:
    """Drop all that this process has made on PostgreSQL: each takes seven megabytes, mostly of memory."""
    while _made:
        server, name = _made.pop()
        if server.running:  # a test's own server has ended with it
            _drop(server, name)


def _drop(server: DatabaseServer, name: str) -> None:
    """Drop it with its sessions and prepared transactions.

    Nobody would end these any more, and the oldest transaction of the server, which relays wait for in all of its
    databases, would stay open.
    """
    with psycopg.connect(server.url(), autocommit=True, options="-c statement_timeout=60s") as administrator:
        query = "select gid from pg_prepared_xacts where database = %s"
        if prepared := administrator.execute(query, [name]).fetchall():
            with psycopg.connect(server.url(name), autocommit=True) as session:
                for (gid,) in prepared:
                    session.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        administrator.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


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
