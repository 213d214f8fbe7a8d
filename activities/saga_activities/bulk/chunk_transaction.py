"""One transaction for the guard rows and the effects of a chunk: set-based on PostgreSQL, row by row elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.bulk.guard_scripts import RowInsert
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.mysql import MysqlTransaction
from saga_activities.guard.postgresql import TRANSACTION_TIMEOUT_VERSION, PostgresSqlSession, PostgresTransaction
from saga_activities.guard.postgresql_script import rows_of
from saga_activities.guard.script_transactions import begin_transaction
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.sqlalchemy_transaction import SqlAlchemyTransaction
from saga_activities.guard.sqlite import SqliteTransaction
from saga_activities.guard.transaction import HELD_EVENT_STATUS, GuardRow, RowWrite, TransactionLimits
from saga_activities.session_settings import KEPT_POSTGRESQL, with_foreign_keys
from saga_activities.value_places import origin_place, result_place
from sagas.text.exact_json import encode_json

_ROWS = "json_array_elements(%s::json) AS r"
"""One JSON text for all rows: an array of the driver for each column would take several times the CPU."""
_KEY = "r->>0 AS saga_id, r->>1 AS step, (r->>2)::int AS generation"
_INSERT = (
    "INSERT INTO saga_guard (saga_id, step, generation, op, reason, args_hash, result, origin, created_at)"
    f" SELECT {_KEY}, r->>3, r->>4, r->>5, r->>6, r->>7, %s FROM {_ROWS}"
    " WHERE NOT EXISTS (SELECT 1 FROM saga_watermark WHERE watermark > %s::float8)"
    " ON CONFLICT DO NOTHING RETURNING saga_id, step, generation, op"
)
_SELECT = (
    "SELECT g.saga_id, g.step, g.generation, g.op, g.reason, g.args_hash, g.result, g.origin"
    f" FROM (SELECT {_KEY} FROM {_ROWS}) k JOIN saga_guard g USING (saga_id, step, generation) FOR SHARE OF g"
)
_DELETE = (
    f"DELETE FROM saga_guard g USING (SELECT {_KEY}, r->>3 AS op FROM {_ROWS}) k"
    " WHERE (g.saga_id, g.step, g.generation, g.op) = (k.saga_id, k.step, k.generation, k.op)"
)
_STORE = (
    f"UPDATE saga_guard g SET result = k.result FROM (SELECT {_KEY}, r->>3 AS op, r->>4 AS result FROM {_ROWS}) k"
    " WHERE (g.saga_id, g.step, g.generation, g.op) = (k.saga_id, k.step, k.generation, k.op)"
)
_HELD = (
    f"UPDATE saga_outbox_row o SET status = %s FROM (SELECT {_KEY} FROM {_ROWS}) k"
    " WHERE (o.saga_id, o.step, o.generation) = (k.saga_id, k.step, k.generation) AND o.status = 'HELD'"
)


_KEPT = (
    "SELECT pg_catalog.string_agg(pg_catalog.format('pg_catalog.set_config(%%L, %%L, true)', name,"
    " pg_catalog.current_setting(name)), ', ' ORDER BY at)"
    " FROM pg_catalog.unnest(pg_catalog.string_to_array(%s, ',')) WITH ORDINALITY AS kept (name, at)"
)

_LOCK_SHARE = 1 / 8
"""The fraction of the time left that a chunk waits for a lock, before it looks for the items that do not need it: the
waits on the way from 500 items to a single one take two thirds of its time then."""


class PostgresChunk(PostgresTransaction):
    """All rows of the chunk in one statement."""

    _lock_share = _LOCK_SHARE

    own_settings: tuple[str, ...] = ()
    """The statements that let the settings of the transaction hold again, once they are noted."""

    async def insert_rows(self, rows: Sequence[RowInsert]) -> Sequence[bool]:
        keys = [(*_key(row.key), row.op) for row in rows]
        stored = self._stored_values
        values = [
            (
                *key,
                row.reason,
                row.args_hash,
                stored.encrypt_result(result_place(*key), row.result),
                stored.encrypt_origin(origin_place(*_key(row.key)), row.origin),
            )
            for key, row in zip(keys, rows, strict=True)
        ]
        results = await self._send(_INSERT, (self._limits.scheduled_at, _rows(values), self._limits.scheduled_at))
        won = set(rows_of(results[-1]))
        return [key in won for key in keys]

    async def read_rows(self, keys: Sequence[EntryKey]) -> Sequence[Mapping[str, GuardRow]]:
        await self.check_watermark()
        results = await self._send(_SELECT, (_rows([_key(key) for key in keys]),))
        stored: dict[tuple[str, str, int], dict[str, GuardRow]] = {}
        for saga_id, step, generation, op, reason, args_hash, result, origin in rows_of(results[-1]):
            clear = self._stored_values.decrypt_result(result_place(saga_id, step, generation, op), result)
            stored.setdefault((saga_id, step, generation), {})[op] = GuardRow(reason, args_hash, clear, origin)
        return [stored.get(_key(key), {}) for key in keys]

    async def delete_rows(self, rows: Sequence[tuple[EntryKey, str]]) -> None:
        await self._send(self._with_own_search_path(_DELETE), (_rows([(*_key(key), op) for key, op in rows]),))

    async def store(self, writes: Sequence[tuple[EntryKey, RowWrite]]) -> None:
        encrypt = self._stored_values.encrypt_result
        if stored := [
            (*_key(key), write.op, encrypt(result_place(*_key(key), write.op), write.result))
            for key, write in writes
            if write.result is not None
        ]:
            await self._send(self._with_own_search_path(_STORE), (_rows(stored),))
        for decision, status in HELD_EVENT_STATUS.items():
            if held := [_key(key) for key, write in writes if write.held == decision]:
                await self._send(self._with_own_search_path(_HELD), (status, _rows(held)))

    def new_session(self) -> SqlSession:
        """A session for one action: its errors concern no other one."""
        self.sql.used = True
        session = PostgresSqlSession(self._connection, self._raw)
        session.refusal = self.sql.refusal
        session.used = True
        return session

    async def note_settings(self) -> None:
        """Note the settings of the transaction, before an action may change them."""
        names: list[str] = list(KEPT_POSTGRESQL)
        if self._raw.info.server_version >= TRANSACTION_TIMEOUT_VERSION:
            names.append("transaction_timeout")
        [(settings,)] = rows_of((await self._send(_KEPT, (",".join(names),)))[-1])
        restored = f"SELECT {settings}"
        if not self._limits.read_only:
            restored += f", ({with_foreign_keys(self._raw.info.server_version, local=True)})"
        self.own_settings = ("RESET ALL", restored)

    async def reset_settings(self) -> None:
        """End what an action has set, so that it does not concern the next one."""
        if self.sql.used:
            await self._send("; ".join(self.own_settings), ())

    async def next_savepoint(self, *, first: bool) -> None:
        """Keep what was done since the last savepoint, and set a new one. Nothing that an item has set concerns the
        next one.
        """
        statements = ["SAVEPOINT saga_item"]
        if self.sql.used:
            statements = [*self.own_settings, *statements]
        if not first:
            statements = ["RELEASE SAVEPOINT saga_item", *statements]
        await self._send("; ".join(statements), ())

    async def back_to_savepoint(self) -> None:
        await self.roll_back_by_driver("ROLLBACK TO SAVEPOINT saga_item")

    async def run_block(self, block: str, items: tuple[str, str], answer: str) -> str:
        """Run a DO block in one round trip. ``items``: name and text of the setting that it reads.

        Returns the text of the setting ``answer``, which it has set. Raises psycopg's errors.
        """
        self.sql.check_allowed()
        self.sql.used = True
        text = block.replace("%", "%%")
        results = await self._send(
            f"SELECT pg_catalog.set_config(%s, %s, true); {text}; SELECT pg_catalog.current_setting(%s)",
            (*items, answer),
        )
        [(counts,)] = rows_of(results[-1])
        return counts

    @property
    def raw(self) -> Any:
        """The driver's connection, for statements in a pipeline."""
        self.sql.check_allowed()
        self.sql.used = True
        return self._raw


def _rows(values: Sequence[Any]) -> str:
    return encode_json(values).decode()


def _key(key: EntryKey) -> tuple[str, str, int]:
    return key.saga_id, key.entry, key.generation


class RowByRowChunk(SqlAlchemyTransaction):
    """A chunk whose entries run their own single statements, one after the other."""

    async def insert_rows(self, rows: Sequence[RowInsert]) -> Sequence[bool]:
        inserted = []
        for row in rows:
            self.address(row.key)
            written = await self.insert(
                row.op, row.reason, args_hash=row.args_hash, result=row.result, origin=row.origin
            )
            inserted.append(written)
        return inserted

    async def read_rows(self, keys: Sequence[EntryKey]) -> Sequence[Mapping[str, GuardRow]]:
        stored = []
        for key in keys:
            self.address(key)
            stored.append(await self.rows())
        return stored

    async def delete_rows(self, rows: Sequence[tuple[EntryKey, str]]) -> None:
        for key, op in rows:
            self.address(key)
            await self.delete(op)

    async def store(self, writes: Sequence[tuple[EntryKey, RowWrite]]) -> None:
        for key, write in writes:
            self.address(key)
            await self.store_row(write)

    def new_session(self) -> SqlSession:
        self.sql.used = True
        return SqlSession(self._connection)

    async def note_settings(self) -> None:
        """Actions change no settings here: SET is refused."""

    async def reset_settings(self) -> None:
        """Actions change no settings here."""

    async def next_savepoint(self, *, first: bool) -> None:
        if not first:
            await self._send("RELEASE SAVEPOINT saga_item")
        await self._send("SAVEPOINT saga_item")

    async def back_to_savepoint(self) -> None:
        await self._send("ROLLBACK TO SAVEPOINT saga_item")
        await self._read_warnings()


class MysqlChunk(RowByRowChunk, MysqlTransaction):
    """On MySQL and MariaDB."""

    _lock_share = _LOCK_SHARE

    async def next_savepoint(self, *, first: bool) -> None:
        await self._send("SAVEPOINT saga_item")


class SqliteChunk(RowByRowChunk, SqliteTransaction):
    """On SQLite."""


ChunkTransaction = PostgresChunk | MysqlChunk | SqliteChunk

_CLASSES = {"postgresql": PostgresChunk, "mysql": MysqlChunk, "mariadb": MysqlChunk, "sqlite": SqliteChunk}


async def begin_chunk(engine: AsyncEngine, key: EntryKey, limits: TransactionLimits) -> ChunkTransaction:
    """A transaction on a connection of the pool."""
    kind: Any = _CLASSES[engine.dialect.name]
    return cast("ChunkTransaction", await begin_transaction(engine, key, limits, kind))
