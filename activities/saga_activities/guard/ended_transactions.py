"""Finds out whether the database has ended the transaction of an attempt by itself.

SQLite does so for ON CONFLICT ROLLBACK, RAISE(ROLLBACK) and a full disk, InnoDB for a deadlock. The connections are in
autocommit mode, so each later statement would be committed at once, without a row of the guard and without an undo.
"""

from __future__ import annotations

from typing import Any, cast

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.ext.asyncio import AsyncConnection

from sagas.errors import SagaError


class TransactionEnded(SagaError):
    """The statement was not sent: an error of an earlier one has ended the transaction of the attempt."""

    def __init__(self) -> None:
        super().__init__(
            "the error of an earlier statement has ended the transaction of this attempt, so no further statement is"
            " sent: let the action end with that error"
        )


class TransactionVanished(SagaError):
    """The transaction was open before a statement and is not after it, although the statement has succeeded.

    Nobody can say what was rolled back, and the statement may have been committed alone.
    """

    def __init__(self) -> None:
        super().__init__(
            "the transaction of this attempt was no longer open after a statement that succeeded, so the statement may"
            " have been committed alone: let a proxy between the worker and the database keep the session of a"
            " connection, and look whether the effect is there"
        )


def is_open(connection: AsyncConnection) -> bool:
    """Return whether the last answer of the database showed an open transaction. Nothing is sent."""
    if connection.closed or connection.invalidated:
        return False
    raw: Any = cast("SyncConnection", connection.sync_connection).connection.driver_connection
    match connection.dialect.name:
        case "postgresql":
            return not raw.closed and raw.info.transaction_status != TransactionStatus.IDLE
        case "sqlite":
            return raw.in_transaction
        case _:
            return raw.get_transaction_status()


async def is_open_after_error(connection: AsyncConnection) -> bool:
    """Return whether a transaction is open after the error of a statement.

    An error of MySQL and MariaDB does not tell, so the next answer is requested.
    """
    if connection.dialect.name not in ("mysql", "mariadb"):
        return is_open(connection)
    try:
        await connection.exec_driver_sql("DO 0")
    except Exception:  # noqa: BLE001 - the connection is lost, and its transaction with it
        return False
    return is_open(connection)
