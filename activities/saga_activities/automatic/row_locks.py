"""Row locks: a row that a saga has changed with `compensate: auto` belongs to that saga until its final state.

Without them another saga could build on a change that is undone later. They are rows of ``saga_row_lock``, written in
the transaction of the change, so nothing waits inside a transaction: an attempt that runs into the lock of another saga
is rolled back, and the state machine repeats it until `locks.wait` is over.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.automatic.table_access import Key, TableAccess
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.tables import now_sql, row_lock_table
from saga_activities.value_places import lock_place
from sagas.definition.times import format_timestamp
from sagas.errors import RowLocked
from sagas.portions import in_portions
from sagas.protocol.locks import owner_id
from sagas.protocol.origin import same_owner
from sagas.sql_text.row_changes import NotImageable
from sagas.text.exact_json import encode_json

_PORTION = 500
_MYSQL = ("mysql", "mariadb")


@dataclass(frozen=True, slots=True)
class LockedRow:
    """A row: its table (``TableShape.quoted``), the hash of its canonical key, and what people call it.

    ``hash`` is the key of the row in the engine's tables, whatever the length of its own: rows of one table that are
    equal for the database have the same one. ``key_text`` is the key as JSON: each column with its text, in the order
    of the key.
    """

    table: str
    hash: str
    key: Key = field(compare=False)
    label: str = field(compare=False)
    lock_table: str = field(compare=False)
    key_text: str = field(compare=False)


def locked_row(table: TableAccess, key: Key) -> LockedRow:
    """The row of ``table`` with this key."""
    shape = table.shape
    label = f"the row {table.shown_key(key)} of {shape.name}"
    key_text = encode_json(dict(zip(shape.key, key.texts, strict=True))).decode()
    return LockedRow(shape.quoted, key.hash, key, label, shape.lock_table, key_text)


OWN_TABLE = "saga_row_lock"
"""The table of the connection: it lists all rows that sagas have locked through it."""


async def acquire(
    sql: SqlSession,
    rows: Sequence[LockedRow],
    entry_key: EntryKey,
    passed: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> None:
    """Lock rows for the root saga of an entry. Raises :class:`RowLocked` if another saga has one of them, whatever its
    id, but for the hashes of rows in ``passed`` for this other saga.

    A row of another schema is also locked in the table of that schema, where the connections to it see the lock.
    Raises :class:`NotImageable` if the saga has locked a row through a connection to another schema: the changes of a
    row are numbered in one table of images.
    """
    owner = owner_id(entry_key.saga_id)
    by_hash = {row.hash: row for row in rows}
    for lock_table in [OWN_TABLE, *sorted({row.lock_table for row in rows} - {OWN_TABLE})]:
        hashes = sorted(hash for hash, row in by_hash.items() if lock_table in (OWN_TABLE, row.lock_table))
        values: list[dict[str, Any]] = [
            {
                "row_hash": row_hash,
                "table_name": by_hash[row_hash].table,
                "row_key": sql.stored_values.encrypt_json(lock_place(row_hash), by_hash[row_hash].key_text),
                "saga_id": owner,
                "saga_start": entry_key.start,
            }
            for row_hash in hashes
        ]
        if values:
            await sql.run(_insert_statement(sql.dialect, lock_table), values)
        for portion in in_portions(hashes, _PORTION):
            parameters = {f"hash{index}": hash for index, hash in enumerate(portion)}
            for row in await sql.all(_select_statement(sql.dialect, lock_table, len(portion)), parameters):
                if row["saga_id"] != owner or not same_owner(row["saga_start"], entry_key.start):
                    if row["row_hash"] in passed.get(row["saga_id"], ()):
                        continue
                    since = format_timestamp(row["acquired_at"]) or ""
                    raise RowLocked(by_hash[row["row_hash"]].label, row["saga_id"], since)
                if row["image_schema"] != row["own_schema"]:
                    raise NotImageable(
                        f"this saga has changed {by_hash[row['row_hash']].label} through a connection to"
                        f" {row['image_schema']}, and the order of changes through several connections is not known:"
                        " change the rows of this table through one of them"
                    )


def _insert_statement(dialect: str, lock_table: str) -> str:
    columns = "(row_hash, table_name, row_key, saga_id, saga_start, acquired_at, image_schema)"
    values = f"(:row_hash, :table_name, :row_key, :saga_id, :saga_start, {now_sql(dialect)}, {own_schema(dialect)})"
    # INSERT IGNORE would cost a further request for its warnings.
    exists = "ON DUPLICATE KEY UPDATE row_hash = row_hash" if dialect in _MYSQL else "ON CONFLICT DO NOTHING"
    return f"INSERT INTO {lock_table} {columns} VALUES {values} {exists}"


def _select_statement(dialect: str, lock_table: str, count: int) -> str:
    """A locking read, which sees the row that the insert ran into, whatever the isolation level."""
    locking = "" if dialect == "sqlite" else "LOCK IN SHARE MODE" if dialect in _MYSQL else "FOR SHARE"
    hashes = ", ".join(f":hash{index}" for index in range(count))
    columns = f"row_hash, saga_id, saga_start, acquired_at, image_schema, {own_schema(dialect)} AS own_schema"
    return f"SELECT {columns} FROM {lock_table} WHERE row_hash IN ({hashes}) {locking}"


def own_schema(dialect: str) -> str:
    """The schema with the images of this connection."""
    if dialect == "postgresql":
        return "(SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('saga_image')::oid)"
    return "database()" if dialect in _MYSQL else "'main'"


async def release(engine: AsyncEngine, owner: str, start: str = "") -> None:
    """Release all rows of a root saga that it has locked through one connection.

    ``start``: what tells it from others with its id, which keep theirs; empty: all rows of the id.
    """
    mine = row_lock_table.c.saga_id == owner
    if start:
        mine &= row_lock_table.c.saga_start.in_(("", start))
    async with engine.connect() as connection:
        tables = (await connection.scalars(sa.select(row_lock_table.c.table_name).where(mine).distinct())).all()
        # Its own list is deleted last: a release that is interrupted is repeated.
        for lock_table in sorted({lock_name for table in tables if (lock_name := _other_lock_table(table))}):
            if await _exists(connection, lock_table):
                await connection.execute(sa.text(_DELETE.format(lock_table)), {"owner": owner, "start": start})
        await connection.execute(sa.delete(row_lock_table).where(mine))


_DELETE = "DELETE FROM {} WHERE saga_id = :owner AND (:start = '' OR saga_start IN ('', :start))"
_SCHEMA = re.compile(r"""("(?:[^"]|"")+"|`(?:[^`]|``)+`)\.""")


def _other_lock_table(table: str) -> str | None:
    """The table of row locks in the schema of ``table``; None on SQLite."""
    schema = _SCHEMA.match(table)
    return None if schema is None else f"{schema.group(1)}.{OWN_TABLE}"


async def _exists(connection: AsyncConnection, lock_table: str) -> bool:
    schema = lock_table[1 : -len(OWN_TABLE) - 2]
    quote = lock_table[0]
    tables = await connection.execute(
        sa.text("SELECT 1 FROM information_schema.tables WHERE table_schema = :schema AND table_name = :name"),
        {"schema": schema.replace(quote * 2, quote), "name": OWN_TABLE},
    )
    return tables.first() is not None
