"""The guard's transaction on SQLite."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from saga_activities.guard.sqlalchemy_transaction import (
    GUARD_COLUMNS,
    GUARD_PLACEHOLDERS,
    NOT_BELOW_WATERMARK,
    SELECT_DO,
    SELECT_ROWS_WITHOUT_LOCK,
    SqlAlchemyTransaction,
)


class SqliteTransaction(SqlAlchemyTransaction):
    """BEGIN IMMEDIATE takes the write lock at once, so the rows read cannot change any more.

    A transaction that only reads takes no lock. SQLite has no such transactions, but such connections.
    """

    _insert_first_row = text(
        f"INSERT INTO saga_guard ({GUARD_COLUMNS}) SELECT {GUARD_PLACEHOLDERS} WHERE {NOT_BELOW_WATERMARK} "
        "ON CONFLICT DO NOTHING"
    )
    _insert_row = text(f"INSERT INTO saga_guard ({GUARD_COLUMNS}) VALUES ({GUARD_PLACEHOLDERS}) ON CONFLICT DO NOTHING")
    _select_rows = SELECT_ROWS_WITHOUT_LOCK
    _lock_do = text(SELECT_DO)

    async def _begin(self) -> None:
        await self._connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(self._seconds_left() * 900)}")
        if self._limits.read_only:
            await self._connection.exec_driver_sql("PRAGMA query_only = ON")
        await self._send("BEGIN" if self._limits.read_only else "BEGIN IMMEDIATE")

    async def rollback(self) -> None:
        await self.sql.close()
        if self._limits.read_only and not self._connection.invalidated:
            try:
                await self._connection.exec_driver_sql("PRAGMA query_only = OFF")
            except SQLAlchemyError:
                await self._abandon()  # the next transaction on it could not write
        await super().rollback()
