"""Checks the steps with `compensate: auto` of a project against the catalogs of their databases."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.automatic import mysql
from saga_activities.automatic.statement_check import check_statement
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.session import SqlSession
from saga_workers.runtime.database_access import unusable
from sagas.errors import SagaError
from sagas.settings.project import Project
from sagas.sql_text.row_changes import NotImageable

_TIMEOUT = 15.0


async def automatic_step_problems(project: Project, *, without: Collection[str] = ()) -> list[str] | None:
    """A sentence for each statement that could not be undone; None if the project has no such steps.

    ``without``: connections that cannot be opened. Raises SagaError if a database cannot be used.
    """
    statements = [each for each in automatic_statements(project) if each[1] not in without]
    if not statements:
        return None
    databases = DatabaseConnections(
        (
            connection
            for connection in project.settings.sql_connections()
            if any(name == connection.name for _, name, _ in statements)
        ),
        pool_size=1,
    )
    problems = []
    try:
        for step, connection, statement in statements:
            try:
                async with asyncio.timeout(_TIMEOUT), databases.engine(connection).connect() as opened:
                    problems += [f"{step}: {doubt}" for doubt in await _check(SqlSession(opened), statement)]
            except NotImageable as refusal:
                problems.append(f"{step}: {refusal.message}")
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                what = f"the statements of {connection} with an automatic compensation are not checked"
                raise unusable(project.settings.sql_connection(connection), what, error) from error
    finally:
        await databases.close()
    return problems


async def _check(sql: SqlSession, statement: str) -> Sequence[str]:
    """Why the undo of some rows may be refused. Raises :class:`NotImageable` if none could be undone."""
    change, table = await check_statement(sql, statement)
    if table is None:
        return ()
    if sql.dialect in ("mysql", "mariadb"):
        await mysql.check_rights(sql, table.shape, change.kind)
    return () if change.kind == "insert" else table.shape.doubts


def automatic_statements(project: Project) -> Iterator[tuple[str, str, str]]:
    """The step (``saga/step``), the connection and the text of each statement."""
    try:
        definitions = project.definitions.values()
    except SagaError:
        return  # reported with the definitions
    for definition in definitions:
        for step in definition.steps:
            if step.do.images and step.do.connection is not None:
                for one in (step.do.with_ or {}).get("run", ()):
                    yield f"{definition.saga}/{step.id}", step.do.connection, one["sql"]
