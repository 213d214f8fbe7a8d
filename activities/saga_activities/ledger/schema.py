"""Creates the ledger in its database. Versioned and repeatable, like the guard's tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.database_clock import database_datetime
from saga_activities.guard.schema import (
    DIALECTS,
    MYSQL_DIALECTS,
    alone,
    has_version,
    insert_once,
    insert_version,
    table_ddl,
)
from saga_activities.ledger.partitions import (
    DEFAULT_PARTITION,
    TABLE,
    create_statement,
    existing_months,
    months_from,
)
from saga_activities.ledger.tables import (
    audit_table,
    circuit_breaker_table,
    claim_table,
    definition_table,
    pause_table,
    run_table,
)

LEDGER_VERSION = 1

SETUP_LOCK = 5_347_108
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
    async with alone(engine, SETUP_LOCK) as connection:
        if not await has_version(connection, "ledger", LEDGER_VERSION):
            for statement in _table_ddl(connection.dialect):
                await connection.exec_driver_sql(statement)
        await add_months(connection, await database_datetime(connection))
        await insert_once(connection, insert_version("ledger", LEDGER_VERSION))


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
        late = dialect in MYSQL_DIALECTS and existing and month < existing[-1]
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
    yield from table_ddl(dialect, run_table)
    if dialect.name == "postgresql":
        yield _STORY_COMPRESSION  # before the partitions, which inherit it
        yield f"CREATE TABLE IF NOT EXISTS {DEFAULT_PARTITION} PARTITION OF {TABLE} DEFAULT"
    yield from table_ddl(dialect, claim_table)
    yield from table_ddl(dialect, definition_table)
    yield from table_ddl(dialect, pause_table)
    yield from table_ddl(dialect, audit_table)
    yield from table_ddl(dialect, circuit_breaker_table)


def ledger_ddl(dialect: str) -> str:
    """Return what :func:`create_ledger` executes as SQL for a database administrator.

    Raises ``KeyError`` for an unknown dialect.
    """
    compiled = DIALECTS[dialect]()
    parts = [*_table_ddl(compiled)]
    if dialect == "postgresql":
        parts += [create_statement(dialect, month) for month in months_from(datetime.now(UTC))]
    return ";\n\n".join([*parts, insert_version("ledger", LEDGER_VERSION)]) + ";\n"
