"""The engine's tables in a participant's database: the guard, its watermark, the outbox.

Creating them is versioned and repeatable: ``saga_version`` holds one number for each part.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.schema import CreateTable

from activities.guard.address import MAX_SAGA_ID, MAX_STEP

VERSION = 2

_LOCK = 5_347_107
"""The key of PostgreSQL's advisory lock around creating the tables: any number nobody else uses."""

metadata = sa.MetaData()

TABLE_OPTIONS: dict[str, Any] = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
for _name in tuple(TABLE_OPTIONS):
    TABLE_OPTIONS[_name.replace("mysql", "mariadb")] = TABLE_OPTIONS[_name]


def long_text() -> sa.types.TypeEngine[str]:
    """Text of any length we write; MySQL and MariaDB cut plain TEXT at 64 KiB."""
    return sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


guard = sa.Table(
    "saga_guard",
    metadata,
    sa.Column("saga_id", sa.String(MAX_SAGA_ID), nullable=False),
    sa.Column("step", sa.String(MAX_STEP), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("op", sa.String(12), nullable=False),
    sa.Column("reason", sa.String(8), nullable=False),
    sa.Column("args_hash", sa.String(64)),
    sa.Column("result", long_text()),
    # Seconds since the epoch by Temporal's clock: when the attempt was scheduled. The watermark is a time of the
    # same clock, so clean-up never compares two clocks.
    sa.Column("created_at", sa.Double, nullable=False),
    sa.PrimaryKeyConstraint("saga_id", "step", "generation", "op"),
    **TABLE_OPTIONS,
)

watermark = sa.Table(
    "saga_watermark",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("watermark", sa.Double, nullable=False),
    sa.Column("raised_at", sa.Double, nullable=False),
    **TABLE_OPTIONS,
)

outbox = sa.Table(
    "saga_outbox",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("event_id", sa.String(36), nullable=False, unique=True),
    sa.Column("topic", sa.String(255), nullable=False),
    sa.Column("event_key", long_text()),
    sa.Column("value", long_text()),
    sa.Column("headers", long_text(), nullable=False),
    sa.Column("saga_id", sa.String(MAX_SAGA_ID), nullable=False),
    sa.Column("step", sa.String(MAX_STEP), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("status", sa.String(12), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index("saga_outbox_status", "status", "id"),
    **TABLE_OPTIONS,
)

version = sa.Table(
    "saga_version",
    metadata,
    sa.Column("part", sa.String(32), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    **TABLE_OPTIONS,
)

DIALECTS = {
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "mariadb": mysql.dialect,
    "sqlite": sqlite.dialect,
}


_BY_TIME = (
    "CREATE INDEX IF NOT EXISTS saga_guard_created ON saga_guard USING brin (created_at) WITH (autosummarize = on)"
)
"""Reconciliation of a window reads what the window holds; a block range index costs the guard next to nothing."""


class NewerTables(RuntimeError):
    """The tables were made by a newer version of the engine: update this worker."""


async def create(engine: AsyncEngine) -> None:
    """Create what is missing; as often and from as many workers at once as you like.

    Raises :class:`NewerTables` when the database was set up by a newer engine.
    """
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        if await _found(connection) == VERSION:
            return
        if engine.dialect.name == "postgresql":  # two CREATE TABLE IF NOT EXISTS at once collide there
            await connection.execute(sa.text(f"select pg_advisory_lock({_LOCK})"))
        try:
            await _create(connection)
        finally:
            if engine.dialect.name == "postgresql":
                await connection.execute(sa.text(f"select pg_advisory_unlock({_LOCK})"))


async def _create(connection: AsyncConnection) -> None:
    for statement in _statements(connection.dialect):
        await connection.exec_driver_sql(statement)
    for question, insert in _ROWS:
        if not (await connection.execute(sa.text(question))).first():
            await _insert_once(connection, insert)
    await connection.execute(sa.text(_SET_VERSION))


async def _found(connection: AsyncConnection) -> int | None:
    exists = await connection.run_sync(lambda sync: sa.inspect(sync).has_table(version.name))
    if not exists:
        return None
    found = (await connection.execute(sa.select(version.c.version).where(version.c.part == "guard"))).scalar()
    if found is not None and found > VERSION:
        raise NewerTables(f"the guard's tables have version {found}, this engine knows {VERSION}: update the engine")
    return found


async def _insert_once(connection: AsyncConnection, statement: str) -> None:
    try:
        await connection.execute(sa.text(statement))
    except IntegrityError:
        return  # another worker set up the same database at this moment; its row is as good


_ROWS = (
    ("select 1 from saga_watermark where id = 1", "insert into saga_watermark values (1, 0, 0)"),
    ("select 1 from saga_version where part = 'guard'", f"insert into saga_version values ('guard', {VERSION})"),
)

_SET_VERSION = f"update saga_version set version = {VERSION} where part = 'guard'"


def _statements(dialect: sa.Dialect) -> list[str]:
    statements: list[str] = []
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)).strip())
        for index in table.indexes:
            if dialect.name in ("mysql", "mariadb"):  # MySQL has no CREATE INDEX IF NOT EXISTS
                columns = ", ".join(column.name for column in index.columns)
                statements[-1] = statements[-1].replace("\n)", f",\n\tINDEX {index.name} ({columns})\n)", 1)
            else:
                statements.append(
                    str(sa.schema.CreateIndex(index, if_not_exists=True).compile(dialect=dialect)).strip()
                )
    if dialect.name == "postgresql":
        statements.append(_BY_TIME)
    return statements


def ddl(dialect: str) -> str:
    """The same as :func:`create`, as SQL for a database administrator. Raises ``KeyError`` for an unknown dialect."""
    statements = _statements(DIALECTS[dialect]())
    return ";\n\n".join([*statements, *(insert for _, insert in _ROWS), _SET_VERSION]) + ";\n"
