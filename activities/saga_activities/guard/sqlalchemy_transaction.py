"""The part of the guard's transaction that MySQL, MariaDB and SQLite share, through SQLAlchemy.

The connections are in autocommit mode and this file sends BEGIN and COMMIT itself, as on PostgreSQL: an action's
statement can never open or end a transaction of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from sqlalchemy import CursorResult, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.database_errors import (
    STATEMENT_NOTE,
    classify_database_error,
    is_lock_timeout,
    message_of,
)
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.stored_values import stored_values
from saga_activities.guard.transaction import (
    HELD_EVENT_STATUS,
    BelowWatermark,
    GuardRow,
    LostCommit,
    RowLockTimeout,
    RowReason,
    RowWrite,
    TransactionLimits,
)
from saga_activities.value_places import ValuePlace, origin_place, result_place

GUARD_COLUMNS = "saga_id, step, generation, op, reason, args_hash, result, origin, created_at"
GUARD_PLACEHOLDERS = ":saga_id, :step, :generation, :op, :reason, :args_hash, :result, :origin, :created_at"
NOT_BELOW_WATERMARK = "NOT EXISTS (SELECT 1 FROM saga_watermark WHERE watermark > :created_at)"
_KEY_CONDITION = "saga_id = :saga_id AND step = :step AND generation = :generation"

_SELECT_BELOW_WATERMARK = text("SELECT 1 FROM saga_watermark WHERE watermark > :created_at")
SELECT_ROWS = f"SELECT op, reason, args_hash, result, origin FROM saga_guard WHERE {_KEY_CONDITION}"
SELECT_ROWS_WITHOUT_LOCK = text(SELECT_ROWS)
SELECT_DO = f"SELECT 1 FROM saga_guard WHERE {_KEY_CONDITION} AND op = 'do'"
_REFUSE_DO = text(f"UPDATE saga_guard SET reason = 'undo' WHERE {_KEY_CONDITION} AND op = 'do'")
_DELETE_ROW = text(f"DELETE FROM saga_guard WHERE {_KEY_CONDITION} AND op = :op")
_UPDATE_RESULT = text(f"UPDATE saga_guard SET result = :result WHERE {_KEY_CONDITION} AND op = :op")
_UPDATE_HELD_EVENTS = text(f"UPDATE saga_outbox SET status = :status WHERE {_KEY_CONDITION} AND status = 'HELD'")


class SqlAlchemyTransaction:
    """The part of a guard transaction that MySQL, MariaDB and SQLite share; subclasses define the statements that
    differ.
    """

    _insert_first_row: ClassVar[Any]
    _insert_row: ClassVar[Any]
    _select_rows: ClassVar[Any]
    _lock_do: ClassVar[Any]

    def __init__(
        self,
        connection: AsyncConnection,
        entry_key: EntryKey,
        limits: TransactionLimits,
    ) -> None:
        self.sql = SqlSession(connection)
        self.answered = False
        self.kept_changes = False
        self._connection = connection
        self._stored_values = stored_values(connection.engine)
        self.address(entry_key)
        self._limits = limits
        self._interrupted = False

    @property
    def unanswered(self) -> bool:
        return self._interrupted or self.sql.unanswered

    @classmethod
    async def start(cls, connection: AsyncConnection, entry_key: EntryKey, limits: TransactionLimits) -> Self:
        return cls(connection, entry_key, limits)

    def address(self, entry_key: EntryKey) -> None:
        """The following statements concern the rows of this entry."""
        self._key_values = entry_key.values
        self._entry_key = entry_key

    async def insert(
        self,
        op: str,
        reason: RowReason,
        *,
        args_hash: str | None = None,
        result: str | None = None,
        origin: str | None = None,
    ) -> bool:
        opened = self.answered
        if not opened:
            await self._begin()
        row = {**self._key_values, "op": op, "reason": reason, "args_hash": args_hash}
        place = origin_place(self._entry_key.saga_id, self._entry_key.entry, self._entry_key.generation)
        row["origin"] = self._stored_values.encrypt_origin(place, origin)
        row["result"] = self._stored_values.encrypt_result(self._place(op), result)
        statement = self._insert_row if opened else self._insert_first_row
        return (await self._send(statement, {**row, "created_at": self._limits.scheduled_at})).rowcount == 1

    async def check_watermark(self) -> None:
        if not self.answered:
            await self._begin()
        if (await self._send(_SELECT_BELOW_WATERMARK, {"created_at": self._limits.scheduled_at})).first() is not None:
            raise BelowWatermark()

    async def rows(self, *, locked: bool = True) -> Mapping[str, GuardRow]:
        await self.check_watermark()
        statement = self._select_rows if locked else SELECT_ROWS_WITHOUT_LOCK
        rows = (await self._send(statement, self._key_values)).mappings()
        return {
            row["op"]: GuardRow(
                row["reason"],
                row["args_hash"],
                self._stored_values.decrypt_result(self._place(row["op"]), row["result"]),
                row["origin"],
            )
            for row in rows
        }

    async def lock_do(self) -> None:
        if not self.answered:
            await self._begin()
        try:
            await self._send(self._lock_do, self._key_values)
        except DBAPIError as error:
            if is_lock_timeout(error):
                raise RowLockTimeout(message_of(error)) from error
            raise

    async def refuse_do(self) -> None:
        await self._send(_REFUSE_DO, self._key_values)

    async def delete(self, op: str) -> None:
        await self._send(_DELETE_ROW, {**self._key_values, "op": op})

    async def store_row(self, row_write: RowWrite) -> None:
        """Store what belongs to the row of an operation."""
        if row_write.result is not None:
            result = self._stored_values.encrypt_result(self._place(row_write.op), row_write.result)
            await self._send(_UPDATE_RESULT, {**self._key_values, "op": row_write.op, "result": result})
        if row_write.held is not None:
            await self._send(_UPDATE_HELD_EVENTS, {**self._key_values, "status": HELD_EVENT_STATUS[row_write.held]})

    async def commit(self, row_write: RowWrite | None) -> None:
        if row_write is not None:
            await self.store_row(row_write)
        await self._send_last("COMMIT")

    async def _send_last(self, statement: str) -> None:
        """Send the statement that ends the transaction. Raises :class:`LostCommit` if its answer is lost."""
        try:
            await self._send(statement)
        except SQLAlchemyError as error:
            classified = classify_database_error(error)
            if classified is not None and classified.connection_lost:
                raise LostCommit(message_of(error)) from error
            error.add_note(f"{STATEMENT_NOTE}{statement}")
            raise

    async def rollback(self) -> None:
        await self.sql.close()
        if self.unanswered or self._connection.invalidated:  # SQLAlchemy would send ROLLBACK on a new connection
            await self._abandon()
        else:
            try:
                await self._connection.exec_driver_sql("ROLLBACK")
                await self._read_warnings()
                await self._clean()
            except SQLAlchemyError:
                if self.answered:
                    await self._abandon()  # the connection is gone, and its transaction with it
        await self._connection.close()

    async def release(self) -> None:
        await self.sql.close()
        try:
            await self._clean()
        except SQLAlchemyError:
            await self._abandon()
        await self._connection.close()

    async def _read_warnings(self) -> None:
        """Find out whether ROLLBACK has left changes of an action."""

    async def _clean(self) -> None:
        """End what a statement of an action has left in the session; SQLite keeps nothing there."""

    async def _begin(self) -> None:
        """Send BEGIN with the limits of the attempt."""
        raise NotImplementedError

    async def _abandon(self) -> None:
        """Discard the connection: a statement on it was interrupted."""
        if not self._connection.invalidated:  # SQLAlchemy may have seen the cancellation first
            await self._connection.invalidate()

    def _place(self, op: str) -> ValuePlace:
        return result_place(self._entry_key.saga_id, self._entry_key.entry, self._entry_key.generation, op)

    def _seconds_left(self) -> float:
        return max(0.05, self._limits.deadline - time.time())

    async def _send(self, statement: Any, values: Mapping[str, Any] | None = None) -> CursorResult[Any]:
        self._interrupted = True  # until a result or an error arrives
        try:
            if isinstance(statement, str):
                result = await self._connection.exec_driver_sql(statement)
            else:
                result = await self._connection.execute(statement, values)
        except SQLAlchemyError:
            self._interrupted = False
            raise
        self._interrupted = False
        self.answered = True
        return result
