"""Checks the steps with `compensate: auto` of a project against the catalogs of their databases."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import islice

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.automatic import mysql
from saga_activities.automatic.row_locks import own_schema
from saga_activities.automatic.statement_check import check_statement
from saga_activities.automatic.table_access import TableAccess
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.sql_session import SqlSession
from saga_workers.runtime.database_access import unusable
from sagas.errors import SagaError
from sagas.project import Project
from sagas.sql_text.row_changes import NotImageable, RowChange, TableMissing

_TIMEOUT = 15.0
_MAX_LINES = 20


async def automatic_step_problems(project: Project, *, without: Collection[str] = ()) -> list[str] | None:
    """A line for each reason why statements could not be undone; None if the project has none on tables that exist.

    A reason names its first statement, and is not repeated for the others; there are at most :data:`_MAX_LINES`.
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
    unknown, problems = 0, dict[tuple[str, str], list[str]]()
    places: dict[tuple[Hashable, ...], tuple[str, str, str | None]] = {}
    try:
        for step, connection, statement in statements:
            engine = databases.engine(connection)
            try:
                async with asyncio.timeout(_TIMEOUT), engine.connect() as opened:
                    sql = SqlSession(opened)
                    change, table = await check_statement(sql, statement)
                    if table is None:
                        continue
                    for doubt in await _doubts(sql, change, table):
                        problems.setdefault((connection, doubt), []).append(step)
                    schema = (await sql.one(f"SELECT {own_schema(sql.dialect)} AS own", {}))["own"]
                url = engine.url
                address = (url.host or url.query.get("host"), url.port or url.query.get("port"))
                server = (*address, sql.dialect == "postgresql" and url.database)
                place = (step.partition("/")[0], *server, table.shape.quoted)
                other_step, other, other_schema = places.setdefault(place, (step, connection, schema))
                if None not in (schema, other_schema) and schema != other_schema:
                    problem = (
                        f"it changes {table.shape.name} through the connection {connection}, and {other_step}"
                        f" through {other}: use one of them, or a saga that changes a row through both is refused"
                    )
                    problems.setdefault((connection, problem), []).append(step)
            except TableMissing:
                unknown += 1  # the check of the statements says so
            except NotImageable as refusal:
                problems.setdefault((connection, refusal.message), []).append(step)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                what = f"the statements of {connection} with an automatic compensation are not checked"
                raise unusable(project.settings.sql_connection(connection), what, error) from error
    finally:
        await databases.close()
    return None if unknown == len(statements) else list(_lines(problems, project))


def _lines(problems: Mapping[tuple[str, str], Sequence[str]], project: Project) -> Iterator[str]:
    """``problems``: the steps (``saga/step``, once per statement) by connection and reason."""
    drafts = {draft.definition.saga: draft for draft in project.drafts} if problems else {}
    for (_, reason), steps in islice(problems.items(), _MAX_LINES):
        saga, _, step = steps[0].partition("/")
        draft = drafts.get(saga)
        where = f" ({draft.file}:{draft.steps_by_id[step].parsed.node.line})" if draft is not None else ""
        more = len(steps) - 1
        others = f" ({more} more statement{'s' * (more > 1)})" if more else ""
        yield f"{steps[0]}{where}: {reason}{others}"
    if len(problems) > _MAX_LINES:
        yield f"there are {len(problems) - _MAX_LINES} more problems: correct these first"


async def _doubts(sql: SqlSession, change: RowChange, table: TableAccess) -> Sequence[str]:
    """Why the undo of some rows may be refused. Raises :class:`NotImageable` if none could be undone."""
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
                for statement in (step.do.with_ or {}).get("run", ()):
                    yield f"{definition.saga}/{step.id}", step.do.connection, statement["sql"]
