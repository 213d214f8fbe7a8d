"""Reads a shard by the status of its rows, and marks each event that is published: on MySQL, MariaDB and SQLite.

While events are in flight, the ids of many new events are found in one scan, and their rows read portion by portion.
All of them precede whatever was committed after that scan, so the order is that of a single large portion.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Literal

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.elements import TextClause

from saga_activities.guard.tables import now_sql
from saga_activities.messaging.outbox import NEW, PUBLISHED, REFUSED
from saga_workers.relay.outbox_table import COLUMNS, EventRow
from saga_workers.relay.readers.event_reader import Portion
from saga_workers.relay.readers.statements import run_statement

FOUND_AHEAD = 50_000
"""Ids to find in one scan, besides those in flight."""

_NEW_IN_SHARD = f"status = '{NEW}' AND shard BETWEEN :shard AND :shard"
_INDEX_ORDER = "ORDER BY status, shard, id"
"""BETWEEN and the complete sort order leave the planner no other index to sort by. With ``shard =`` and ``ORDER BY
id``, and statistics from the time of a backlog, it may scan all ids from the first on, published or not.
"""

_SCAN = f"SELECT {COLUMNS} FROM saga_outbox WHERE {{condition}} {_INDEX_ORDER} LIMIT :limit"
_FIND = f"SELECT id FROM saga_outbox WHERE {{condition}} {_INDEX_ORDER} LIMIT :limit"
_READ = f"SELECT {COLUMNS} FROM saga_outbox WHERE {{condition}} AND id BETWEEN :first AND :last {_INDEX_ORDER}"

# COALESCE keeps the planner from scanning all new events to find these few, and MySQL from locking ranges.
_MARK = (
    f"UPDATE saga_outbox SET status = '{PUBLISHED}', published_at = {{now}} WHERE COALESCE(status, '') = '{NEW}' AND "
)


def _with_ids(statement: str) -> TextClause:
    return text(statement).bindparams(bindparam("ids", expanding=True))


@cache
def _mark(dialect: str, key: Literal["id", "event_id"]) -> TextClause:
    """The statement that marks events as published, at the time of the database."""
    return _with_ids(f"{_MARK.format(now=now_sql(dialect))}{key} IN :ids")


_MARK_NEW = _with_ids(
    f"UPDATE saga_outbox SET status = '{NEW}', published_at = NULL WHERE status = '{PUBLISHED}' AND event_id IN :ids"
)
_REFUSE = text(f"UPDATE saga_outbox SET status = '{REFUSED}', note = :note WHERE event_id = :id AND status = '{NEW}'")


class MarkedReader:
    """The new events of one shard, an :class:`saga_workers.relay.readers.event_reader.EventReader`."""

    def __init__(self, engine: AsyncEngine, shard: int) -> None:
        self._engine, self._shard = engine, shard
        self._found: list[int] = []
        self._in_flight: set[int] = set()  # read, and not marked yet
        self._excluded: set[str] = set()

    async def begin(self) -> None:
        self._found, self._in_flight = [], set()

    async def read(self, limit: int, excluded_topics: Collection[str] = ()) -> Portion:
        excluded = set(excluded_topics)
        if excluded != self._excluded:  # a topic may have events before those that would follow
            self._excluded = excluded
            self._found = []
        while True:
            if not self._found and not self._in_flight:
                rows = await self.scan(limit, excluded)
            else:
                if not self._found:
                    new_ids = await self.find_new(FOUND_AHEAD + len(self._in_flight), excluded)
                    self._found = [id for id in new_ids if id not in self._in_flight]
                if not self._found:
                    return Portion(())
                ids, self._found = self._found[:limit], self._found[limit:]
                if not (rows := await self.read_new(ids, excluded)):
                    continue
            ids = [row.id for row in rows]
            self._in_flight.update(ids)
            return Portion(rows, ids)

    async def scan(self, limit: int, excluded_topics: Collection[str] = ()) -> list[EventRow]:
        """The oldest new events in the order of their ids, at most ``limit``, without ``excluded_topics``.

        The scan does not continue from the last id: a lower id may be committed after a higher one. It takes no row
        locks: only one owner reads a shard, and skipping a locked row would publish a later event of the same key
        before it.
        """
        return [EventRow._make(row) for row in await self._select(_SCAN, excluded_topics, limit=limit)]

    async def find_new(self, limit: int, excluded_topics: Collection[str] = ()) -> list[int]:
        """The ids of the events that :meth:`scan` returns, for :meth:`read_new`."""
        return [id for (id,) in await self._select(_FIND, excluded_topics, limit=limit)]

    async def read_new(self, ids: Sequence[int], excluded_topics: Collection[str] = ()) -> list[EventRow]:
        """Return those of the events, found with the same ``excluded_topics``, that are still new, in the order of the
        ids.
        """
        wanted = set(ids)  # an id in between may have been committed since
        rows = await self._select(_READ, excluded_topics, first=ids[0], last=ids[-1])
        return [EventRow._make(row) for row in rows if row[0] in wanted]

    async def _select(self, query: str, excluded_topics: Collection[str], **values: Any) -> Sequence[Any]:
        topics = {"topics": sorted(excluded_topics)} if excluded_topics else {}
        statement = _select_statement(query, bool(excluded_topics))
        return (await run_statement(self._engine, statement, {"shard": self._shard, **topics, **values})).rows

    async def record(self, portion: Portion, rows: Sequence[EventRow]) -> int:
        mark = _mark(self._engine.dialect.name, "id")
        marked = (await run_statement(self._engine, mark, {"ids": [row.id for row in rows]})).rowcount
        self._in_flight.difference_update(portion.position)
        return marked

    async def record_events(self, event_ids: Collection[str]) -> int:
        if not event_ids:
            return 0
        mark = _mark(self._engine.dialect.name, "event_id")
        return (await run_statement(self._engine, mark, {"ids": list(event_ids)})).rowcount

    async def republish(self, event_ids: Collection[str]) -> int:
        return (await run_statement(self._engine, _MARK_NEW, {"ids": list(event_ids)})).rowcount

    async def refuse(self, event_id: str, note: str) -> None:
        await run_statement(self._engine, _REFUSE, {"id": event_id, "note": note})

    async def set_aside(self, rows: Sequence[EventRow]) -> None:
        """Leave events of topics new; the next scan begins with the oldest event, without these topics."""
        self._in_flight.difference_update(row.id for row in rows)
        self._found = []

    @property
    def set_aside_topics(self) -> Collection[str]:
        return ()

    def retry(self, topics: Collection[str]) -> None:
        """Nothing: a topic is read as soon as it is no longer excluded."""

    def waiting_query(self) -> str:
        condition = _NEW_IN_SHARD.replace(":shard", str(self._shard))
        return (
            f"SELECT shard FROM (SELECT shard FROM saga_outbox WHERE {condition} {_INDEX_ORDER} LIMIT 1) "
            f"AS new_{self._shard}"
        )


@cache
def _select_statement(query: str, excludes: bool) -> TextClause:
    """``query`` for the new events of ``:shard``; with ``excludes`` without those of ``:topics``."""
    statement = text(query.format(condition=_NEW_IN_SHARD + (" AND topic NOT IN :topics" if excludes else "")))
    return statement.bindparams(bindparam("topics", expanding=True)) if excludes else statement
