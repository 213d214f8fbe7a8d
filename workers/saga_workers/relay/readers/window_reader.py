"""Reads a shard on PostgreSQL in windows between two snapshots, and records one row of progress instead of marks.

A window has the rows that are visible in its second snapshot and were not in its first, in the order of their ids: a
transaction that began late or lasts long is in the window in which it becomes visible, and holds up no other. The
database computes both ends: the transactions that were in progress in the first snapshot, and those that came after it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.elements import TextClause

from saga_activities.guard.outbox_postgresql import (
    NOTHING_DONE,
    PASSED_TABLE,
    PROGRESS_TABLE,
    PUBLISHED_BEFORE,
    PUBLISHED_NOW,
)
from saga_activities.guard.tables import now_sql
from saga_activities.messaging.outbox import NEW, PUBLISHED, REFUSED, SUSPENDED
from saga_workers.relay.outbox_table import COLUMNS, EventRow
from saga_workers.relay.readers.event_reader import Portion, Superseded
from saga_workers.relay.readers.statements import STATEMENT_TIMEOUT, StatementRows, run_statement

FOUND_AHEAD = 200_000
"""Ids to find in one scan of a window."""

_FIND_TIMEOUT = 60.0
"""Seconds for that: a window has all that was written while no relay was running."""

_RESUMED = 5_000
"""Rows that one statement makes new again after their topic was suspended."""


@dataclass(frozen=True)
class Snapshot:
    """A ``pg_snapshot``: every transaction below ``xmax`` had ended, except those of ``in_progress``."""

    text: str

    @cached_property
    def xmax(self) -> int:
        return int(self.text.split(":")[1])

    @cached_property
    def in_progress(self) -> str:
        """The text of an array of transaction ids."""
        return f"{{{self.text.rpartition(':')[2]}}}"


class Window(NamedTuple):
    """Rows that ``end`` sees and ``done`` does not. Those up to the id ``last`` are read, and so are all before."""

    done: Snapshot
    end: Snapshot
    last: int

    def with_end(self, text: str) -> Window:
        return Window(self.end, Snapshot(text), 0)

    def complete(self) -> Window:
        return Window(self.end, self.end, 0)


class _WindowPosition(NamedTuple):
    window: Window
    highest: int


_NEW = f"FROM saga_outbox_row WHERE status = '{NEW}' AND shard = :shard AND"
_LATE = "xid = ANY(CAST(:late AS xid8[]))"
_AFTER = "xid >= CAST(:after AS xid8)"
_SEEN = "pg_visible_in_snapshot(xid, CAST(:end AS pg_snapshot))"
_SNAPSHOT = "CAST(pg_current_snapshot() AS text)"

# What a statement reads is what its snapshot sees, so the second end of a new window needs no condition.
_NEXT = f"SELECT {{columns}} {_NEW} {_AFTER} UNION ALL SELECT {{columns}} {_NEW} {_LATE}"
_SCAN = text(
    f"SELECT {COLUMNS}, {_SNAPSHOT} FROM ({_NEXT.format(columns=COLUMNS)}) AS next_window ORDER BY id LIMIT :limit"
)
_FIND = text(
    f"SELECT {_SNAPSHOT}, (SELECT pg_catalog.array_agg(id) FROM (SELECT id FROM ({_NEXT.format(columns='id')})"
    " AS next_window ORDER BY id LIMIT :limit) AS first_ids)"
)
_FIND_MORE = text(
    f"SELECT id FROM (SELECT id {_NEW} {_AFTER} AND {_SEEN} AND id > :last "
    f"UNION ALL SELECT id {_NEW} {_LATE} AND {_SEEN} AND id > :last) AS this_window ORDER BY id LIMIT :limit"
)
# A row that was made new again in the meantime belongs to another window. COALESCE leaves the primary key as the only
# index to use.
_READ = text(
    f"SELECT {COLUMNS} FROM saga_outbox_row WHERE id = ANY(CAST(:ids AS bigint[])) AND COALESCE(status, '') = '{NEW}' "
    f"AND {_SEEN} ORDER BY id"
)

_CLUSTER = "(SELECT CAST(system_identifier AS text) FROM pg_control_system())"
_CLAIM = text(
    f"INSERT INTO {PROGRESS_TABLE} AS p (shard, reader, done, reading, last_id, highest_id, cluster) "
    f"VALUES (:shard, :reader, '{NOTHING_DONE}', '{NOTHING_DONE}', 0, 0, {_CLUSTER}) "
    "ON CONFLICT (shard) DO UPDATE SET reader = :reader "
    f"RETURNING CAST(p.done AS text), CAST(p.reading AS text), p.last_id, p.highest_id, "
    f"p.cluster = {_CLUSTER} AND pg_snapshot_xmax(p.reading) <= pg_snapshot_xmax(pg_current_snapshot())"
)
_RECORD = text(
    f"UPDATE {PROGRESS_TABLE} SET done = CAST(:done AS pg_snapshot), reading = CAST(:reading AS pg_snapshot), "
    "last_id = :last, highest_id = GREATEST(highest_id, :highest) WHERE shard = :shard AND reader = :reader"
)

_NOW = now_sql("postgresql")

# A relay that froze before such a statement must not change what its successor has published since.
_MINE = f"WITH mine AS (SELECT 1 FROM {PROGRESS_TABLE} WHERE shard = :shard AND reader = :reader FOR SHARE) "
_IF_MINE = "EXISTS (SELECT 1 FROM mine)"
# No self-join: with statistics from before a large transaction the planner takes the outbox for empty, and joins each
# of its rows with each.
_PUBLISHED = f"({PUBLISHED_BEFORE} OR {PUBLISHED_NOW})"
_RECORD_EVENTS = text(
    f"{_MINE} UPDATE saga_outbox_row o SET status = '{PUBLISHED}', published_at = {_NOW} "
    f"WHERE COALESCE(o.status, '') = '{NEW}' AND o.event_id = ANY(:ids) AND {_IF_MINE} "
    f"AND NOT EXISTS (SELECT 1 FROM {PROGRESS_TABLE} p WHERE p.shard = o.shard AND {_PUBLISHED})"
)
_REFUSE = text(
    f"{_MINE} UPDATE saga_outbox_row SET status = '{REFUSED}', note = :note "
    f"WHERE event_id = :id AND status = '{NEW}' AND {_IF_MINE}"
)
_SET_ASIDE = text(
    f"{_MINE} UPDATE saga_outbox_row SET status = '{SUSPENDED}' "
    f"WHERE id = ANY(CAST(:ids AS bigint[])) AND COALESCE(status, '') = '{NEW}' AND {_SEEN} AND {_IF_MINE}"
)
_SET_ASIDE_TOPICS = text(f"SELECT DISTINCT topic FROM saga_outbox_row WHERE status = '{SUSPENDED}' AND shard = :shard")
_RESUME = text(
    f"{_MINE} UPDATE saga_outbox_row SET status = '{NEW}' WHERE {_IF_MINE} AND id = ANY(ARRAY("
    f"SELECT id FROM saga_outbox_row WHERE status = '{SUSPENDED}' AND shard = :shard AND topic = ANY(:topics) "
    f"ORDER BY id LIMIT {_RESUMED}))"
)

_COUNT_RECORDED = text(f"SELECT COUNT(*) FROM saga_outbox WHERE event_id = ANY(:ids) AND status = '{PUBLISHED}'")
_REOPEN_WINDOW = (
    # First what is published of the window gets marks; the next window then begins again at its first snapshot.
    text(
        f"UPDATE saga_outbox_row o SET status = '{PUBLISHED}', published_at = {_NOW} FROM {PROGRESS_TABLE} p "
        f"WHERE p.shard = :shard AND o.shard = :shard AND o.status = '{NEW}' AND o.xid >= pg_snapshot_xmin(p.done) "
        f"AND {PUBLISHED_NOW} AND NOT {PUBLISHED_BEFORE}"
    ),
    text(
        f"UPDATE saga_outbox_row SET status = '{NEW}' WHERE event_id = ANY(:ids) AND status IN ('{NEW}', '{PUBLISHED}')"
    ),
    text(f"UPDATE {PROGRESS_TABLE} SET reading = done, last_id = 0 WHERE shard = :shard AND reader = :reader"),
)

_ADOPT = (
    text(
        f"UPDATE saga_outbox_row o SET status = '{PUBLISHED}', published_at = {_NOW} FROM {PROGRESS_TABLE} p "
        f"WHERE p.shard = :shard AND o.shard = :shard AND o.status = '{NEW}' AND o.id <= :highest AND {_PUBLISHED}"
    ),
    text(f"UPDATE saga_outbox_row SET status = '{NEW}' WHERE status = '{NEW}' AND shard = :shard"),
    text(f"DELETE FROM {PASSED_TABLE} WHERE shard = :shard"),
    text(
        f"UPDATE {PROGRESS_TABLE} SET done = '{NOTHING_DONE}', reading = '{NOTHING_DONE}', last_id = 0, "
        f"cluster = {_CLUSTER} WHERE shard = :shard AND reader = :reader"
    ),
)


class WindowReader:
    """The new events of one shard, an :class:`saga_workers.relay.readers.event_reader.EventReader`."""

    def __init__(self, engine: AsyncEngine, shard: int) -> None:
        self._engine, self._shard, self._reader = engine, shard, ""
        nothing = Snapshot(NOTHING_DONE)
        self._window = Window(nothing, nothing, 0)
        self._found: Sequence[int] = ()  # ids of the window that are not read yet, from ``_at`` on
        self._at = 0
        self._is_found = True  # ``_found`` has all ids of the window
        self._is_idle = False
        self._topics: set[str] = set()
        self._retried: set[str] = set()

    async def begin(self) -> None:
        self._reader = str(uuid.uuid4())  # a statement of this process that timed out may also still be running
        [(done, reading, last, highest, is_ours)] = (await self._run(_CLAIM)).rows
        if not is_ours:
            await self._adopt(highest)
            done = reading = NOTHING_DONE
        first = Snapshot(done)
        self._window = Window(first, first if done == reading else Snapshot(reading), last)
        self._found, self._at, self._is_found, self._is_idle = (), 0, done == reading, False
        self._topics = {topic for (topic,) in (await self._run(_SET_ASIDE_TOPICS)).rows}
        self._retried = set()

    async def read(self, limit: int, excluded_topics: Collection[str] = ()) -> Portion:
        while True:
            rows = await self._read_some(limit)
            if not rows:
                return Portion((), None)
            left_out = self._topics.union(excluded_topics)
            if kept := [row for row in rows if row.topic not in left_out] if left_out else rows:
                if len(kept) < len(rows):
                    await self.set_aside([row for row in rows if row.topic in left_out])
                is_read = self._is_found and self._at >= len(self._found)
                window = self._window.complete() if is_read else self._window
                return Portion(kept, _WindowPosition(window, rows[-1].id))
            await self.set_aside(rows)

    async def _read_some(self, limit: int) -> Sequence[EventRow]:
        """The next rows, of this window or of a new one; empty if there are none."""
        while True:
            if self._at < len(self._found):
                ids = self._found[self._at : self._at + limit]
                self._at += limit
                self._window = self._window._replace(last=ids[-1])
                values = {"ids": array_text(ids), "end": self._window.end.text}
                if rows := (await self._run(_READ, values)).rows:
                    return [EventRow._make(row) for row in rows]
            elif not self._is_found:
                await self._find_more()
            else:
                await self._resume()
                self._window = self._window.complete()
                if self._is_idle:
                    return await self._scan(limit)
                if not await self._find():
                    self._is_idle = True
                    return ()

    async def _scan(self, limit: int) -> Sequence[EventRow]:
        """The rows of a new window in one statement: it is small, because nothing was new a moment ago."""
        rows = (await self._run(_SCAN, {**self._next_window(), "limit": limit})).rows
        if rows:
            self._is_idle = False
            self._window = self._window.with_end(rows[0][-1])._replace(last=rows[-1][0])
            self._found, self._at, self._is_found = (), 0, len(rows) < limit
        return [EventRow._make(row[:-1]) for row in rows]

    async def _find(self) -> bool:
        """Begin a new window with its first ids; False if it has none."""
        values = {**self._next_window(), "limit": FOUND_AHEAD}
        [(snapshot, ids)] = (await self._run(_FIND, values, _FIND_TIMEOUT)).rows
        self._window = self._window.with_end(snapshot)
        self._found, self._at = ids or (), 0
        self._is_found = len(self._found) < FOUND_AHEAD
        return bool(ids)

    async def _find_more(self) -> None:
        window = self._window
        values = {**self._window_after(window.done), "end": window.end.text, "last": window.last, "limit": FOUND_AHEAD}
        self._found, self._at = [id for (id,) in (await self._run(_FIND_MORE, values, _FIND_TIMEOUT)).rows], 0
        self._is_found = len(self._found) < FOUND_AHEAD

    def _next_window(self) -> Mapping[str, Any]:
        return self._window_after(self._window.end)

    @staticmethod
    def _window_after(done: Snapshot) -> Mapping[str, Any]:
        return {"after": str(done.xmax), "late": done.in_progress}

    async def record(self, portion: Portion, rows: Sequence[EventRow]) -> int:
        window, highest = portion.position
        values = {"done": window.done.text, "reading": window.end.text, "last": window.last, "highest": highest}
        if (await self._run(_RECORD, values)).rowcount != 1:
            raise Superseded(f"another relay reads shard {self._shard}")
        return len(rows)

    async def record_events(self, event_ids: Collection[str]) -> int:
        if not event_ids:
            return 0
        return (await self._run(_RECORD_EVENTS, {"ids": list(event_ids)})).rowcount

    async def republish(self, event_ids: Collection[str]) -> int:
        values = {"ids": list(event_ids)}
        recorded = (await self._run(_COUNT_RECORDED, values)).rows[0][0]
        await self._transaction(_REOPEN_WINDOW, values)
        return recorded

    async def refuse(self, event_id: str, note: str) -> None:
        await self._run(_REFUSE, {"id": event_id, "note": note})

    async def set_aside(self, rows: Sequence[EventRow]) -> None:
        self._topics.update(row.topic for row in rows)
        values = {"ids": array_text([row.id for row in rows]), "end": self._window.end.text}
        await self._run(_SET_ASIDE, values)

    @property
    def set_aside_topics(self) -> Collection[str]:
        return self._topics - self._retried

    def retry(self, topics: Collection[str]) -> None:
        self._retried.update(topics)

    async def _resume(self) -> None:
        """Make the events of retried topics new again. Between two windows, so that later ones follow them."""
        if not self._retried:
            return
        while (await self._run(_RESUME, {"topics": sorted(self._retried)})).rowcount:
            pass
        self._topics -= self._retried
        self._retried = set()
        self._is_idle = False

    async def _adopt(self, highest: int) -> None:
        """Begin from zero in another cluster, whose transaction ids say nothing about those of the rows.

        Rows that were written here have higher ids than those that were published there. So it is exact.
        """
        await self._transaction(_ADOPT, {"highest": highest})

    def waiting_query(self) -> str:
        end = self._window.end
        there = f"SELECT shard FROM saga_outbox_row WHERE status = '{NEW}' AND shard = {self._shard} AND xid"
        return (
            f"SELECT shard FROM ((({there} >= '{end.xmax}'::xid8 LIMIT 1) UNION ALL "
            f"({there} = ANY('{end.in_progress}'::xid8[]) LIMIT 1)) LIMIT 1) AS new_{self._shard}"
        )

    async def _run(
        self, statement: TextClause, values: Mapping[str, Any] | None = None, timeout: float = STATEMENT_TIMEOUT
    ) -> StatementRows:
        return await run_statement(self._engine, statement, {**self._own_values, **(values or {})}, timeout)

    @property
    def _own_values(self) -> Mapping[str, Any]:
        return {"shard": self._shard, "reader": self._reader}

    async def _transaction(self, statements: Sequence[TextClause], values: Mapping[str, Any]) -> None:
        engine = self._engine.execution_options(isolation_level="READ COMMITTED")
        async with engine.begin() as connection:
            for statement in statements:
                await connection.execute(statement, {**self._own_values, **values})


def array_text(numbers: Sequence[int]) -> str:
    """The text of an array: converting a list takes the driver longer than the statement takes the server."""
    return f"{{{','.join(map(str, numbers))}}}"
