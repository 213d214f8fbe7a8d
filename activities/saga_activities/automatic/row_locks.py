"""Row locks: a row that a saga has changed with `compensate: auto` belongs to that saga until its final state.

Without them another saga could build on a change that is undone later. They are rows of ``saga_row_lock``, written in
the transaction of the change, so nothing waits inside a transaction: an attempt that meets the lock of another saga is
rolled back, and the state machine repeats it until `locks.wait` is over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.automatic.table_access import Key, TableAccess
from saga_activities.guard.session import SqlSession
from saga_activities.guard.tables import now_sql, row_lock_table
from sagas.errors import RowLocked
from sagas.protocol.locks import owner_id

_BATCH = 500


@dataclass(frozen=True, slots=True)
class LockedRow:
    """A row: its table (``TableShape.quoted``), its primary key, and what people call it."""

    table: str
    key: Key
    label: str = field(compare=False)

    @property
    def hash(self) -> str:
        """The key of the row in the engine's tables, whatever its length."""
        return hashlib.sha256(f"{self.table}\0{self.key_text}".encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def key_text(self) -> str:
        return json.dumps(list(self.key), separators=(",", ":"))


def locked_row(table: TableAccess, key: Key) -> LockedRow:
    """The row of ``table`` with this key."""
    shown = ", ".join(f"{name}={table.shown(text)}" for name, text in zip(table.shape.key, key, strict=True))
    return LockedRow(table.shape.quoted, key, f"the row {shown} of {table.shape.name}")


async def acquire(sql: SqlSession, rows: Sequence[LockedRow], saga_id: str) -> None:
    """Lock rows for the root saga of ``saga_id``. Raises :class:`RowLocked` if another saga has one of them."""
    owner = owner_id(saga_id)
    by_hash = {row.hash: row for row in rows}
    hashes = sorted(by_hash)
    values: list[dict[str, Any]] = [
        {"row_hash": one, "table_name": by_hash[one].table, "row_key": by_hash[one].key_text, "saga_id": owner}
        for one in hashes
    ]
    if not values:
        return
    await sql.run(_insert_statement(sql.dialect), values)
    for start in range(0, len(hashes), _BATCH):
        chosen = sa.select(row_lock_table).where(row_lock_table.c.row_hash.in_(hashes[start : start + _BATCH]))
        # A locking read sees what the insert has met, whatever the isolation level.
        for row in await sql.all(chosen.with_for_update(read=True)):
            if row["saga_id"] != owner:
                raise RowLocked(by_hash[row["row_hash"]].label, row["saga_id"], row["acquired_at"])


def _insert_statement(dialect: str) -> str:
    columns = "(row_hash, table_name, row_key, saga_id, acquired_at)"
    values = f"(:row_hash, :table_name, :row_key, :saga_id, {now_sql(dialect)})"
    if dialect in ("mysql", "mariadb"):
        return f"INSERT IGNORE INTO saga_row_lock {columns} VALUES {values}"
    return f"INSERT INTO saga_row_lock {columns} VALUES {values} ON CONFLICT DO NOTHING"


async def release(engine: AsyncEngine, owner: str) -> None:
    """Release all rows of a root saga in one database."""
    async with engine.connect() as connection:
        await connection.execute(sa.delete(row_lock_table).where(row_lock_table.c.saga_id == owner))
