"""The copies on which runs are made, and what differs in them from the databases as they were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.connections import DatabaseConnections
from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.databases import set_up_database
from saga_workers.undo_check.compared_tables import (
    ComparedTable,
    HiddenPlace,
    SearchPath,
    read_search_path,
    read_tables,
)
from saga_workers.undo_check.database_copies import DatabaseCopies, open_plain
from saga_workers.undo_check.sequences import NextValue, read_sequences
from saga_workers.undo_check.table_rows import Difference, compare, fingerprints
from sagas.settings import SqlConnection


@dataclass(slots=True)
class CopiedDatabase:
    """The copies of one database, and its tables and sequences as they were before any run.

    ``connections`` lead to this database; the first one gives it its name in messages. ``hidden`` is not compared.
    """

    connections: Sequence[SqlConnection]
    copies: DatabaseCopies
    path: SearchPath = field(default_factory=SearchPath)
    tables: list[ComparedTable] = field(default_factory=list)
    fingerprints: dict[ComparedTable, Any] = field(default_factory=dict)
    sequences: Mapping[str, NextValue] = field(default_factory=dict)
    hidden: list[HiddenPlace] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.connections[0].name

    def connections_to(self, copy: URL) -> Iterator[SqlConnection]:
        """The connections, each with its own user and options, to a copy."""
        for connection in self.connections:
            url = make_url(connection.url).set(database=copy.database)
            yield connection.model_copy(update={"url_setting": url.render_as_string(hide_password=False)})


async def prepare(connections: Sequence[SqlConnection], copies: DatabaseCopies, shards: int) -> CopiedDatabase:
    """The copied database with the engine's tables, as each run finds it. Raises SagaError."""
    database = CopiedDatabase(connections, copies)
    for connection in database.connections_to(copies.base):
        await set_up_database(connection, shards)
    try:
        for connection in database.connections_to(copies.base):
            async with _connected(make_url(connection.url)) as session:
                path = await read_search_path(session)
            shown = database.path.schemas or path.schemas
            database.path = SearchPath(shown, database.path.engine | path.engine)
        async with _reading(copies.base) as session:
            database.tables, hidden_tables = await read_tables(session, database.path)
            database.fingerprints = await fingerprints(session, database.tables)
            database.sequences, hidden_sequences = await read_sequences(session, database.path)
            database.hidden = [*hidden_tables, *hidden_sequences]
    except SQLAlchemyError as error:
        raise unusable(connections[0], "the rows cannot be read", error) from error
    return database


class RunCopies:
    """One copy of each database for the next run. A run that leaves its rows as they were does not use it up.

    ``moved_sequences``: those that a run has moved on. ``are_new``: no run has used these copies.
    """

    def __init__(self, databases: Sequence[CopiedDatabase]) -> None:
        self.databases = databases
        self.moved_sequences: set[str] = set()
        self.are_new = True
        self._open = AsyncExitStack()
        self._urls: dict[str, URL] = {}
        self._sequences: dict[str, Mapping[str, NextValue]] = {}

    @classmethod
    @asynccontextmanager
    async def create(cls, databases: Sequence[CopiedDatabase]) -> AsyncIterator[RunCopies]:
        """Delete the copies at the end."""
        copies = cls(databases)
        try:
            yield copies
        finally:
            await copies.delete()

    @property
    def connection_names(self) -> set[str]:
        return {connection.name for database in self.databases for connection in database.connections}

    async def connections(self) -> list[SqlConnection]:
        """The connections to the copies, to which nobody else is connected, for one run."""
        connections: list[SqlConnection] = []
        self.are_new = not self._urls
        for database in self.databases:
            name = database.name
            if name not in self._urls:
                self._urls[name] = await self._open.enter_async_context(database.copies.copy())
                self._sequences[name] = database.sequences
            connections += database.connections_to(self._urls[name])
        return connections

    def keep_inside(self, databases: DatabaseConnections) -> None:
        """Let connections to the copies refuse statements that would work in another database."""
        for database in self.databases:
            for connection in database.connections:
                database.copies.keep_inside(databases.engine(connection.name))

    async def delete(self) -> None:
        """Delete the copies, so that the next run gets new ones; nobody may be connected to them."""
        self._urls = {}
        await self._open.aclose()
        self._open = AsyncExitStack()

    async def differences(self) -> list[tuple[str, Difference]]:
        """The name of a database and what the last run has left in it; call it once after each. Raises SagaError."""
        differences: list[tuple[str, Difference]] = []
        for database in self.databases:
            copies, name = database.copies, database.name
            try:
                async with (
                    _reading(copies.base) as before,
                    _reading(self._urls[name]) as after,
                ):
                    now = await fingerprints(after, database.tables)
                    for table in database.tables:
                        if now[table] != database.fingerprints[table]:
                            differences += [(name, row) for row in await compare(before, after, table)]
                    sequences, _ = await read_sequences(after, database.path)
            except SQLAlchemyError as error:
                raise unusable(database.connections[0], "the rows cannot be compared", error) from error
            differences += [(name, row) for row in self._set_back(self._sequences[name], sequences)]
            self._sequences[name] = sequences
        return differences

    async def read_data(self) -> list[Any]:
        """A value that is another after every change of compared rows and sequences. Raises SagaError."""
        data: list[Any] = []
        for database in self.databases:
            try:
                async with _reading(self._urls[database.name]) as session:
                    data.append(await fingerprints(session, database.tables))
                    data.append((await read_sequences(session, database.path))[0])
            except SQLAlchemyError as error:
                raise unusable(database.connections[0], "the rows cannot be read", error) from error
        return data

    def _set_back(self, before: Mapping[str, NextValue], after: Mapping[str, NextValue]) -> Iterator[Difference]:
        """The sequences that were set to an earlier value; those that have only moved on are noted."""
        for name, following in after.items():
            if name in before and following.is_before(before[name]):
                yield Difference(name, "sequence")
            elif before.get(name) != following:
                self.moved_sequences.add(name)


@asynccontextmanager
async def _connected(url: URL) -> AsyncIterator[AsyncConnection]:
    engine = open_plain(url)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def _reading(url: URL) -> AsyncIterator[AsyncConnection]:
    """A session that reads a copy, and for which functions and types are those of the server itself."""
    async with _connected(url) as connection:
        if connection.dialect.name == "postgresql":
            await connection.exec_driver_sql("SET search_path TO pg_catalog")
        elif connection.dialect.name == "mysql" and not getattr(connection.dialect, "is_mariadb", False):
            await connection.exec_driver_sql("SET SESSION information_schema_stats_expiry = 0")
        yield connection
