"""Sets up and opens the project's databases: guard tables, the project's own schema, and pools of outbox databases.

Setup is idempotent. A schema file (``[connections.shop] schema = "schema.sql"``) is applied completely each time, so it
has to say ``create table if not exists``.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import inspect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities.connections import DatabaseConnections
from saga_activities.guard import outbox_postgresql
from saga_activities.guard import schema as guard_schema
from saga_activities.guard.tables import DEFAULT_SHARDS
from saga_activities.ledger.schema import create_ledger, ledger_ddl
from saga_activities.locks import tables as lock_tables
from saga_activities.sessions import session_arguments
from saga_spark import ledger
from saga_workers.runtime.database_access import access_help, driver_message, unusable
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings, SqlConnection
from sagas.sql_text.tokens import INSIGNIFICANT, Token, shown, split_tokens
from sagas.text.shell import saga_command

_RUN_SETUP = f"run `{saga_command('setup')}`"

# Like the timeout of other commands for a server that does not answer.
_SETUP_TIMEOUT = 15.0


async def set_up_database(connection: SqlConnection, shards: int = DEFAULT_SHARDS) -> None:
    """Create the guard tables in one database and apply the project's schema file.

    ``shards`` applies to a new outbox.

    Raises:
        UsageError: the URL or the schema file cannot be used.
        SagaError: the database cannot be reached, or refuses.
    """
    text = schema_text(connection)
    engine = open_engine(connection)
    try:
        await asyncio.wait_for(guard_schema.create_tables(engine, shards), _SETUP_TIMEOUT)
        if connection.keeps_outputs:
            await asyncio.wait_for(ledger.create_table(engine), _SETUP_TIMEOUT)
        if connection.keeps_ledger:
            await asyncio.wait_for(create_ledger(engine), _SETUP_TIMEOUT)
        if connection.keeps_locks:
            await asyncio.wait_for(lock_tables.create_tables(engine), _SETUP_TIMEOUT)
        if text is not None:
            await _apply_schema(engine, connection, text)
    except guard_schema.NewerTables as error:
        raise SagaError(f"{connection.name}: {error}") from error
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        what = f"the database of the connection {connection.name} cannot be set up"
        raise unusable(connection, what, error) from error
    finally:
        await engine.dispose()


def needed_tables(connection: SqlConnection, dialect: str, *, spark: bool) -> set[str]:
    """The tables of :func:`set_up_database` by which it can be told that it has run."""
    return {
        *outbox_postgresql.needed_tables(dialect),
        *(["saga_output"] if spark and connection.keeps_outputs else []),
        *(["saga_run"] if connection.keeps_ledger else []),
        *(["saga_lock"] if connection.keeps_locks else []),
    }


async def why_setup_is_needed(connection: SqlConnection, *, spark: bool) -> str | None:
    """Return what the database of a connection lacks, or why that cannot be read, and what to do; None: nothing."""
    engine = open_engine(connection)
    if engine.dialect.name == "sqlite" and (file := engine.url.database) and not _exists(file):
        return f"there is no file {file}; {_RUN_SETUP}"  # connecting would create it
    try:
        async with asyncio.timeout(_SETUP_TIMEOUT), engine.connect() as database:
            tables = await database.run_sync(lambda sync: set(inspect(sync).get_table_names()))
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        return f"its database cannot be used: {driver_message(error)}; {access_help(connection, error)}"
    finally:
        await engine.dispose()
    absent = needed_tables(connection, engine.dialect.name, spark=spark) - tables
    return f"missing tables: {', '.join(sorted(absent))}; {_RUN_SETUP}" if absent else None


def _exists(file: str) -> bool:
    return os.path.exists(file)


def open_engine(connection: SqlConnection) -> AsyncEngine:
    """A pool for one connection. Raises UsageError if the URL is invalid or its driver is not installed."""
    try:
        url = make_url(connection.url)
    except (ArgumentError, ValueError) as error:  # a port that is no number is a plain ValueError
        raise UsageError(
            f"connections.{connection.name}.url must have the form postgresql://user@host:5432/name"
        ) from error
    try:
        return create_async_engine(url, connect_args=session_arguments(url))
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise UsageError(f"connections.{connection.name}.url cannot be used: {driver_message(error)}") from error


def setup_sql(connection: SqlConnection, shards: int = DEFAULT_SHARDS) -> str:
    """The SQL of :func:`set_up_database`, for an operator to read and run."""
    dialect = make_url(connection.url).get_backend_name()
    text = schema_text(connection)
    tables = [guard_schema.ddl(dialect, shards)]
    if connection.keeps_outputs:
        tables.append(ledger.table_ddl(dialect))
    if connection.keeps_ledger:
        tables.append(ledger_ddl(dialect))
    if connection.keeps_locks:
        tables.append(lock_tables.ddl(dialect))
    return "\n".join(tables) + (f"\n-- {connection.schema_file}\n{text}" if text else "")


def schema_text(connection: SqlConnection) -> str | None:
    """The project's schema file; None without one. Raises UsageError if it cannot be read."""
    file = connection.schema_file
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"connections.{connection.name}.schema: {file} cannot be read: {reason}") from error


async def _apply_schema(engine: AsyncEngine, settings: SqlConnection, text: str) -> None:
    """Run a file of statements in one transaction if the database can (MySQL and MariaDB commit each DDL statement).

    Raises SagaError, with the line and the statement that the database refuses.
    """
    async with engine.begin() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        for offset, statement in split_statements(text, engine.dialect.name):
            try:
                match engine.dialect.name:
                    case "postgresql":
                        await driver.execute(statement)
                    case "sqlite":
                        await driver.executescript(f"{statement};")
                    case _:
                        await connection.exec_driver_sql(statement.replace("%", "%%"))
            except (*driver_errors(), DBAPIError) as error:
                position = getattr(getattr(error, "diag", None), "statement_position", None)
                line = text.count("\n", 0, offset + int(position or 1) - 1) + 1
                raise SagaError(
                    f"{settings.schema_file}:{line}: the database of {settings.name} refuses"
                    f" `{shown(statement, _SHOWN)}`: {driver_message(error)}",
                    help="correct the file; its statements run each time, so write `create table if not exists`",
                ) from error


_SHOWN = 100
"""Characters of a statement in a message."""


def split_statements(text: str, dialect: str = "mysql") -> Iterator[tuple[int, str]]:
    """Each statement of a file, with its offset.

    A semicolon inside of a trigger or a function ends no statement. SQLite says itself where one is complete; MySQL and
    MariaDB have a statement end at a ``;`` at the end of a line (comments may follow there); a file for PostgreSQL with
    the body of a function outside of quotes (``begin atomic``) is one statement. Raises UsageError for a string that is
    not closed.
    """
    if dialect == "postgresql" and _ATOMIC.search(text):
        yield 0, text
        return
    tokens = split_tokens(text, dialect)
    start: int | None = None
    for at, token in enumerate(tokens):
        if token.kind not in (*INSIGNIFICANT, "end") and start is None:
            start = token.start
        elif token.kind == "end" and start is not None and _is_end(text, start, tokens, at, dialect):
            yield start, text[start : token.start].rstrip()
            start = None
    if start is not None:
        yield start, text[start:].rstrip()


_ATOMIC = re.compile(r"\bbegin\s+atomic\b", re.IGNORECASE)


def _is_end(text: str, start: int, tokens: Sequence[Token], at: int, dialect: str) -> bool:
    if dialect == "postgresql":
        return True
    if dialect == "sqlite":
        return sqlite3.complete_statement(text[start : tokens[at].end])
    return _ends_line(text, tokens[at + 1 :])


def _ends_line(text: str, following: Sequence[Token]) -> bool:
    """True if nothing but comments follows in the same line."""
    for token in following:
        if "\n" in text[token.start : token.end] or token.kind not in INSIGNIFICANT:
            return token.kind in INSIGNIFICANT
    return True


def driver_errors() -> tuple[type[Exception], ...]:
    """Return what the drivers raise if they are used without SQLAlchemy, as for a schema file."""
    import psycopg

    return (psycopg.Error, sqlite3.Error)


def open_databases(settings: Settings, connection: str | None, pool_size: int) -> DatabaseConnections:
    """The databases that may have an outbox. Raises UsageError if there is none, or none of that name."""
    chosen = settings.sql_connections()
    if connection is not None:
        named = settings.connection(connection)
        if not isinstance(named, SqlConnection):
            raise UsageError(f"the connection {connection} is not a database, so it has no outbox")
        chosen = [named]
    if not chosen:
        raise UsageError("the project has no database, and so no outbox", help="[connections.NAME] in saga.toml")
    return DatabaseConnections(chosen, pool_size=pool_size)
