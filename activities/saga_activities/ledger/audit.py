"""The record of who has seen the `x-sensitive` values of a saga in clear, and who had them forgotten."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.tables import audit_table
from sagas.definition.times import format_timestamp
from sagas.protocol.saga_view import Access, AccessView

_AUDIT = audit_table.c
_SHOWN = 100


async def record_access(engine: AsyncEngine, saga_id: str, what: Access, *, who: str, reason: str | None) -> None:
    """Record an access before it happens."""
    row = {"saga_id": saga_id, "what": what, "at": datetime.now(UTC), "who": who, "reason": reason}
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(sa.insert(audit_table).values(row))


async def read_accesses(engine: AsyncEngine, saga_id: str) -> list[AccessView]:
    """The newest hundred accesses to a saga, the oldest of them first."""
    query = sa.select(_AUDIT.what, _AUDIT.at, _AUDIT.who, _AUDIT.reason).where(_AUDIT.saga_id == saga_id)
    async with engine.connect() as connection:
        rows = (await connection.execute(query.order_by(_AUDIT.id.desc()).limit(_SHOWN))).all()
    return [
        AccessView(at=format_timestamp(row.at.timestamp()) or "", what=row.what, who=row.who, reason=row.reason)
        for row in reversed(rows)
    ]


async def complete_forgetting(engine: AsyncEngine, saga_id: str) -> None:
    """Record that all values of the saga were replaced that can be."""
    open_rows = sa.and_(_AUDIT.saga_id == saga_id, _AUDIT.what == "forget", _AUDIT.completed_at.is_(None))
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(sa.update(audit_table).where(open_rows).values(completed_at=datetime.now(UTC)))


async def was_forgotten(engine: AsyncEngine, saga_id: str) -> bool:
    """True if all values of the saga were replaced before."""
    query = sa.select(_AUDIT.id).where(_AUDIT.saga_id == saga_id, _AUDIT.completed_at.is_not(None)).limit(1)
    async with engine.connect() as connection:
        return (await connection.execute(query)).first() is not None
