"""The statements of the relay on the outbox table: scan new events in id order per shard, mark, refuse, purge, count.

Each statement is a transaction of its own, so an idle or frozen relay holds no lock and no snapshot.
"""

from __future__ import annotations

import asyncio
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

_NEW_IN_SHARD = f"status = '{NEW}' AND shard BETWEEN {{shard}} AND {{shard}}"
_INDEX_ORDER = "ORDER BY status, shard, id"
"""BETWEEN and the complete sort order leave the planner no other index to sort by. With ``shard =`` and ``ORDER BY
id``, and statistics from the time of a backlog, it scans all ids from the first on, published or not.
"""

_SCAN = f"SELECT {_COLUMNS} FROM saga_outbox WHERE {{condition}} {_INDEX_ORDER} LIMIT :limit"
_FIND = f"SELECT id FROM saga_outbox WHERE {{condition}} {_INDEX_ORDER} LIMIT :limit"
_READ = f"SELECT {_COLUMNS} FROM saga_outbox WHERE {{condition}} AND id BETWEEN :first AND :last {_INDEX_ORDER}"

_REFUSE = text(f"UPDATE saga_outbox SET status = '{REFUSED}', note = :note WHERE event_id = :id AND status = '{NEW}'")


class OutboxTable:
    """The rows of one outbox. Every method raises SQLAlchemyError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        mark = f"UPDATE saga_outbox SET status = '{PUBLISHED}', published_at = :now WHERE"
        # COALESCE keeps the planner from scanning all new events to find these few, and MySQL from locking ranges.
        only_new = f"{mark} COALESCE(status, '') = '{NEW}' AND"
        self._expands_lists = engine.dialect.name != "postgresql"
        if self._expands_lists:
            self._mark_by_id = _with_id_list(f"{only_new} id IN :ids")
            self._mark_by_event_id = _with_id_list(f"{only_new} event_id IN :ids")
        else:  # one prepared statement for any number of ids
            # With IS TRUE it scans the range and probes a hash table, instead of an index for each id. Ids are passed
            # as the text of an array: converting a list takes the driver longer than the statement takes the server.
            in_range = f"{_NEW_IN_SHARD.format(shard=':shard')} AND id BETWEEN :first AND :last"
            self._mark_by_id = text(f"{mark} {in_range} AND (id IN (SELECT unnest(CAST(:ids AS bigint[])))) IS TRUE")
            self._mark_by_event_id = text(f"{only_new} event_id = ANY(:ids)")

    async def read_identity(self) -> OutboxIdentity:
        async with self.engine.connect() as connection:
            row = (await connection.execute(text("SELECT home, shards FROM saga_outbox_home WHERE id = 1"))).one()
        return OutboxIdentity(row.home, row.shards)

    async def scan(self, shard: int, limit: int, excluded_topics: Collection[str] = ()) -> list[EventRow]:
        """The oldest new events of a shard in the order of their ids, at most ``limit``, without ``excluded_topics``.

        The scan does not continue from the last id: a lower id may be committed after a higher one. It takes no row
        locks: only one owner reads a shard, and skipping a locked row would publish a later event of the same key
        before it.
        """
        return [EventRow._make(row) for row in await self._select(_SCAN, shard, excluded_topics, limit=limit)]

    async def find_new(self, shard: int, limit: int, excluded_topics: Collection[str] = ()) -> list[int]:
        """The ids of the events that :meth:`scan` returns, for :meth:`read_new`."""
        return [id for (id,) in await self._select(_FIND, shard, excluded_topics, limit=limit)]

    async def read_new(self, shard: int, ids: Sequence[int], excluded_topics: Collection[str] = ()) -> list[EventRow]:
        """Those of the events, found with the same ``excluded_topics``, that are still new, in the order of the ids."""
        wanted = set(ids)  # an id in between may have been committed since
        rows = await self._select(_READ, shard, excluded_topics, first=ids[0], last=ids[-1])
        return [EventRow._make(row) for row in rows if row[0] in wanted]

    async def _select(self, query: str, shard: int, excluded_topics: Collection[str], **values: Any) -> Sequence[Any]:
        statement = _select_statement(query, bool(excluded_topics), self._expands_lists)
        topics = {"topics": sorted(excluded_topics)} if excluded_topics else {}
        return (await run_statement(self.engine, statement, {"shard": shard, **topics, **values})).rows

    async def mark_rows_published(self, shard: int, ids: Sequence[int]) -> int:
        """Mark events of a shard, given in the order of their ids, in one UPDATE.

        Returns how many were not marked before.
        """
        values: dict[str, Any] = {"ids": ids, "now": time.time()}
        if not self._expands_lists:
            values |= {"ids": f"{{{','.join(map(str, ids))}}}", "shard": shard, "first": ids[0], "last": ids[-1]}
        return (await run_statement(self.engine, self._mark_by_id, values)).rowcount

    async def mark_events_published(self, event_ids: Sequence[str]) -> int:
        """Mark the events that a progress record in Kafka names. Idempotent."""
        if not event_ids:
            return 0
        values = {"ids": list(event_ids), "now": time.time()}
        return (await run_statement(self.engine, self._mark_by_event_id, values)).rowcount

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

    async def purge(self, shards: Collection[int], before: float, limit: int = 500) -> int:
        """Delete the events of these shards that were published or dropped before ``before``; returns the number.

        It reads ``limit`` rows at a time in the order of their ids, until one was written later than that, and decides
        by the time of publication: an event that was held for a year has a low id and may have been published today.
        """
        gone, last = 0, 0
        delete = _with_id_list("DELETE FROM saga_outbox WHERE id IN :ids")
        async with self.engine.connect() as connection:
            while True:
                values = {"last": last, "portion": limit, "before": before}
                rows = (await connection.execute(_OLDEST, values)).all()
                if ids := [row.id for row in rows if row.purgeable and row.shard in shards]:
                    gone += (await connection.execute(delete, {"ids": ids})).rowcount
                    await asyncio.sleep(_PURGE_PAUSE)
                if len(rows) < limit or rows[-1].created_at >= before:
                    return gone
                last = rows[-1].id


_OLDEST = text(
    f"SELECT id, shard, created_at, CASE WHEN status IN ('{PUBLISHED}', '{DROPPED}') "
    "AND COALESCE(published_at, created_at) < :before THEN 1 ELSE 0 END AS purgeable "
    "FROM saga_outbox WHERE id > :last ORDER BY id LIMIT :portion"
)
_PURGE_PAUSE = 0.05
"""Seconds after a statement that has deleted events, so that purging a backlog does not slow down the publishing."""


@cache
def _select_statement(query: str, excludes: bool, expands_lists: bool) -> TextClause:
    """``query`` for the new events of ``:shard``; with ``excludes`` without those of ``:topics``."""
    condition = _NEW_IN_SHARD.format(shard=":shard")
    if excludes:
        # With a subquery PostgreSQL probes a hash table for each row; with ``<> ALL`` it searches the array linearly.
        topics = ":topics" if expands_lists else "(SELECT unnest(CAST(:topics AS text[])))"
        condition += f" AND topic NOT IN {topics}"
    statement = text(query.format(condition=condition))
    return statement.bindparams(bindparam("topics", expanding=True)) if excludes and expands_lists else statement


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
