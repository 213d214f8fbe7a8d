"""Creates the ledger in its database. Versioned and repeatable, like the guard's tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.schema import CreateIndex, CreateTable

from saga_activities.guard.schema import DIALECTS, has_version, insert_once, insert_version
from saga_activities.ledger.partitions import (
    DEFAULT_PARTITION,
    TABLE,
    create_statement,
    existing_months,
    months_from,
)
from saga_activities.ledger.tables import claim_table, definition_table, run_table

LEDGER_VERSION = 1

_MYSQL_DIALECTS = ("mysql", "mariadb")
_SETUP_LOCK = 5_347_108
"""The key of PostgreSQL's advisory lock around changes of the tables: an arbitrary number."""

_STORY_COMPRESSION = f"""DO $$
BEGIN
    EXECUTE 'ALTER TABLE {TABLE} ALTER COLUMN story SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error THEN
    NULL; -- built without lz4, or PostgreSQL before 14: its default compression
END $$"""


async def create_ledger(engine: AsyncEngine) -> None:
    """Create the tables and the partitions of the months to come; idempotent, and safe to run concurrently.

    The guard's tables must exist. Raises :class:`NewerTables` if the database was set up by a newer engine.
    """
    async with alone(engine) as connection:
        if not await has_version(connection, "ledger", LEDGER_VERSION):
            for statement in _table_ddl(connection.dialect):
                await connection.exec_driver_sql(statement)
        await add_months(connection, datetime.now(UTC))
        await insert_once(connection, insert_version("ledger", LEDGER_VERSION))


@asynccontextmanager
async def alone(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection in autocommit mode for changes of the tables; on PostgreSQL only one process has it at a time."""
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        locks = connection.dialect.name == "postgresql"
        if locks:
            await connection.execute(sa.text(f"select pg_advisory_lock({_SETUP_LOCK})"))
        try:
            yield connection
        finally:
            if locks:
                await connection.execute(sa.text(f"select pg_advisory_unlock({_SETUP_LOCK})"))


async def add_months(connection: AsyncConnection, now: datetime) -> list[str]:
    """Create the missing partitions of this month and those ahead; returns their names.

    A month of which rows are in the default partition already gets none: its rows stay there.
    """
    dialect = connection.dialect.name
    if dialect == "sqlite":
        return []
    existing = await existing_months(connection)
    created: list[str] = []
    for month in months_from(now):
        late = dialect in _MYSQL_DIALECTS and existing and month < existing[-1]
        if month in existing or late:
            continue
        try:
            await connection.exec_driver_sql(create_statement(dialect, month))
        except DBAPIError as error:
            if not _is_expected(error):
                raise
        else:
            created.append(month.partition(dialect))
    return created


_ROWS_IN_DEFAULT = "23514"
_SAME_PARTITION = 1517


def _is_expected(error: DBAPIError) -> bool:
    """The default partition has rows of this month, or another worker has created the partition meanwhile."""
    code = getattr(error.orig, "sqlstate", None)
    return code == _ROWS_IN_DEFAULT or (error.orig is not None and error.orig.args[:1] == (_SAME_PARTITION,))


def _table_ddl(dialect: sa.Dialect) -> Iterator[str]:
    yield from _create(run_table, dialect)
    if dialect.name == "postgresql":
        yield _STORY_COMPRESSION  # before the partitions, which inherit it
        yield f"CREATE TABLE IF NOT EXISTS {DEFAULT_PARTITION} PARTITION OF {TABLE} DEFAULT"
    yield from _create(claim_table, dialect)
    yield from _create(definition_table, dialect)


def _create(table: sa.Table, dialect: sa.Dialect) -> Iterator[str]:
    statement = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)).strip()
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    if dialect.name in _MYSQL_DIALECTS:  # MySQL has no CREATE INDEX IF NOT EXISTS
        for index in indexes:
            columns = ", ".join(column.name for column in index.columns)
            statement = statement.replace("\n)", f",\n\tINDEX {index.name} ({columns})\n)", 1)
        yield statement
        return
    yield statement
    for index in indexes:
        yield str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)).strip()


def ledger_ddl(dialect: str, now: datetime | None = None) -> str:
    """Return what :func:`create_ledger` executes as SQL for a database administrator.

    Raises ``KeyError`` for an unknown dialect.
    """
    compiled = DIALECTS[dialect]()
    parts = [*_table_ddl(compiled)]
    if dialect == "postgresql":
        parts += [create_statement(dialect, month) for month in months_from(now or datetime.now(UTC))]
    return ";\n\n".join([*parts, insert_version("ledger", LEDGER_VERSION)]) + ";\n"
