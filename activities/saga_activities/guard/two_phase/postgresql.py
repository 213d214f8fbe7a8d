"""Prepared transactions of PostgreSQL: PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED."""

from __future__ import annotations

from psycopg import errors, sql
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.database_errors import message_of
from saga_activities.guard.postgresql import PostgresTransaction
from saga_activities.guard.transaction import RowWrite
from saga_activities.guard.two_phase.participant import PreparedTransactionBusy, StoreResult
from saga_activities.guard.two_phase.transaction_id import TransactionId
from sagas.errors import InfrastructureError

_IS_PREPARED = text(
    "SELECT 1 FROM pg_catalog.pg_prepared_xacts"
    " WHERE gid = :gid AND database = current_database() AND owner = current_user"
)

_NO_SUCH_TRANSACTION = "42704"
_BUSY = "55006"


class PostgresPreparation(PostgresTransaction):
    """A transaction that ends with PREPARE TRANSACTION instead of COMMIT."""

    store_result: StoreResult
    transaction_id: TransactionId

    async def commit(self, row_write: RowWrite | None) -> None:
        """Store the result outside the transaction, then prepare it. Raises :class:`LostCommit` as COMMIT does."""
        await self.store_result(None if row_write is None else row_write.result)
        self._final_statement = f"PREPARE TRANSACTION {_literal(self.transaction_id).replace('%', '%%')}"
        try:
            await super().commit(None)
        except errors.ObjectNotInPrerequisiteState as error:
            raise InfrastructureError(
                f"{message_of(error)}: set max_prepared_transactions of the server, and restart it"
            ) from error
        except errors.DuplicateObject as error:
            raise InfrastructureError(
                f"{message_of(error)}: another role has prepared a transaction under the id of this step; "
                "roll it back, and keep saga_guard from other roles"
            ) from error


class PostgresPreparedTransactions:
    """The prepared transactions of one database and of the role of its connections, which alone may end them.

    A superuser may end those of every role, so their owner is compared before.
    """

    transaction_class = PostgresPreparation

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def is_prepared(self, id: TransactionId) -> bool:
        async with self._engine.connect() as connection:
            return await _is_prepared_by_role(connection, id)

    async def end(self, id: TransactionId, *, commit: bool) -> bool:
        """Commit it or roll it back; False: there is none (any more). Raises DBAPIError, InfrastructureError."""
        statement = f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED {_literal(id)}"
        async with self._engine.connect() as connection:
            if not await _is_prepared_by_role(connection, id):
                return False
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


async def _is_prepared_by_role(connection: AsyncConnection, id: TransactionId) -> bool:
    return (await connection.execute(_IS_PREPARED, {"gid": id.postgres})).first() is not None


def _literal(id: TransactionId) -> str:
    return sql.Literal(id.postgres).as_string()
