"""Sets up and opens the project's databases: guard tables, the project's own schema, and pools of outbox databases.

Setup is idempotent. A schema file (``[connections.shop] schema = "schema.sql"``) is applied completely each time, so it
has to say ``create table if not exists``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities.connections import DatabaseConnections, cast_parameters, engine_url
from saga_activities.durable_commits import make_commits_durable
from saga_activities.enqueued import tables as enqueued_tables
from saga_activities.guard import outbox_postgresql
from saga_activities.guard import schema as guard_schema
from saga_activities.guard.tables import DEFAULT_SHARDS
from saga_activities.ledger.schema import create_ledger, ledger_ddl
from saga_activities.locks import tables as lock_tables
from saga_activities.session_settings import session_arguments
from saga_activities.silent_databases import note_silence
from saga_activities.table_names import table_names
from saga_spark import output_records
from saga_workers.runtime.database_access import access_help, driver_errors, driver_message, unusable
from saga_workers.runtime.lock_waits import LockWatch, has_waited_too_long, limit_lock_waits
from saga_workers.runtime.schema_file import apply_schema, schema_text
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings, SqlConnection
from sagas.text.shell import saga_command

_RUN_SETUP = f"run `{saga_command('setup')}`"

_SETUP_TIMEOUT = 15.0
"""Seconds, as for other commands and a server that does not answer; longer than the timeout for locks."""


async def set_up_database(
    connection: SqlConnection, shards: int = DEFAULT_SHARDS, report: Callable[[str], None] | None = None
) -> None:
    """Create the guard tables in one database and apply the project's schema file.

    ``shards`` applies to a new outbox. ``report`` is called with what the set-up waits for.

    Raises:
        UsageError: the URL or the schema file cannot be used.
        SagaError: the database cannot be reached, refuses, or does not grant a lock in time.
    """
    text = schema_text(connection)
    engine = open_command_engine(connection)
    watch = LockWatch(engine, connection.name, report)
    try:
        async with watch.running():
            async with asyncio.timeout(_SETUP_TIMEOUT):
                await guard_schema.create_tables(engine, shards)
                if connection.keeps_outputs:
                    await output_records.create_table(engine)
                if connection.keeps_ledger:
                    await create_ledger(engine)
                if connection.keeps_locks:
                    await lock_tables.create_tables(engine)
                if connection.keeps_enqueued:
                    await enqueued_tables.create_tables(engine)
            if text is not None:
                await apply_schema(engine, connection, text, watch)
    except guard_schema.NewerTables as error:
        raise SagaError(f"{connection.name}: {error}") from error
    except (*driver_errors(), SQLAlchemyError, OSError, TimeoutError) as error:
        if has_waited_too_long(error):
            raise watch.timeout() from error
        what = f"the database of the connection {connection.name} cannot be set up"
        raise unusable(connection, what, error) from error
    finally:
        await engine.dispose()


def needed_tables(connection: SqlConnection, dialect: str, *, spark: bool) -> set[str]:
    """The tables of :func:`set_up_database` that show that it has run."""
    return {
        *outbox_postgresql.needed_tables(dialect),
        *(["saga_output"] if spark and connection.keeps_outputs else []),
        *(["saga_run"] if connection.keeps_ledger else []),
        *(["saga_lock"] if connection.keeps_locks else []),
        *(["saga_enqueued"] if connection.keeps_enqueued else []),
    }


async def why_setup_is_needed(connection: SqlConnection, *, spark: bool) -> str | None:
    """Return what the database of a connection lacks, or why that cannot be read, and what to do; None: nothing."""
    engine = open_command_engine(connection)
    if engine.dialect.name == "sqlite" and (file := engine.url.database) and not _exists(file):
        return f"there is no file {file}; {_RUN_SETUP}"  # connecting would create it
    try:
        async with asyncio.timeout(_SETUP_TIMEOUT), engine.connect() as database:
            tables = await table_names(database)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        return f"its database cannot be used: {driver_message(error)}; {access_help(connection, error)}"
    finally:
        await engine.dispose()
    absent = needed_tables(connection, engine.dialect.name, spark=spark) - tables
    return f"missing tables: {', '.join(sorted(absent))}; {_RUN_SETUP}" if absent else None


def _exists(file: str) -> bool:
    return os.path.exists(file)


def open_command_engine(connection: SqlConnection) -> AsyncEngine:
    """A pool whose connections begin transactions themselves, and whose waits for locks are limited.

    Raises UsageError if the URL is invalid or its driver is not installed.
    """
    url = engine_url(connection.name, connection.url)
    try:
        engine = create_async_engine(url, connect_args=session_arguments(url))
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise UsageError(f"connections.{connection.name}.url cannot be used: {driver_message(error)}") from error
    if engine.dialect.name == "postgresql":
        cast_parameters(engine)
        make_commits_durable(engine)
    limit_lock_waits(engine)
    note_silence(engine.sync_engine)
    return engine


def setup_sql(connection: SqlConnection, shards: int = DEFAULT_SHARDS) -> str:
    """The SQL of :func:`set_up_database`, for an operator to read and run."""
    dialect = make_url(connection.url).get_backend_name()
    text = schema_text(connection)
    tables = [guard_schema.ddl(dialect, shards)]
    if connection.keeps_outputs:
        tables.append(output_records.table_ddl(dialect))
    if connection.keeps_ledger:
        tables.append(ledger_ddl(dialect))
    if connection.keeps_locks:
        tables.append(lock_tables.ddl(dialect))
    if connection.keeps_enqueued:
        tables.append(enqueued_tables.ddl(dialect))
    return "\n".join(tables) + (f"\n-- {connection.schema_file}\n{text}" if text else "")


@asynccontextmanager
async def command_database(connection: SqlConnection, what: str, timeout: float) -> AsyncIterator[AsyncEngine]:
    """The database of a connection, opened for one command and closed after it.

    Raises SagaError, whose text says ``what`` cannot be done, if it does not answer the body in ``timeout`` seconds.
    """
    databases = DatabaseConnections([connection], pool_size=1)
    try:
        async with asyncio.timeout(timeout):
            yield databases.engine(connection.name)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise unusable(connection, what, error) from error
    finally:
        await databases.close()


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
