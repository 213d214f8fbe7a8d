"""XA transactions of MySQL and MariaDB: XA START … END, PREPARE, COMMIT, ROLLBACK, RECOVER."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.mysql import MysqlTransaction
from saga_activities.guard.transaction import RowWrite
from saga_activities.guard.two_phase.participant import PreparedTransactionBusy, StoreResult
from saga_activities.guard.two_phase.transaction_id import TransactionId, XaId
from sagas.errors import InfrastructureError

_UNKNOWN_ID = 1397  # XAER_NOTA
_DUPLICATE_ID = 1440  # XAER_DUPID


class MysqlPreparation(MysqlTransaction):
    """An XA transaction that ends with XA PREPARE.

    The session that has prepared it can do nothing else (MariaDB, and MySQL before 8.0.29), and no other session can
    end it before the session is closed (MariaDB). So the connection is closed afterwards.
    """

    store_result: StoreResult
    transaction_id: TransactionId

    async def commit(self, row_write: RowWrite | None) -> None:
        """Store the result outside the transaction, then prepare it. Raises :class:`LostCommit` as COMMIT does."""
        await self.store_result(None if row_write is None else row_write.result)
        await self._send(f"XA END {self.transaction_id.xa.sql}")
        await self._send_last(f"XA PREPARE {self.transaction_id.xa.sql}")

    async def release(self) -> None:
        await self.sql.close()
        await self._connection.invalidate()
        await self._connection.close()

    async def rollback(self) -> None:
        """Close the connection, which rolls back what is not prepared."""
        await self.sql.close()
        await self._abandon()
        await self._connection.close()

    async def _begin(self) -> None:
        self._start = f"XA START {self.transaction_id.xa.sql}"
        try:
            await super()._begin()
        except DBAPIError as error:
            if _number(error) == _DUPLICATE_ID:
                raise InfrastructureError("another attempt of this step is still running") from error
            raise


class MysqlPreparedTransactions:
    """The prepared XA transactions of one server: every account may end those of every other."""

    transaction_class = MysqlPreparation

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def is_prepared(self, id: TransactionId) -> bool:
        async with self._engine.connect() as connection:
            return id.xa in await recover(connection)

    async def end(self, id: TransactionId, *, commit: bool) -> bool:
        """Commit it or roll it back; False: there is none (any more). Raises DBAPIError, InfrastructureError."""
        async with self._engine.connect() as connection:
            try:
                await connection.exec_driver_sql(f"XA {'COMMIT' if commit else 'ROLLBACK'} {id.xa.sql}")
            except DBAPIError as error:
                if _number(error) != _UNKNOWN_ID:
                    raise
                if id.xa in await recover(connection):
                    raise PreparedTransactionBusy("the connection that has prepared it is still open") from error
                return False
        return True


async def recover(connection: AsyncConnection) -> set[XaId]:
    """The prepared XA transactions of the server. MySQL 8 requires the privilege XA_RECOVER_ADMIN for it."""
    if getattr(connection.dialect, "is_mariadb", False):
        rows = await connection.exec_driver_sql("XA RECOVER FORMAT='SQL'")
        return {xa_id for row in rows.mappings() if (xa_id := _from_sql(str(row["data"]))) is not None}
    rows = await connection.exec_driver_sql("XA RECOVER CONVERT XID")
    return {_from_hex(*row) for row in rows}


def _from_hex(format: int, gtrid_length: int, bqual_length: int, data: Any) -> XaId:
    """The form of MySQL: `0x` and the hexadecimal digits of both parts."""
    parts = bytes.fromhex(str(data).removeprefix("0x"))
    return XaId(parts[:gtrid_length], parts[gtrid_length : gtrid_length + bqual_length], format)


_SQL_PART = r"(?:X'(?P<{0}_hex>[0-9a-fA-F]*)'|'(?P<{0}>[^']*)')"
_SQL_FORM = re.compile(f"{_SQL_PART.format('gtrid')}(?:,{_SQL_PART.format('bqual')})?(?:,(?P<format>[0-9]+))?")


def _from_sql(form: str) -> XaId | None:
    """The form of MariaDB: the id as XA statements take it, each part in hexadecimal unless it is printable."""
    match = _SQL_FORM.fullmatch(form.strip())
    if match is None:
        return None

    def part(name: str) -> bytes:
        digits = match[f"{name}_hex"]
        return (match[name] or "").encode() if digits is None else bytes.fromhex(digits)

    return XaId(part("gtrid"), part("bqual"), int(match["format"] or 1))


def _number(error: DBAPIError) -> int | None:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None
