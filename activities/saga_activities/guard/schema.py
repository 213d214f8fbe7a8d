"""Creates the engine's tables in a participant's database: the guard, its watermark, the outbox and messaging.

Versioned and repeatable: ``saga_version`` holds one number for each part. Tables of an older version are upgraded;
nothing but an index is ever dropped.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, SAWarning
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from saga_activities.guard.outbox_postgresql import POSTGRESQL_OUTBOX_DDL
from saga_activities.guard.tables import DEFAULT_SHARDS, metadata, outbox_table, request_table, version_table

SCHEMA_VERSION = 7

_ADVISORY_LOCK = 5_347_107
"""The key of PostgreSQL's advisory lock around the creation of the tables: an arbitrary number."""

DIALECTS = {
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "mariadb": mysql.dialect,
    "sqlite": sqlite.dialect,
}

_MYSQL_DIALECTS = ("mysql", "mariadb")

_CREATED_AT_INDEX = (
    "CREATE INDEX IF NOT EXISTS saga_guard_created ON saga_guard USING brin (created_at) WITH (autosummarize = on)"
)
"""Reconciliation reads the rows of a time window; a block range index for that costs the guard almost nothing."""

_ADDED_COLUMNS: Mapping[int, tuple[sa.Table, tuple[str, ...]]] = {
    3: (outbox_table, ("event_type", "shard", "published_at", "checks", "next_check_at", "note")),
    4: (request_table, ("reply_topic", "reply_token")),
}
"""The columns that a version added to an existing table."""

_REPLACED_INDEXES = {3: "saga_outbox_status", 6: "saga_outbox_scan"}
"""The index of the outbox that a version has replaced."""

_NEW_INDEX = "saga_outbox_waiting"
"""The index that replaces both, except on PostgreSQL."""


class NewerTables(RuntimeError):
    """The tables were created by a newer version of the engine: update this worker."""


async def create_tables(engine: AsyncEngine, shards: int = DEFAULT_SHARDS) -> None:
    """Create or upgrade the tables; idempotent, and safe to run from several workers at once.

    ``shards`` applies only when the outbox is created: a later change would give events of one key two owners.

    Raises :class:`NewerTables` if the database was set up by a newer engine.
    """
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        if await _stored_version(connection) == SCHEMA_VERSION:
            return
        if engine.dialect.name == "postgresql":  # concurrent CREATE TABLE IF NOT EXISTS statements collide there
            await connection.execute(sa.text(f"select pg_advisory_lock({_ADVISORY_LOCK})"))
        try:
            await _create_and_upgrade(connection, shards)
        finally:
            if engine.dialect.name == "postgresql":
                await connection.execute(sa.text(f"select pg_advisory_unlock({_ADVISORY_LOCK})"))


async def _create_and_upgrade(connection: AsyncConnection, shards: int) -> None:
    dialect = connection.dialect
    for statement in _table_ddl(dialect):
        await connection.exec_driver_sql(statement)
    for statement in await connection.run_sync(lambda sync: list(_upgrade_statements(sa.inspect(sync), dialect))):
        await _apply_upgrade(connection, statement)
    for statement in _index_ddl(dialect):
        await connection.exec_driver_sql(statement)
    for insert in _initial_rows(dialect.name, shards):
        await _insert_once(connection, insert)
    await connection.execute(sa.text(_SET_VERSION))


async def _stored_version(connection: AsyncConnection) -> int | None:
    exists = await connection.run_sync(lambda sync: sa.inspect(sync).has_table(version_table.name))
    if not exists:
        return None
    version = (
        await connection.execute(sa.select(version_table.c.version).where(version_table.c.part == "guard"))
    ).scalar()
    if version is not None and version > SCHEMA_VERSION:
        raise NewerTables(
            f"the guard's tables have version {version}, this engine supports {SCHEMA_VERSION}: update the engine"
        )
    return version


def _upgrade_statements(inspector: sa.Inspector, dialect: sa.Dialect) -> Iterator[str]:
    """The statements that upgrade the tables of an older version."""
    for table, names in _ADDED_COLUMNS.values():
        with warnings.catch_warnings(action="ignore", category=SAWarning):  # of types it does not know: xid8
            columns = {column["name"] for column in inspector.get_columns(table.name)}
        yield from (_add_column(table, name, dialect) for name in names if name not in columns)
    indexes = {index["name"] for index in inspector.get_indexes(outbox_table.name)}
    for index in _indexes(outbox_table, dialect):  # before the one that it replaces is dropped: relays are running
        if index.name not in indexes:
            yield str(CreateIndex(index).compile(dialect=dialect)).strip()
    yield from (_drop_index(name, dialect) for name in _REPLACED_INDEXES.values() if name in indexes)


def _drop_index(name: str, dialect: sa.Dialect, condition: str = "") -> str:
    return f"DROP INDEX {condition}{name}" + (f" ON {outbox_table.name}" if dialect.name in _MYSQL_DIALECTS else "")


def _add_column(table: sa.Table, name: str, dialect: sa.Dialect, condition: str = "") -> str:
    column = CreateColumn(table.c[name]).compile(dialect=dialect)
    return f"ALTER TABLE {table.name} ADD COLUMN {condition}{column}"


async def _apply_upgrade(connection: AsyncConnection, statement: str) -> None:
    """Change a table, unless another worker has done so since the inspection (only PostgreSQL locks around it)."""
    try:
        await connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if not any(phrase in str(error.orig).lower() for phrase in _ALREADY_APPLIED):
            raise


_ALREADY_APPLIED = (
    "duplicate column",
    "duplicate key name",
    "already exists",
    "check that it exists",
    "check that column/key exists",
    "no such index",
)
"""Error messages of MySQL, MariaDB and SQLite when a column exists already or an index is already dropped."""


async def _insert_once(connection: AsyncConnection, statement: str) -> None:
    while True:
        try:
            await connection.execute(sa.text(statement))
        except IntegrityError:
            return  # another worker is setting up the same database; its row is equivalent
        except DBAPIError as error:
            if not (error.orig and error.orig.args[:1] == (_MYSQL_DEADLOCK,)):
                raise  # of a deadlock another worker came out, with a row that is equivalent
        else:
            return


_MYSQL_DEADLOCK = 1213


_NEW_ID = {"postgresql": "gen_random_uuid()", "sqlite": "lower(hex(randomblob(16)))"}
"""A unique id, generated by the database, so that printed SQL creates a different one in each database."""


def _initial_rows(dialect: str, shards: int) -> Iterator[str]:
    """The rows that every database has, each inserted unless it exists."""
    yield _insert_if_absent("saga_watermark", "id = 1", "1, 0, 0")
    yield _insert_if_absent("saga_outbox_home", "id = 1", f"1, {_NEW_ID.get(dialect, 'uuid()')}, {shards}")
    yield _insert_if_absent("saga_version", "part = 'guard'", f"'guard', {SCHEMA_VERSION}")


def _insert_if_absent(table: str, condition: str, values: str) -> str:
    source = "(select 1 as one) as this_row"
    return (
        f"insert into {table} select {values} from {source} where not exists (select 1 from {table} where {condition})"
    )


_SET_VERSION = f"update saga_version set version = {SCHEMA_VERSION} where part = 'guard'"


async def create_metadata(engine: AsyncEngine, tables: sa.MetaData, initial_rows: Iterable[str]) -> None:
    """Create the tables of another feature, without a version; repeatable, and safe from several processes at once."""
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        if engine.dialect.name == "postgresql":
            await connection.execute(sa.text(f"select pg_advisory_lock({_ADVISORY_LOCK})"))
        try:
            for statement in metadata_ddl(connection.dialect, tables):
                await connection.exec_driver_sql(statement)
            for insert in initial_rows:
                await _insert_once(connection, insert)
        finally:
            if engine.dialect.name == "postgresql":
                await connection.execute(sa.text(f"select pg_advisory_unlock({_ADVISORY_LOCK})"))


def metadata_ddl(dialect: sa.Dialect, tables: sa.MetaData) -> list[str]:
    """The statements that create these tables and their indexes where they do not exist."""
    return [*_table_ddl(dialect, tables), *_index_ddl(dialect, tables)]


def _table_ddl(dialect: sa.Dialect, tables: sa.MetaData = metadata) -> Iterator[str]:
    for table in tables.sorted_tables:
        statement = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)).strip()
        if dialect.name in _MYSQL_DIALECTS:  # MySQL has no CREATE INDEX IF NOT EXISTS
            for index in table.indexes:
                columns = ", ".join(column.name for column in index.columns)
                statement = statement.replace("\n)", f",\n\tINDEX {index.name} ({columns})\n)", 1)
        yield statement


def _index_ddl(dialect: sa.Dialect, tables: sa.MetaData = metadata) -> Iterator[str]:
    if dialect.name not in _MYSQL_DIALECTS:
        for table in tables.sorted_tables:
            for index in _indexes(table, dialect):
                yield str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)).strip()
    if dialect.name == "postgresql" and tables is metadata:
        yield _CREATED_AT_INDEX
        yield from POSTGRESQL_OUTBOX_DDL


def _indexes(table: sa.Table, dialect: sa.Dialect) -> list[sa.Index]:
    """The indexes that a table has on this database."""
    there = (one for one in table.indexes if one.info.get("except_on") != dialect.name)
    return sorted(there, key=lambda one: str(one.name))


def ddl(dialect: str, shards: int = DEFAULT_SHARDS) -> str:
    """The same as :func:`create_tables`, as SQL for a database administrator.

    Upgrades of older tables are repeatable SQL where the dialect supports it (PostgreSQL, MariaDB); for MySQL and
    SQLite they are comments. Raises ``KeyError`` for an unknown dialect.
    """
    compiled = DIALECTS[dialect]()
    parts = [*_table_ddl(compiled), *_index_ddl(compiled), *_initial_rows(dialect, shards), _SET_VERSION]
    changes = {
        versions: list(_upgrade_ddl(versions[-1] + 1, dialect, compiled)) for versions in ((2,), (3,), (3, 4, 5))
    }
    if dialect in ("postgresql", "mariadb"):
        after = len(metadata.sorted_tables)
        upgrade = [one for statements in changes.values() for one in statements]
        return ";\n\n".join([*parts[:after], *upgrade, *parts[after:]]) + ";\n"
    comments = "".join(
        f"-- Only where the tables have version {' or '.join(map(str, versions))}, before all that follows:\n"
        + "".join(f"-- {one};\n" for one in statements)
        for versions, statements in changes.items()
    )
    return f"{comments}\n" + ";\n\n".join(parts) + ";\n"


def _upgrade_ddl(version: int, dialect: str, compiled: sa.Dialect) -> Iterator[str]:
    """The statements from the version before to ``version``."""
    plain = dialect in ("mysql", "sqlite")  # without IF NOT EXISTS for a column, and MySQL for an index neither
    if version in _ADDED_COLUMNS:
        table, names = _ADDED_COLUMNS[version]
        yield from (_add_column(table, name, compiled, "" if plain else "IF NOT EXISTS ") for name in names)
    if version not in _REPLACED_INDEXES:
        return
    for index in _indexes(outbox_table, compiled):
        if version == 3 or index.name == _NEW_INDEX:
            yield str(CreateIndex(index, if_not_exists=dialect != "mysql").compile(dialect=compiled)).strip()
    yield _drop_index(_REPLACED_INDEXES[version], compiled, "" if dialect == "mysql" else "IF EXISTS ")
