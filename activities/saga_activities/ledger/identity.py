"""The identity of a ledger, with which workers mark the effects of sagas whose ends they write to it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.tables import outbox_home_table
from sagas.text.digests import sha256_hex

_HOME = sa.select(outbox_home_table.c.home).where(outbox_home_table.c.id == 1)
_LENGTH = 8
"""Characters, few because each effect has them: they tell the ledgers of a project apart."""


async def read_ledger_id(engine: AsyncEngine) -> str:
    """A short digest of the identity of its database, which is the same whatever URL leads there. Raises
    SQLAlchemyError.
    """
    async with engine.connect() as connection:
        return sha256_hex((await connection.execute(_HOME)).scalar_one())[:_LENGTH]
