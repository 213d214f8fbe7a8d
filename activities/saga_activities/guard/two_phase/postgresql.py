"""Prepared transactions of PostgreSQL: PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED."""

from __future__ import annotations

from psycopg import errors, sql
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.postgresql import PostgresTransaction
from saga_activities.guard.tables import EntryKey
from saga_activities.guard.transaction import RowWrite
from saga_activities.guard.two_phase.participant import PreparedTransactionBusy, StoreResult
from saga_activities.guard.two_phase.transaction_id import postgres_transaction_id
from sagas.errors import InfrastructureError

_IS_PREPARED = text("SELECT 1 FROM pg_prepared_xacts WHERE gid = :gid AND database = current_database()")

_NO_SUCH_TRANSACTION = "42704"
_BUSY = "55006"


class PostgresPreparation(PostgresTransaction):
    """A transaction that ends with PREPARE TRANSACTION instead of COMMIT."""

    store_result: StoreResult

    async def commit(self, row_write: RowWrite | None) -> None:
        """Store the result outside the transaction, then prepare it. Raises :class:`LostCommit` as COMMIT does."""
        await self.store_result(None if row_write is None else row_write.result)
        self._final_statement = f"PREPARE TRANSACTION {_literal(self._entry_key).replace('%', '%%')}"
        try:
            await super().commit(None)
        except errors.ObjectNotInPrerequisiteState as error:
            raise InfrastructureError(
                f"{str(error).splitlines()[0]}: set max_prepared_transactions of the server, and restart it"
            ) from error
        except errors.DuplicateObject as error:
            raise InfrastructureError(
                f"{str(error).splitlines()[0]}: another database of the same server has a transaction of this step"
            ) from error


class PostgresPreparedTransactions:
    """The prepared transactions of one database; they are ended by any connection of the same user."""

    transaction_class = PostgresPreparation

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def is_prepared(self, entry_key: EntryKey) -> bool:
        async with self._engine.connect() as connection:
            result = await connection.execute(_IS_PREPARED, {"gid": postgres_transaction_id(entry_key)})
            return result.first() is not None

    async def end(self, entry_key: EntryKey, *, commit: bool) -> bool:
        """Commit it or roll it back; False: there is none (any more). Raises DBAPIError, InfrastructureError."""
        statement = f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED {_literal(entry_key)}"
        async with self._engine.connect() as connection:
            try:
                await connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
            except DBAPIError as error:
                state = getattr(error.orig, "sqlstate", None)
                if state == _NO_SUCH_TRANSACTION:
                    return False
                if state == _BUSY:
                    raise PreparedTransactionBusy("another connection is ending the prepared transaction") from error
                raise
        return True


def _literal(entry_key: EntryKey) -> str:
    return sql.Literal(postgres_transaction_id(entry_key)).as_string()
