"""What waits in an outbox, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.clock import now_sql
from saga_activities.outbox import HELD, NEW, REFUSED

_WAITING = """
SELECT status, shard, COUNT(*) AS events, {now} - MIN(created_at) AS oldest
FROM saga_outbox WHERE status IN ('{new}', '{held}', '{refused}') GROUP BY status, shard
"""

_TOPICS = f"""
SELECT DISTINCT topic FROM (
    SELECT topic FROM (SELECT topic FROM saga_outbox ORDER BY id DESC LIMIT 1000) AS latest
    UNION SELECT topic FROM (SELECT topic FROM saga_outbox WHERE status = '{NEW}' ORDER BY id LIMIT 1000) AS first
) AS used
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Events of one status in one shard; ``oldest`` is the age of the oldest in seconds."""

    events: int = 0
    oldest: float = 0.0


@dataclass(frozen=True, slots=True)
class Lag:
    """What waits: by status, then by shard."""

    by_status: Mapping[str, Mapping[int, Waiting]] = field(default_factory=dict)

    def of(self, status: str, shard: int) -> Waiting:
        return self.by_status.get(status, {}).get(shard, Waiting())

    def total(self, status: str) -> Waiting:
        """Over all shards."""
        found = self.by_status.get(status, {}).values()
        return Waiting(sum(one.events for one in found), max((one.oldest for one in found), default=0.0))


async def read_lag(engine: AsyncEngine) -> Lag:
    """Raises SQLAlchemyError."""
    statement = _WAITING.format(now=now_sql(engine.dialect.name), new=NEW, held=HELD, refused=REFUSED)
    found: dict[str, dict[int, Waiting]] = {}
    async with engine.connect() as connection:
        for status, shard, events, oldest in (await connection.execute(text(statement))).all():
            found.setdefault(status, {})[shard] = Waiting(events, max(0.0, float(oldest)))
    return Lag(found)


async def topics_used(engine: AsyncEngine) -> list[str]:
    """The topics of the newest events, and of those that wait longest. Raises SQLAlchemyError."""
    async with engine.connect() as connection:
        return sorted((await connection.execute(text(_TOPICS))).scalars())
