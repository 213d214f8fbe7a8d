"""The statements of the relay on the outbox table: scan new events in id order per shard, mark, refuse, purge, count.

Each statement is a transaction of its own, so an idle or frozen relay holds no lock and no snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.elements import TextClause

from saga_activities.guard.tables import now_sql
from saga_activities.outbox import DROPPED, HELD, NEW, PUBLISHED, REFUSED
from saga_workers.relay.statements import run_statement


@dataclass(frozen=True, slots=True)
class OutboxIdentity:
    """The id of an outbox, and the number of its shards."""

    outbox_id: str
    shards: int


class EventRow(NamedTuple):
    """A committed event. ``value`` and ``headers`` are JSON text; ``created_at`` is in seconds since the epoch."""

    id: int
    event_id: str
    topic: str
    key: str | None
    value: str | None
    headers: str
    saga_id: str
    step: str
    generation: int
    created_at: float
    type: str | None


_COLUMNS = "id, event_id, topic, event_key, value, headers, saga_id, step, generation, created_at, event_type"

_EXCLUDED = {"topics": "topic", "ids": "id"}
"""A list of what a scan leaves out, and its column."""

_ARRAY_PARAMETERS = {
    "topics": "(SELECT unnest(CAST(:topics AS text[])))",
    "ids": "(SELECT unnest(CAST(:ids AS bigint[])))",
}
"""With a subquery PostgreSQL probes a hash table for each row; with ``<> ALL`` it searches the array linearly. Ids are
passed as the text of an array: converting a list takes the driver longer than the statement takes the server.
"""

_NEW_IN_SHARD = f"status = '{NEW}' AND shard BETWEEN {{shard}} AND {{shard}}"
_INDEX_ORDER = "ORDER BY status, shard, id"
"""BETWEEN and the complete sort order leave the planner no other index to sort by. With ``shard =`` and ``ORDER BY
id``, and statistics from the time of a backlog, it scans all ids from the first on, published or not.
"""

_REFUSE = text(f"UPDATE saga_outbox SET status = '{REFUSED}', note = :note WHERE event_id = :id AND status = '{NEW}'")


class OutboxTable:
    """The rows of one outbox. Every method raises SQLAlchemyError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        # COALESCE keeps the planner from scanning all new events to find these few.
        mark = (
            f"UPDATE saga_outbox SET status = '{PUBLISHED}', published_at = :now WHERE COALESCE(status, '') = '{NEW}'"
        )
        self._expands_lists = engine.dialect.name != "postgresql"
        if self._expands_lists:
            self._mark_by_id, self._mark_by_event_id = (
                _with_id_list(f"{mark} AND id IN :ids"),
                _with_id_list(f"{mark} AND event_id IN :ids"),
            )
        else:  # one prepared statement for any number of ids
            self._mark_by_id = text(f"{mark} AND id = ANY(CAST(:ids AS bigint[]))")
            self._mark_by_event_id = text(f"{mark} AND event_id = ANY(:ids)")

    async def read_identity(self) -> OutboxIdentity:
        async with self.engine.connect() as connection:
            row = (await connection.execute(text("SELECT home, shards FROM saga_outbox_home WHERE id = 1"))).one()
        return OutboxIdentity(row.home, row.shards)

    async def scan(
        self, shard: int, limit: int, *, excluded_topics: Collection[str] = (), in_flight: Collection[int] = ()
    ) -> list[EventRow]:
        """The oldest new events of a shard, at most ``limit``, without ``excluded_topics`` and the ids ``in_flight``.

        The scan does not continue from the last id: a lower id may be committed after a higher one. It takes no row
        locks: only one owner reads a shard, and skipping a locked row would publish a later event of the same key
        before it.
        """
        values: dict[str, Any] = {"shard": shard, "most": limit}
        if excluded_topics:
            values["topics"] = sorted(excluded_topics)
        if in_flight:
            values["ids"] = self._id_list(in_flight)
        statement = _scan_statement(tuple(name for name in _EXCLUDED if name in values), self._expands_lists)
        found = await run_statement(self.engine, statement, values)
        return [EventRow._make(row) for row in found.rows]

    async def mark_rows_published(self, ids: Sequence[int]) -> int:
        """Mark scanned events as published, in one UPDATE; returns how many were not marked before."""
        return await self._execute_mark(self._mark_by_id, self._id_list(ids))

    async def mark_events_published(self, event_ids: Sequence[str]) -> int:
        """Mark the events that a progress record in Kafka names. Idempotent."""
        return await self._execute_mark(self._mark_by_event_id, list(event_ids)) if event_ids else 0

    async def _execute_mark(self, statement: TextClause, ids: Any) -> int:
        return (await run_statement(self.engine, statement, {"ids": ids, "now": time.time()})).rowcount

    def _id_list(self, ids: Collection[int]) -> Any:
        return list(ids) if self._expands_lists else f"{{{','.join(map(str, ids))}}}"

    async def refuse(self, event_id: str, note: str) -> None:
        """Mark an event that the broker refuses for good; an operator decides about it."""
        async with self.engine.connect() as connection:
            await connection.execute(_REFUSE, {"id": event_id, "note": note})

    async def shards_with_events(self, shards: Sequence[int]) -> set[int]:
        """Those of the shards that have new events, found with one query."""
        found = await run_statement(self.engine, _shards_statement(tuple(shards)), {})
        return {shard for (shard,) in found.rows}

    def shards_query(self, shards: Sequence[int]) -> str:
        """The query of :meth:`shards_with_events`."""
        return str(_shards_statement(tuple(shards)))

    async def purge(self, shard: int, before: float, limit: int = 500) -> int:
        """Delete up to ``limit`` events per status, published or dropped before ``before``; returns the number.

        The id only orders the scan: an event that was held for a year has a low id and may have been published today.
        """
        gone = 0
        oldest = text(
            "SELECT id FROM (SELECT id, COALESCE(published_at, created_at) AS at FROM saga_outbox "
            "WHERE status = :status AND shard = :shard ORDER BY id LIMIT :portion) AS oldest WHERE at < :before"
        )
        delete = _with_id_list("DELETE FROM saga_outbox WHERE id IN :ids")
        async with self.engine.connect() as connection:
            for status in (PUBLISHED, DROPPED):
                values = {"status": status, "shard": shard, "portion": limit, "before": before}
                ids = list((await connection.execute(oldest, values)).scalars())
                if ids:
                    gone += (await connection.execute(delete, {"ids": ids})).rowcount
        return gone


@cache
def _scan_statement(excluded: tuple[str, ...], expands_lists: bool) -> TextClause:
    """The scan without what the parameters ``excluded`` name."""
    conditions = [_NEW_IN_SHARD.format(shard=":shard")]
    for name in excluded:
        conditions.append(f"{_EXCLUDED[name]} NOT IN {f':{name}' if expands_lists else _ARRAY_PARAMETERS[name]}")
    statement = text(f"SELECT {_COLUMNS} FROM saga_outbox WHERE {' AND '.join(conditions)} {_INDEX_ORDER} LIMIT :most")
    if not expands_lists:
        return statement
    return statement.bindparams(*(bindparam(name, expanding=True) for name in excluded))


@lru_cache(256)
def _shards_statement(shards: tuple[int, ...]) -> TextClause:
    parts = (
        f"SELECT shard FROM (SELECT shard FROM saga_outbox WHERE {_NEW_IN_SHARD.format(shard=shard)} "
        f"{_INDEX_ORDER} LIMIT 1) AS new_{shard}"
        for shard in shards
    )
    return text(" UNION ALL ".join(parts))


def _with_id_list(statement: str) -> TextClause:
    return text(statement).bindparams(bindparam("ids", expanding=True))


# Unpublished events: how many, and for how long.

_COUNT_WAITING = """
SELECT status, shard, COUNT(*) AS events, {now} - MIN(created_at) AS oldest
FROM saga_outbox WHERE status IN ('{new}', '{held}', '{refused}') GROUP BY status, shard
"""

_SELECT_TOPICS = f"""
SELECT DISTINCT topic FROM (
    SELECT topic FROM (SELECT topic FROM saga_outbox ORDER BY id DESC LIMIT 1000) AS latest
    UNION SELECT topic FROM (SELECT topic FROM saga_outbox WHERE status = '{NEW}' ORDER BY id LIMIT 1000) AS first
) AS used
"""


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """Events of one status in one shard; ``oldest`` is the age of the oldest in seconds."""

    events: int = 0
    oldest: float = 0.0


@dataclass(frozen=True, slots=True)
class OutboxLag:
    """Unpublished events by status, then by shard."""

    by_status: Mapping[str, Mapping[int, WaitingEvents]] = field(default_factory=dict)

    def of(self, status: str, shard: int) -> WaitingEvents:
        return self.by_status.get(status, {}).get(shard, WaitingEvents())

    def total(self, status: str) -> WaitingEvents:
        """The sum over all shards, with the age of the oldest event."""
        found = self.by_status.get(status, {}).values()
        return WaitingEvents(sum(one.events for one in found), max((one.oldest for one in found), default=0.0))


async def read_lag(engine: AsyncEngine) -> OutboxLag:
    """Count the unpublished events of an outbox. Raises SQLAlchemyError."""
    statement = _COUNT_WAITING.format(now=now_sql(engine.dialect.name), new=NEW, held=HELD, refused=REFUSED)
    found: dict[str, dict[int, WaitingEvents]] = {}
    async with engine.connect() as connection:
        for status, shard, events, oldest in (await connection.execute(text(statement))).all():
            found.setdefault(status, {})[shard] = WaitingEvents(events, max(0.0, float(oldest)))
    return OutboxLag(found)


async def topics_used(engine: AsyncEngine) -> list[str]:
    """The topics of the newest events and of the longest-waiting ones. Raises SQLAlchemyError."""
    async with engine.connect() as connection:
        return sorted((await connection.execute(text(_SELECT_TOPICS))).scalars())
