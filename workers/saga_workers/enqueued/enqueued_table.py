"""The rows of ``saga_enqueued`` in one database, as the process that delivers them reads and changes them.

Whoever writes the rows is not trusted: names are cut to a little more than they may have, and an input that is too
large is not read. A row that is not delivered stays, so its input is encrypted then if the project has a codec.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.enqueued.tables import DROPPED, NEW, REFUSED
from saga_activities.guard.stored_values import stored_values
from saga_activities.guard.tables import now_sql
from saga_activities.guard.unreadable_rows import UnreadableRow
from saga_activities.input_limits import MAX_ENQUEUED_BYTES, MAX_ENQUEUED_NAME
from saga_activities.value_places import enqueued_place
from saga_workers.enqueued.written_text import NotText, column_sql, column_text, key_sql
from sagas.input_limits import MAX_SAGA_ID_BYTES

WAITING_QUERY = f"SELECT 0 FROM saga_enqueued WHERE status = '{NEW}' LIMIT 1"
"""Returns a row if anything is to be delivered."""

_TIMEOUT = 15.0

_NAME = f"substr({{}}, 1, {MAX_ENQUEUED_NAME + 1})"
_ID = f"substr(saga_id, 1, {MAX_SAGA_ID_BYTES + 1})"
_KEY = f"coalesce({_NAME.format('order_key')}, {_ID}, uid)"

_HEADS = (
    "SELECT id, {key} AS order_key, coalesce({size}, 0) AS size FROM saga_enqueued "
    f"WHERE status = '{NEW}'{{without}} ORDER BY id LIMIT {{limit}}"
)
_READ = (
    "SELECT id, uid, {saga} AS saga, {saga_id} AS saga_id, {signal} AS signal_name, "
    f"CASE WHEN {{size}} <= {2 * MAX_ENQUEUED_BYTES} THEN {{input}} END AS input, coalesce({{size}}, 0) AS size, "
    f"created_at, {{now}} - created_at AS age FROM saga_enqueued WHERE status = '{NEW}' AND id IN ({{ids}})"
)
_DELETE = "DELETE FROM saga_enqueued WHERE id IN ({ids})"
_REFUSE = text(
    f"UPDATE saga_enqueued SET status = '{REFUSED}', reason = :reason, input = coalesce(:input, input) "
    f"WHERE id = :id AND status = '{NEW}'"
)
_NOTE = text(f"UPDATE saga_enqueued SET reason = :reason WHERE id IN :ids AND status = '{NEW}'").bindparams(
    bindparam("ids", expanding=True)
)
_PURGE = f"DELETE FROM saga_enqueued WHERE status = '{DROPPED}' AND dropped_at < {{now}} - {{retention}}"


class EnqueuedHead(NamedTuple):
    """A row that is to be delivered. Rows with equal ``key`` are delivered in the order of their ids."""

    id: int
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class EnqueuedRow:
    """``uid`` is unique, also among rows that were deleted. ``created_at`` is in seconds, by the clock of the database,
    and so is ``age``, when the row was read.

    ``input`` is None if it is null, too large, or if the row is ``unreadable`` for this reason: it was encrypted when
    the row was refused, or looks so, or a column is not UTF-8.
    """

    id: int
    uid: str
    saga: str | None
    saga_id: str | None
    signal: str | None
    input: str | None
    size: int
    created_at: float
    age: float
    unreadable: str = ""


class Enqueued(NamedTuple):
    """Rows of one status; ``oldest`` is the age of the oldest in seconds."""

    rows: int = 0
    oldest: float = 0.0


class EnqueuedTable:
    """The rows of one database. Every method raises SQLAlchemyError, and TimeoutError if it does not answer."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        # SQLite has octet_length() only in later versions.
        self._size = "length(CAST(input AS BLOB))" if engine.dialect.name == "sqlite" else "octet_length(input)"
        self._key = key_sql(_KEY, engine.dialect.name)
        texts = {"saga": _NAME.format("saga"), "saga_id": _ID, "signal": _NAME.format("signal_name"), "input": "input"}
        self._texts = {name: column_sql(sql, engine.dialect.name) for name, sql in texts.items()}

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        async with asyncio.timeout(_TIMEOUT), self.engine.connect() as connection:
            yield connection

    async def heads(self, ids: Collection[int], keys: Collection[str], limit: int) -> list[EnqueuedHead]:
        """The first rows that are to be delivered, without those with these ids and these keys."""
        without = f" AND id NOT IN ({_list(ids)})" if ids else ""
        if keys:
            without += f" AND {self._key} NOT IN :keys"
        query = text(_HEADS.format(key=self._key, without=without, limit=limit, size=self._size))
        if keys:
            query = query.bindparams(bindparam("keys", list(keys), expanding=True))
        async with self._connected() as connection:
            return [EnqueuedHead(*row) for row in await connection.execute(query)]

    async def read(self, ids: Collection[int]) -> dict[int, EnqueuedRow]:
        """By their ids, those that are still to be delivered."""
        async with self._connected() as connection:
            now = now_sql(self.engine.dialect.name)
            query = _READ.format(ids=_list(ids), size=self._size, now=now, **self._texts)
            rows = await connection.exec_driver_sql(query)
            return {row.id: self._decrypted(_readable(EnqueuedRow(*row))) for row in rows}

    def _decrypted(self, row: EnqueuedRow) -> EnqueuedRow:
        if row.unreadable:
            return replace(row, input=None)
        try:
            plain = stored_values(self.engine).decrypt_json(enqueued_place(row.uid), row.input)
        except UnreadableRow as error:
            return replace(row, input=None, unreadable=f"`input` cannot be read: {error}")
        return row if plain is None or plain == row.input else replace(row, input=plain, size=len(plain.encode()))

    async def delete(self, ids: Collection[int]) -> None:
        async with self._connected() as connection:
            await connection.exec_driver_sql(_DELETE.format(ids=_list(ids)))

    async def refuse(self, row: EnqueuedRow, reason: str) -> None:
        input = stored_values(self.engine).encrypt_json(enqueued_place(row.uid), row.input)
        async with self._connected() as connection:
            await connection.execute(_REFUSE, {"id": row.id, "reason": reason, "input": input})

    async def note(self, ids: Sequence[int], reason: str) -> None:
        """Record why the last attempt to deliver these rows has failed."""
        async with self._connected() as connection:
            await connection.execute(_NOTE, {"ids": list(ids), "reason": reason})

    async def purge(self, retention: float) -> None:
        """Delete the rows that were dropped so many seconds ago."""
        async with self._connected() as connection:
            now = now_sql(self.engine.dialect.name)
            await connection.exec_driver_sql(_PURGE.format(now=now, retention=float(retention)))

    async def counts(self) -> Mapping[str, Enqueued]:
        """Rows by status."""
        now = now_sql(self.engine.dialect.name)
        query = text(f"SELECT status, count(*), {now} - min(created_at) FROM saga_enqueued GROUP BY status")
        async with self._connected() as connection:
            rows = (await connection.execute(query)).all()
        return {status: Enqueued(count, max(0.0, float(oldest))) for status, count, oldest in rows}


def _readable(row: EnqueuedRow) -> EnqueuedRow:
    """The row, whose columns may have been read as bytes, with texts."""
    texts: dict[str, str | None] = {}
    unreadable = ""
    for name in ("saga", "saga_id", "signal", "input"):
        try:
            texts[name] = column_text(getattr(row, name))
        except NotText:
            texts[name] = None
            unreadable = f"`{'signal_name' if name == 'signal' else name}` is not UTF-8"
    return replace(row, **texts, unreadable=unreadable)


def _list(ids: Collection[int]) -> str:
    return ", ".join(str(int(id)) for id in ids)
