"""Copies of one database: one that stays as the original was, and a new one for each run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from saga_activities.session_settings import session_arguments
from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.database_identity import database_identity
from saga_workers.undo_check.mysql_copies import MysqlCopies
from saga_workers.undo_check.postgresql_copies import PostgresqlCopies
from saga_workers.undo_check.sqlite_copies import SqliteCopies
from sagas.settings import Settings, SqlConnection


class DatabaseCopies(Protocol):
    """``base`` is the URL of the copy that stays as it is. The original is only read."""

    base: URL
    of_other_runs: Sequence[str]
    """Copies on the server whose process is not known to run, nor to have ended."""

    def copy(self) -> AbstractAsyncContextManager[URL]:
        """The URL of a new copy of ``base``, to which nobody may be connected; deleted at the end."""
        ...

    def keep_inside(self, engine: AsyncEngine) -> None:
        """Let an engine that leads to a copy refuse statements that would work in another database."""
        ...


@asynccontextmanager
async def open_copies(
    settings: Settings, connections: Sequence[SqlConnection], folder: Path
) -> AsyncIterator[DatabaseCopies]:
    """Copy the database to which the connections lead; ``folder`` is for the files of copies.

    Everything is deleted at the end. Raises SagaError if it cannot be copied.
    """
    connection = connections[0]
    url = make_url(connection.url)
    match url.get_backend_name():
        case "postgresql":
            async with PostgresqlCopies.create(settings, connections, url) as copies:
                yield copies
        case "sqlite":
            yield SqliteCopies(connection.name, url, folder)
        case _:
            async with MysqlCopies.create(connections, url) as copies:
                yield copies


async def by_database(connections: Sequence[SqlConnection]) -> list[list[SqlConnection]]:
    """The connections, those to the same database together. Raises SagaError if one cannot be reached."""
    if len(connections) < 2:
        return [[connection] for connection in connections]
    databases: dict[str, list[SqlConnection]] = {}
    for connection in connections:
        databases.setdefault(await _identity(connection), []).append(connection)
    return list(databases.values())


async def _identity(connection: SqlConnection) -> str:
    url = make_url(connection.url)
    if url.get_backend_name() == "sqlite" and not url.database:
        return connection.name
    engine = open_plain(url)
    try:
        return await database_identity(engine)
    except SQLAlchemyError as error:
        raise unusable(connection, f"the database of the connection {connection.name}", error) from error
    finally:
        await engine.dispose()


def open_plain(url: URL) -> AsyncEngine:
    """An engine that keeps no connection open, so that a database can be copied and dropped."""
    return create_async_engine(url, poolclass=NullPool, connect_args=session_arguments(url))
