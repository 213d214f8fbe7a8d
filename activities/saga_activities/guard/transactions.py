"""Which transaction a database gets."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.address import Address
from saga_activities.guard.postgresql import PostgresTransaction
from saga_activities.guard.sqlalchemy_transaction import MysqlTransaction, SqliteTransaction
from saga_activities.guard.transaction import Transaction

_KINDS = {
    "postgresql": PostgresTransaction,
    "mysql": MysqlTransaction,
    "mariadb": MysqlTransaction,
    "sqlite": SqliteTransaction,
}


async def begin(
    engine: AsyncEngine,
    address: Address,
    *,
    scheduled_at: float,
    deadline: float,
    isolation: str | None,
    idle_limit: float | None = None,
) -> Transaction:
    """A transaction on a connection of the pool; nothing is sent before its first statement. ``idle_limit`` (seconds)
    ends it when nothing is said for so long; SQLite has no server that could."""
    kind = _KINDS[engine.dialect.name]
    connection = await engine.connect()
    try:
        return await kind.start(
            connection,
            address,
            scheduled_at=scheduled_at,
            deadline=deadline,
            isolation=isolation,
            idle_limit=idle_limit,
        )
    except BaseException:
        await connection.close()
        raise
