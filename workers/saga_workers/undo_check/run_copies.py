"""The copies on which runs are made, and what differs in them from the databases as they were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_workers.runtime.database_access import unusable
from saga_workers.runtime.databases import set_up_database
from saga_workers.undo_check.database_copies import DatabaseCopies, open_plain
from saga_workers.undo_check.table_rows import (
    ComparedTable,
    Difference,
    compare,
    fingerprints,
    read_sequences,
    read_tables,
)
from sagas.settings import SqlConnection


@dataclass(slots=True)
class CopiedDatabase:
    """The copies of a connection's database, and its tables and sequences as they were before any run."""

    connection: SqlConnection
    copies: DatabaseCopies
    tables: list[ComparedTable] = field(default_factory=list)
    fingerprints: dict[ComparedTable, Any] = field(default_factory=dict)
    sequences: dict[str, tuple[int, int]] = field(default_factory=dict)

    def at(self, url: URL) -> SqlConnection:
        """The connection, to a copy."""
        return self.connection.model_copy(update={"url_setting": url.render_as_string(hide_password=False)})


async def prepare(connection: SqlConnection, copies: DatabaseCopies, shards: int) -> CopiedDatabase:
    """The copied database with the engine's tables, as the first run finds it. Raises SagaError."""
    database = CopiedDatabase(connection, copies)
    await set_up_database(database.at(copies.base), shards)
    try:
        async with _connected(copies.base) as session:
            database.tables = await read_tables(session)
            database.fingerprints = await fingerprints(session, database.tables)
            database.sequences = await read_sequences(session)
    except SQLAlchemyError as error:
        raise unusable(connection, "the rows cannot be read", error) from error
    return database


class RunCopies:
    """One copy of each database for the next run. A run that leaves its rows as they were does not use it up.

    ``moved_sequences``: those that a run has moved on.
    """

    def __init__(self, databases: Mapping[str, CopiedDatabase]) -> None:
        self.databases = databases
        self.moved_sequences: set[str] = set()
        self._open = AsyncExitStack()
        self._urls: dict[str, URL] = {}

    @classmethod
    @asynccontextmanager
    async def create(cls, databases: Mapping[str, CopiedDatabase]) -> AsyncIterator[RunCopies]:
        """Delete the copies at the end."""
        copies = cls(databases)
        try:
            yield copies
        finally:
            await copies.renew()

    async def connections(self) -> list[SqlConnection]:
        """The connections to the copies, to which nobody else is connected."""
        for name, database in self.databases.items():
            if name not in self._urls:
                self._urls[name] = await self._open.enter_async_context(database.copies.copy())
        return [database.at(self._urls[name]) for name, database in self.databases.items()]

    async def renew(self) -> None:
        """Delete the copies, so that the next run gets new ones."""
        self._urls = {}
        await self._open.aclose()
        self._open = AsyncExitStack()

    async def differences(self) -> list[tuple[str, Difference]]:
        """The name of a connection and what the last run has left in its database. Raises SagaError."""
        differences: list[tuple[str, Difference]] = []
        for name, database in self.databases.items():
            try:
                async with _connected(database.copies.base) as before, _connected(self._urls[name]) as after:
                    now = await fingerprints(after, database.tables)
                    for table in database.tables:
                        if now[table] != database.fingerprints[table]:
                            differences += [(name, row) for row in await compare(before, after, table)]
                    sequences = await read_sequences(after)
            except SQLAlchemyError as error:
                raise unusable(database.connection, "the rows cannot be compared", error) from error
            differences += [(name, row) for row in self._set_back(database.sequences, sequences)]
        return differences

    def _set_back(
        self, before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]
    ) -> Iterator[Difference]:
        """The sequences that were set to an earlier value; those that have only moved on are noted."""
        for name, (last, increment) in after.items():
            if before.get(name) == (last, increment):
                continue
            earlier = before.get(name, (last, increment))[0]
            if (last - earlier) * increment >= 0:
                self.moved_sequences.add(name)
            else:
                yield Difference(name, "sequence")


@asynccontextmanager
async def _connected(url: URL) -> AsyncIterator[AsyncConnection]:
    engine = open_plain(url)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()
