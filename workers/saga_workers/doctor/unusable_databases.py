"""Databases that cannot be opened: one result of `saga doctor` for each, with all that depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from sqlalchemy.exc import SQLAlchemyError

from saga_workers.doctor.automatic_steps import automatic_statements
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.doctor.statement_checks import statements_by_connection
from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.databases import open_command_engine
from sagas.errors import SagaError
from sagas.project import Project
from sagas.settings import SqlConnection

_TIMEOUT = 15.0


async def unusable_databases(connections: Iterable[SqlConnection]) -> dict[str, SagaError]:
    """The connections that cannot be opened, by name, each with its error."""
    chosen = list(connections)
    problems = await asyncio.gather(*map(_problem, chosen))
    return {
        connection.name: problem for connection, problem in zip(chosen, problems, strict=True) if problem is not None
    }


async def _problem(connection: SqlConnection) -> SagaError | None:
    try:
        engine = open_command_engine(connection)
    except SagaError as error:
        return error
    try:
        async with asyncio.timeout(_TIMEOUT), engine.connect():
            return None
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        return unusable(connection, "the database cannot be used", error)
    finally:
        await engine.dispose()


def unusable_result(project: Project, name: str, problem: SagaError) -> DoctorResult:
    """The result for a connection that cannot be opened."""
    unchecked = ", ".join(_unchecked(project, name))
    more = f"; for this reason not checked: {unchecked}" if unchecked else ""
    return DoctorResult(f"connection {name}", False, problem.message + more, problem.help)


def _unchecked(project: Project, name: str) -> Iterator[str]:
    if number := len(statements_by_connection(project).get(name, ())):
        yield f"{number} statement{'s' if number > 1 else ''}"
    steps = dict.fromkeys(step for step, connection, _ in automatic_statements(project) if connection == name)
    if steps:
        yield f"the automatic compensation{'s' if len(steps) > 1 else ''} of {', '.join(steps)}"
    if name == project.settings.lock_connection:
        yield "the locks"
    if name == project.settings.ledger.connection:
        yield "the claims of bulk workflows"
