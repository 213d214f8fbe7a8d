"""Copies of a database of MySQL or MariaDB: databases on its own server with the same objects and rows.

The database is only read. A statement that names another database than its own is refused, as it would write there.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from saga_activities.guard.two_phase.prepared import list_prepared
from saga_activities.session_settings import session_arguments
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.process_identity import is_of_this_machine, owner_is_dead, process_identity
from saga_workers.runtime.schema_file import schema_text, split_statements
from saga_workers.undo_check.mysql_names import ServerNames
from saga_workers.undo_check.mysql_objects import OWNER_TABLE, NotCopied, ObjectCopier
from sagas.errors import SagaError, UsageError
from sagas.settings import SqlConnection
from sagas.sql_text.tokens import RefusedStatement
from sagas.text.sql_names import backquoted

PREFIX = "saga_verify_undo_"
"""The beginning of the names of all copies."""

SAGA_PREFIX = "verify-undo-"
"""The beginning of the ids of the sagas that run on copies."""

_MARK = "saga verify-undo by "
"""The beginning of the comment on the table of a copy that names its owner."""

_WITHOUT_NAME = "leave the name of the database out: a statement finds the tables of its connection without it"

_RIGHTS = "GRANT ALL ON `saga\\_verify\\_undo\\_%`.* TO {}"

_SETTINGS = sa.text("""
    SELECT default_character_set_name AS characters, default_collation_name AS collation_
    FROM information_schema.schemata WHERE schema_name = :name
""")

_COPIES = sa.text("""
    SELECT s.schema_name AS name, t.table_comment AS comment_ FROM information_schema.schemata s
    LEFT JOIN information_schema.tables t ON t.table_schema = s.schema_name AND t.table_name = :owner
    WHERE s.schema_name LIKE 'saga\\_verify\\_undo\\_%' ORDER BY s.schema_name
""")

_SESSIONS = sa.text("SELECT id FROM information_schema.processlist WHERE db = :name AND id <> connection_id()")

_LOCK_WAIT = "SET SESSION lock_wait_timeout = 15"
"""Seconds to wait for a table that somebody else changes; the default of MariaDB is a day."""


class MysqlCopies:
    """The copies of one database. ``base`` is the URL of the first one."""

    def __init__(self, connections: Sequence[SqlConnection], url: URL) -> None:
        self._connections = connections
        self._url = url
        self._original = str(url.database)
        self._run = uuid.uuid4().hex[:12]
        self._names = ServerNames({}, ignores_case=False)
        self.base = url.set(database=f"{PREFIX}{self._run}")
        self.of_other_runs: Sequence[str] = ()

    @classmethod
    @asynccontextmanager
    async def create(cls, connections: Sequence[SqlConnection], url: URL) -> AsyncIterator[MysqlCopies]:
        """Copy the database, and drop the copy at the end. Raises SagaError if that is not possible."""
        if not url.database or {"db", "database"} & set(url.query):
            raise UsageError(
                f"connections.{connections[0].name}.url must name the database as its path to be copied",
                help="mysql://user@host:3306/name",
            )
        copies = cls(connections, url)
        try:
            try:
                await copies._copy_original()
            except DBAPIError as error:
                raise copies._refusal(driver_message(error)) from error
            except (NotCopied, RefusedStatement) as error:
                raise copies._refusal(error.message, error.help) from error
            yield copies
        finally:
            await copies._drop(str(copies.base.database))

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[URL]:
        name = f"{PREFIX}{self._run}_run"
        try:
            await self._make(name, str(self.base.database))
            yield self._url.set(database=name)
        finally:
            await self._drop(name)

    def keep_inside(self, engine: AsyncEngine) -> None:
        """Let an engine that leads to a copy refuse every statement that names another database."""

        @event.listens_for(engine.sync_engine, "before_cursor_execute")
        def refuse(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:  # pyright: ignore[reportUnusedFunction]
            self._require_inside(statement)

    def _require_inside(self, statement: str) -> None:
        place = self._names.other_database(statement, self._original)
        if place is not None:
            raise RefusedStatement(
                f"the statement names the database {place}, and a copy must not work in another database",
                help=_WITHOUT_NAME,
            )

    async def _copy_original(self) -> None:
        engine = _engine(self._url)
        try:
            async with engine.connect() as session:
                abandoned = await self._abandoned_copies(session)
                self._names = await ServerNames.read(session)
        finally:
            await engine.dispose()
        for name in abandoned:
            await self._drop(name)
        for connection in self._connections:
            for _, statement in split_statements(schema_text(connection) or ""):
                if (place := self._names.other_database(statement, self._original)) is not None:
                    raise NotCopied(f"its schema file names the database {place}", help=_WITHOUT_NAME)
        base = str(self.base.database)
        await self._make(base, self._original)
        self._names = self._names.with_copy(self._original, base)
        for connection in self._connections[1:]:
            await self._require_access(connection)

    async def _make(self, name: str, original: str) -> None:
        """Make a database that is like another one. Raises DBAPIError, NotCopied, RefusedStatement."""
        source, target = _engine(self._url.set(database=original)), _engine(self._url.set(database=name))
        try:
            async with source.connect() as reading:
                row: Any = (await reading.execute(_SETTINGS, {"name": original})).one()
                settings = f"CHARACTER SET {row.characters} COLLATE {row.collation_}"
                await reading.exec_driver_sql(f"CREATE DATABASE {backquoted(name)} {settings}")
                comment = f"{_MARK}{process_identity()}".replace("'", "''").replace("\\", "\\\\").replace("%", "%%")
                await reading.exec_driver_sql(
                    f"CREATE TABLE {backquoted(name)}.{OWNER_TABLE} (made int) COMMENT '{comment}'"
                )
                async with target.connect() as writing:
                    await self._require_copy(writing, name)
                    await ObjectCopier(original, name, reading, writing, self._names).copy_all()
        finally:
            await source.dispose()
            await target.dispose()

    async def _require_copy(self, session: AsyncConnection, name: str) -> None:
        """Raise SagaError if the URL of a copy leads to another database, as it can with a proxy."""
        reached = (await session.exec_driver_sql("SELECT database()")).scalar()
        if reached != name:
            raise SagaError(
                f"the URL of the connection {self._connections[0].name} leads to the database {reached} also with the"
                " name of a copy",
                help="give a URL that leads to the server itself, without a proxy",
            )

    async def _require_access(self, connection: SqlConnection) -> None:
        """Raise SagaError if another connection to the same database may not use its copy."""
        engine = _engine(sa.make_url(connection.url).set(database=self.base.database))
        try:
            async with engine.connect() as session:
                await self._require_copy(session, str(self.base.database))
        except DBAPIError as error:
            raise SagaError(
                f"the connection {connection.name} cannot use the copy of its database: {driver_message(error)}",
                help=_RIGHTS.format("its user"),
            ) from error
        finally:
            await engine.dispose()

    async def _abandoned_copies(self, session: AsyncConnection) -> list[str]:
        """The copies whose process has ended on this machine; the names of those of other machines are kept."""
        abandoned: list[str] = []
        unclear: list[str] = []
        for row in (await session.execute(_COPIES, {"owner": OWNER_TABLE})).all():
            owner = (row.comment_ or "").removeprefix(_MARK)
            if owner_is_dead(owner):
                abandoned.append(row.name)
            elif not is_of_this_machine(owner):
                unclear.append(row.name)
        self.of_other_runs = unclear
        return abandoned

    async def _drop(self, name: str) -> None:
        """Drop a copy, after its sessions and the transactions that are prepared in it have ended."""
        exists = sa.text("SELECT count(*) FROM information_schema.schemata WHERE schema_name = :name")
        engine, inside = _engine(self._url), _engine(self._url.set(database=name))
        try:
            async with engine.connect() as session:
                if not (await session.execute(exists, {"name": name})).scalar():
                    return
                for id in (await session.execute(_SESSIONS, {"name": name})).scalars().all():
                    with suppress(DBAPIError):  # it has just ended, or it is not ours
                        await session.exec_driver_sql(f"KILL {int(id)}")
                with suppress(DBAPIError):  # MySQL lists them for administrators only
                    for prepared in await list_prepared(inside):
                        # The copy has the guard rows of the original, too, whose transactions are not ours.
                        if prepared.entry_key is not None and prepared.entry_key.saga_id.startswith(SAGA_PREFIX):
                            await session.exec_driver_sql(prepared.rollback)
                await session.exec_driver_sql(f"DROP DATABASE IF EXISTS {backquoted(name)}")
        finally:
            await engine.dispose()
            await inside.dispose()

    def _refusal(self, why: str, help: str | None = None) -> SagaError:
        return SagaError(
            f"the database of the connection {self._connections[0].name} cannot be copied: {why}",
            help=help or f"its user needs the rights of `{_RIGHTS.format('user')}` and SELECT on all tables",
        )


def _engine(url: URL) -> AsyncEngine:
    """An engine that keeps no session open, and whose sessions wait for locks only shortly."""
    arguments = session_arguments(url)
    arguments["init_command"] = f"{arguments['init_command']}, {_LOCK_WAIT.removeprefix('SET SESSION ')}"
    return create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args=arguments)
