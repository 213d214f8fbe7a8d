"""Copies of the database of one connection: one that stays as the original was, and a new one for each run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from saga_activities.session_settings import session_arguments
from saga_workers.undo_check.postgresql_copies import PostgresqlCopies
from saga_workers.undo_check.sqlite_copies import SqliteCopies
from sagas.errors import UsageError
from sagas.settings import Settings, SqlConnection


class DatabaseCopies(Protocol):
    """``base`` is the URL of the copy that stays as it is. The original is only read."""

    base: URL

    def copy(self) -> AbstractAsyncContextManager[URL]:
        """The URL of a new copy of ``base``, to which nobody may be connected; deleted at the end."""
        ...


@asynccontextmanager
async def open_copies(settings: Settings, connection: SqlConnection, folder: Path) -> AsyncIterator[DatabaseCopies]:
    """Copy the database of a connection; ``folder`` is for the files of copies. Everything is deleted at the end.

    Raises SagaError if it cannot be copied.
    """
    url = make_url(connection.url)
    match url.get_backend_name():
        case "postgresql":
            async with PostgresqlCopies.create(settings, connection, url) as copies:
                yield copies
        case "sqlite":
            yield SqliteCopies(connection.name, url, folder)
        case other:
            raise UsageError(f"the connection {connection.name} is {other}, whose databases are not copied yet")


def open_plain(url: URL) -> AsyncEngine:
    """An engine that keeps no connection open, so that a database can be copied and dropped."""
    return create_async_engine(url, poolclass=NullPool, connect_args=session_arguments(url))
