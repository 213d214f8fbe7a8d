"""One transaction for the guard rows and the effects of a chunk: set-based on PostgreSQL, row by row elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.bulk.guard_scripts import RowInsert
from saga_activities.guard.mysql_sqlite import MysqlTransaction, SqlAlchemyTransaction, SqliteTransaction
from saga_activities.guard.postgresql import PostgresSqlSession, PostgresTransaction
from saga_activities.guard.session import SqlSession
from saga_activities.guard.tables import EntryKey
from saga_activities.guard.transaction import HELD_EVENT_STATUS, GuardRow, RowWrite
from saga_activities.guard.transaction_runner import begin_transaction

_INSERT = (
    "INSERT INTO saga_guard (saga_id, step, generation, op, reason, args_hash, result, created_at)"
    " SELECT k.*, %s"
    " FROM unnest(%s::text[], %s::text[], %s::int[], %s::text[], %s::text[], %s::text[], %s::text[]) AS k"
    " WHERE NOT EXISTS (SELECT 1 FROM saga_watermark WHERE watermark > %s)"
    " ON CONFLICT DO NOTHING RETURNING saga_id, step, generation, op"
)
_SELECT = (
    "SELECT g.saga_id, g.step, g.generation, g.op, g.reason, g.args_hash, g.result"
    " FROM unnest(%s::text[], %s::text[], %s::int[]) AS k (saga_id, step, generation)"
    " JOIN saga_guard g USING (saga_id, step, generation) FOR SHARE OF g"
)
_DELETE = (
    "DELETE FROM saga_guard g USING unnest(%s::text[], %s::text[], %s::int[], %s::text[])"
    " AS k (saga_id, step, generation, op)"
    " WHERE (g.saga_id, g.step, g.generation, g.op) = (k.saga_id, k.step, k.generation, k.op)"
)
_STORE = (
    "UPDATE saga_guard g SET result = k.result"
    " FROM unnest(%s::text[], %s::text[], %s::int[], %s::text[], %s::text[])"
    " AS k (saga_id, step, generation, op, result)"
    " WHERE (g.saga_id, g.step, g.generation, g.op) = (k.saga_id, k.step, k.generation, k.op)"
)
_HELD = (
    "UPDATE saga_outbox o SET status = %s"
    " FROM unnest(%s::text[], %s::text[], %s::int[]) AS k (saga_id, step, generation)"
    " WHERE (o.saga_id, o.step, o.generation) = (k.saga_id, k.step, k.generation) AND o.status = 'HELD'"
)


class PostgresChunk(PostgresTransaction):
    """All rows of the chunk in one statement."""

    async def insert_rows(self, rows: Sequence[RowInsert]) -> Sequence[bool]:
        columns = [*_key_columns([row.key for row in rows])]
        columns += [[row.op for row in rows], [row.reason for row in rows]]
        columns += [[row.args_hash for row in rows], [row.result for row in rows]]
        cursor = await self._send(_INSERT, (self._scheduled_at, *columns, self._scheduled_at))
        won = {tuple(row) for row in await cursor.fetchall()}
        return [(*_key(row.key), row.op) in won for row in rows]

    async def read_rows(self, keys: Sequence[EntryKey]) -> Sequence[Mapping[str, GuardRow]]:
        await self.check_watermark()
        cursor = await self._send(_SELECT, tuple(_key_columns(keys)))
        found: dict[tuple[str, str, int], dict[str, GuardRow]] = {}
        for saga_id, step, generation, op, reason, args_hash, result in await cursor.fetchall():
            found.setdefault((saga_id, step, generation), {})[op] = GuardRow(reason, args_hash, result)
        return [found.get(_key(key), {}) for key in keys]

    async def delete_rows(self, rows: Sequence[tuple[EntryKey, str]]) -> None:
        await self._send(_DELETE, (*_key_columns([key for key, _ in rows]), [op for _, op in rows]))

    async def store(self, writes: Sequence[tuple[EntryKey, RowWrite]]) -> None:
        if stored := [(key, write) for key, write in writes if write.result is not None]:
            keys = _key_columns([key for key, _ in stored])
            await self._send(_STORE, (*keys, [one.op for _, one in stored], [one.result for _, one in stored]))
        for decision, status in HELD_EVENT_STATUS.items():
            if held := [key for key, write in writes if write.held == decision]:
                await self._send(_HELD, (status, *_key_columns(held)))

    def new_session(self) -> SqlSession:
        """A session for one action: its errors concern no other one."""
        return PostgresSqlSession(self._connection, self._raw)

    async def next_savepoint(self, *, first: bool) -> None:
        """Keep what was done since the last savepoint, and set a new one."""
        await self._send(("" if first else "RELEASE SAVEPOINT saga_item; ") + "SAVEPOINT saga_item", ())

    async def back_to_savepoint(self) -> None:
        await self._send("ROLLBACK TO SAVEPOINT saga_item", ())

    @property
    def raw(self) -> Any:
        """The driver's connection, for statements in a pipeline."""
        return self._raw


def _key(key: EntryKey) -> tuple[str, str, int]:
    return key.saga_id, key.entry, key.generation


def _key_columns(keys: Sequence[EntryKey]) -> list[list[Any]]:
    return [[key.saga_id for key in keys], [key.entry for key in keys], [key.generation for key in keys]]


class RowByRowChunk(SqlAlchemyTransaction):
    """The same, with the statements of single entries."""

    async def insert_rows(self, rows: Sequence[RowInsert]) -> Sequence[bool]:
        inserted = []
        for row in rows:
            self.address(row.key)
            inserted.append(await self.insert(row.op, row.reason, args_hash=row.args_hash, result=row.result))
        return inserted

    async def read_rows(self, keys: Sequence[EntryKey]) -> Sequence[Mapping[str, GuardRow]]:
        found = []
        for key in keys:
            self.address(key)
            found.append(await self.rows())
        return found

    async def delete_rows(self, rows: Sequence[tuple[EntryKey, str]]) -> None:
        for key, op in rows:
            self.address(key)
            await self.delete(op)

    async def store(self, writes: Sequence[tuple[EntryKey, RowWrite]]) -> None:
        for key, write in writes:
            self.address(key)
            await self.store_row(write)

    def new_session(self) -> SqlSession:
        return SqlSession(self._connection)

    async def next_savepoint(self, *, first: bool) -> None:
        if not first:
            await self._send("RELEASE SAVEPOINT saga_item")
        await self._send("SAVEPOINT saga_item")

    async def back_to_savepoint(self) -> None:
        await self._send("ROLLBACK TO SAVEPOINT saga_item")


class MysqlChunk(RowByRowChunk, MysqlTransaction):
    """On MySQL and MariaDB."""


class SqliteChunk(RowByRowChunk, SqliteTransaction):
    """On SQLite."""


ChunkTransaction = PostgresChunk | MysqlChunk | SqliteChunk

_CLASSES = {"postgresql": PostgresChunk, "mysql": MysqlChunk, "mariadb": MysqlChunk, "sqlite": SqliteChunk}


async def begin_chunk(engine: AsyncEngine, key: EntryKey, **limits: Any) -> ChunkTransaction:
    """A transaction on a connection of the pool, with the limits of :func:`begin_transaction`."""
    kind: Any = _CLASSES[engine.dialect.name]
    return cast("ChunkTransaction", await begin_transaction(engine, key, **limits, kind=kind))
