"""Lets the databases prepare the statements that sagas may still send: nothing is executed, and nothing stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.automatic.statement_check import check_statement
from saga_activities.guard.sql_session import SqlSession
from saga_workers.deploy.remaining_statements import RemainingStatement, remaining_statements
from saga_workers.doctor.prepared_statements import NotChecked, prepare
from saga_workers.runtime.database_access import driver_errors, unusable
from saga_workers.runtime.databases import open_command_engine
from sagas.errors import SagaError
from sagas.machine.remaining_calls import RemainingCall
from sagas.project import Project
from sagas.settings import SqlConnection
from sagas.sql_text.dialects import NAMES, dialect_of_url
from sagas.sql_text.parsed import parse_sql
from sagas.sql_text.row_changes import NotImageable
from sagas.sql_text.sql_statements import parse_guarded
from sagas.sql_text.tokens import RefusedStatement

_TIMEOUT = 15.0
"""Seconds for one statement, and for a new connection."""


@dataclass(frozen=True, slots=True)
class StatementProblem:
    """Why a statement does not prepare. ``is_certain`` is False if its database could not say."""

    what: str
    is_certain: bool = True


class StatementChecks:
    """Prepares each statement once, on one session for each connection of the project."""

    def __init__(self, project: Project, stack: AsyncExitStack) -> None:
        self._project = project
        self._stack = stack
        self._sessions: dict[str, AsyncConnection] = {}
        self._unusable: dict[str, StatementProblem] = {}
        self._verdicts: dict[tuple[str, str, bool, bool], StatementProblem | None] = {}

    async def problems(self, call: RemainingCall) -> list[StatementProblem]:
        """The problems of the statements of a call whose connection the project has."""
        problems: list[StatementProblem] = []
        for statement in remaining_statements(call):
            database = self._project.settings.connections.get(statement.connection)
            if isinstance(database, SqlConnection):
                problem = await self._verdict(database, statement)
                problems += [] if problem is None else [_named(problem, call, statement)]
        return problems

    async def _verdict(self, database: SqlConnection, statement: RemainingStatement) -> StatementProblem | None:
        if database.name in self._unusable:
            return self._unusable[database.name]
        key = (database.name, statement.text, statement.guarded, statement.restores)
        if key not in self._verdicts:
            try:
                async with asyncio.timeout(_TIMEOUT):
                    session = await self._session(database)
                    self._verdicts[key] = await _check(session, database, statement)
            except SagaError as error:
                self._unusable[database.name] = StatementProblem(error.message)
            except (SQLAlchemyError, OSError, TimeoutError, *driver_errors()) as error:
                problem = unusable(database, f"the database of {database.name} cannot be used", error)
                self._unusable[database.name] = StatementProblem(problem.message)
            if database.name in self._unusable:
                return self._unusable[database.name]
        return self._verdicts[key]

    async def _session(self, database: SqlConnection) -> AsyncConnection:
        if database.name not in self._sessions:
            engine = open_command_engine(database)
            self._stack.push_async_callback(engine.dispose)
            session = await self._stack.enter_async_context(engine.connect())
            await session.execution_options(isolation_level="AUTOCOMMIT")
            self._stack.push_async_callback(session.invalidate)  # its settings
            self._sessions[database.name] = session
        return self._sessions[database.name]


@asynccontextmanager
async def statement_checks(project: Project) -> AsyncIterator[StatementChecks]:
    """Open the checks; their sessions are closed at the end."""
    async with AsyncExitStack() as stack:
        yield StatementChecks(project, stack)


def _named(problem: StatementProblem, call: RemainingCall, statement: RemainingStatement) -> StatementProblem:
    """The problem with the statement's place in the call, without the text of what an operator has given."""
    what = "the database does not prepare it" if call.recorded and problem.is_certain else problem.what
    rows = "the rows of its " if statement.restores else "its "
    return StatementProblem(f"{rows}{statement.name} on {statement.connection}: {what}", problem.is_certain)


async def _check(
    session: AsyncConnection, database: SqlConnection, statement: RemainingStatement
) -> StatementProblem | None:
    if statement.restores:
        return await _check_restored(session, statement)
    dialect = dialect_of_url(database.url) or session.dialect.name
    try:
        parsed = (parse_guarded if statement.guarded else parse_sql)(statement.text, dialect)
        refusal = await prepare(session, parsed, takes_literals=not statement.guarded)
    except RefusedStatement as error:
        return StatementProblem(f"this build refuses it: {error.message}")
    except NotChecked as why:
        return StatementProblem(f"not checked because {why}", is_certain=False)
    if refusal is None:
        return None
    if refusal.is_prepared:
        return StatementProblem(refusal.why)
    return StatementProblem(f"{NAMES[parsed.dialect]} cannot prepare it: {refusal.why}")


async def _check_restored(session: AsyncConnection, statement: RemainingStatement) -> StatementProblem | None:
    """The problem if the rows that a statement has changed could not be restored any more."""
    try:
        await check_statement(SqlSession(session), statement.text)
    except NotImageable as error:
        return StatementProblem(error.message)
    return None
