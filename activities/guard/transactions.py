"""Which transaction a database gets."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine

from activities.guard.address import Address
from activities.guard.postgresql import PostgresTransaction
from activities.guard.sqlalchemy_transaction import MysqlTransaction, SqliteTransaction
from activities.guard.transaction import Transaction

_KINDS = {
    "postgresql": PostgresTransaction,
    "mysql": MysqlTransaction,
    "mariadb": MysqlTransaction,
    "sqlite": SqliteTransaction,
}


async def begin(
    engine: AsyncEngine, address: Address, *, scheduled_at: float, deadline: float, isolation: str | None
) -> Transaction:
    """A transaction on a connection of the pool; nothing is sent before its first statement."""
    kind = _KINDS[engine.dialect.name]
    connection = await engine.connect()
    try:
        return await kind.start(connection, address, scheduled_at=scheduled_at, deadline=deadline, isolation=isolation)
    except BaseException:
        await connection.close()
        raise
