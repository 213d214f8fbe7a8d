"""Checks the columns of ``[[reconcile.effects]]`` against their tables; only the database can read this SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.connections import DatabaseConnections
from saga_workers.runtime.database_access import driver_message, unusable
from sagas.settings import Settings
from sagas.settings.reconcile import EffectTable
from sagas.sql_text.tokens import shown

HELP = (
    "correct the setting; a name with capitals, blanks or special characters is quoted as SQL quotes it, such as"
    """ key = ['"Order Id"'], and with `backticks` on MySQL and MariaDB"""
)
_TIMEOUT = 15.0


async def declaration_problems(
    settings: Settings, *, without: Collection[str] = (), tables: bool = True
) -> list[str] | None:
    """A line for each table and each column that its database does not know; None if nothing is declared.

    ``without``: connections that cannot be opened. ``tables`` False: a table may be missing, because it is created
    later. Raises SagaError if a database cannot be used.
    """
    declared = sorted(settings.reconcile.effects, key=lambda effects: effects.connection)
    sql = {connection.name: connection for connection in settings.sql_connections()}
    declared = [each for each in declared if each.connection in sql and each.connection not in without]
    if not declared:
        return None
    databases = DatabaseConnections((sql[name] for name in {each.connection for each in declared}), pool_size=1)
    problems: list[str] = []
    try:
        for name, declarations in groupby(declared, key=lambda effects: effects.connection):
            try:
                async with asyncio.timeout(_TIMEOUT):
                    problems += await find_problems(databases.engine(name), [*declarations], tables=tables)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                what = f"the columns of [[reconcile.effects]] of {name} are not checked"
                raise unusable(sql[name], what, error) from error
    finally:
        await databases.close()
    return problems


async def find_problems(engine: AsyncEngine, declared: Sequence[EffectTable], *, tables: bool = True) -> list[str]:
    """The problems of ``declared`` in the database of ``engine``. Raises SQLAlchemyError if it cannot be used."""
    problems: list[str] = []
    async with engine.connect() as connection:
        for effects in declared:
            label = f"[[reconcile.effects]] {effects.name}"
            if (problem := await _refusal(connection, effects, sa.literal_column("1"))) is not None:
                if tables:
                    problems.append(f"{label}: the table {shown(effects.table, 100)} cannot be read: {problem}")
                continue
            for setting, written in _written(effects):
                if (problem := await _refusal(connection, effects, _read_as(setting, written))) is not None:
                    problems.append(
                        f"{label}: `{setting}` has {shown(written, 100)}, which {effects.connection} cannot read from"
                        f" {shown(effects.table, 100)}: {problem}"
                    )
    return problems


def _written(effects: EffectTable) -> Iterator[tuple[str, str]]:
    """Each SQL that the declaration has, and its setting."""
    yield from (("key", column) for column in effects.key)
    yield effects.binding, effects.expression
    yield from (("amounts", column) for column in effects.amounts)
    if effects.time:
        yield "time", effects.time
    if effects.where:
        yield "where", effects.where


def _read_as(setting: str, written: str) -> sa.ColumnElement[object]:
    """The SQL as a reconciliation reads it: columns as they are, and conditions and expressions in parentheses."""
    if setting == "where":
        return sa.case((sa.literal_column(f"({written})"), 1), else_=0)
    return sa.literal_column(written if setting in ("key", "amounts") else f"({written})")


async def _refusal(connection: AsyncConnection, effects: EffectTable, column: sa.ColumnElement[object]) -> str | None:
    """The database's words if it refuses to read ``column``; no row is read."""
    query = sa.select(column.label("c0")).select_from(sa.text(effects.table)).where(sa.text("1 = 0"))
    try:
        await connection.execute(query)
    except SQLAlchemyError as error:
        if connection.invalidated:
            raise
        return driver_message(error)
    finally:
        await connection.rollback()
    return None
