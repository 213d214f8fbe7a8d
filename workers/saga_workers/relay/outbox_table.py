"""The outbox of one database as a whole: its identity, what waits in it, and what may be deleted from it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.outbox_postgresql import (
    NOTHING_DONE,
    PASSED_TABLE,
    PROGRESS_TABLE,
    PUBLISHED_BEFORE,
    rows_table,
)
from saga_activities.guard.stored_values import stored_values
from saga_activities.guard.tables import now_sql, outbox_home_table, outbox_table
from saga_activities.guard.unreadable_rows import ChangedRow, UnreadableRow
from saga_activities.messaging.outbox import (
    DROPPED,
    HELD,
    NEW,
    PUBLISHED,
    REFUSED,
    SUSPENDED,
    decrypted_event,
)
from saga_activities.table_names import table_names
from sagas.errors import SagaError


@dataclass(frozen=True, slots=True)
class OutboxIdentity:
    """The id of an outbox, and the number of its shards."""

    outbox_id: str
    shards: int


class MissingKey(SagaError):
    """An event is encrypted with a key that this relay does not have."""


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


COLUMNS = "id, event_id, topic, event_key, value, headers, saga_id, step, generation, created_at, event_type"
"""The columns of an :class:`EventRow`."""


@dataclass(frozen=True, slots=True)
class _Statements:
    """SQL statements that depend on how published rows are known: by their marks, or by the progress of their shard."""

    table: str
    """The table with the rows."""
    needed_table: str
    waiting: str
    """Rows of the outbox to be published, as ``o``; a condition may follow."""
    set_aside: str
    """The statuses of other rows that wait."""
    passed: str
    """A condition for rows that were published before ``:before`` without a mark."""


_MARKED = _Statements(
    outbox_table.name,
    outbox_home_table.name,
    f"saga_outbox o WHERE o.status = '{NEW}'",
    f"'{HELD}', '{REFUSED}'",
    "1 = 0",
)
_BY_PROGRESS = _Statements(
    rows_table.name,
    PROGRESS_TABLE,
    f"""(SELECT s.shard, COALESCE(p.done, '{NOTHING_DONE}') AS done, COALESCE(p.reading, '{NOTHING_DONE}') AS reading,
            COALESCE(p.last_id, 0) AS last_id
        FROM saga_outbox_home h CROSS JOIN generate_series(0, h.shards - 1) AS s (shard)
        LEFT JOIN {PROGRESS_TABLE} p ON p.shard = s.shard) AS w
    CROSS JOIN LATERAL (
        SELECT a.* FROM saga_outbox_row a
        WHERE a.status = '{NEW}' AND a.shard = w.shard AND a.xid >= pg_snapshot_xmax(w.done)
        UNION ALL
        SELECT a.* FROM pg_snapshot_xip(w.done) AS late (xid)
        JOIN saga_outbox_row a ON a.status = '{NEW}' AND a.shard = w.shard AND a.xid = late.xid
    ) AS o
    WHERE NOT (o.id <= w.last_id AND pg_visible_in_snapshot(o.xid, w.reading))""",
    f"'{HELD}', '{REFUSED}', '{SUSPENDED}'",
    f"o.status = '{NEW}' AND (SELECT {PUBLISHED_BEFORE} FROM {PASSED_TABLE} p "
    "WHERE p.shard = o.shard AND p.at < :before ORDER BY p.at DESC LIMIT 1)",
)


def _statements(dialect: str) -> _Statements:
    return _BY_PROGRESS if dialect == "postgresql" else _MARKED


_PURGE_PAUSE = 0.05
"""Seconds after a statement that has deleted events, so that purging a backlog does not slow down the publishing."""

_KEPT_POINTS = 50
"""Points of a shard's progress within the time for which published events are kept."""

_NOTE_POINT = text(
    f"INSERT INTO {PASSED_TABLE} (shard, at, done) SELECT p.shard, :now, p.done "
    f"FROM {PROGRESS_TABLE} p WHERE p.shard = ANY(:shards) "
    f"AND NOT EXISTS (SELECT 1 FROM {PASSED_TABLE} q WHERE q.shard = p.shard AND q.at > :latest) ON CONFLICT DO NOTHING"
)
_FORGET_POINTS = text(
    f"DELETE FROM {PASSED_TABLE} p WHERE p.shard = ANY(:shards) AND p.at < "
    f"(SELECT MAX(q.at) FROM {PASSED_TABLE} q WHERE q.shard = p.shard AND q.at < :before)"
)


class OutboxTable:
    """The rows of one outbox. Every method raises SQLAlchemyError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._statements = _statements(engine.dialect.name)
        self._values = stored_values(engine)

    def decrypted(self, row: EventRow) -> EventRow:
        """The event in clear. Raises :class:`MissingKey`, and :class:`ChangedRow` for what no key has encrypted."""
        columns = {**row._asdict(), "event_key": row.key}
        try:
            clear = decrypted_event(columns, self._values)
        except ChangedRow:
            raise
        except UnreadableRow as error:
            raise MissingKey(f"the event {row.event_id} cannot be read: {error}") from None
        return row._replace(value=clear["value"], key=clear["event_key"], headers=clear["headers"])

    async def read_identity(self) -> OutboxIdentity:
        async with self.engine.connect() as connection:
            row = (await connection.execute(text("SELECT home, shards FROM saga_outbox_home WHERE id = 1"))).one()
        return OutboxIdentity(row.home, row.shards)

    async def purge(self, shards: Collection[int], now: float, retention: float, limit: int = 500) -> int:
        """Delete the events of these shards that were published or dropped ``retention`` seconds ago; their number.

        It reads ``limit`` rows at a time in the order of their ids, until one was written later than that, and decides
        by the time of publication: an event that was held for a year has a low id and may have been published today.
        On PostgreSQL, where that is in no row, points of the progress are noted and reached after the retention.
        """
        before = now - retention
        gone, last = 0, 0
        delete = text(f"DELETE FROM {self._statements.table} WHERE id IN :ids").bindparams(
            bindparam("ids", expanding=True)
        )
        oldest = text(_OLDEST.format(table=self._statements.table, passed=self._statements.passed))
        async with self.engine.connect() as connection:
            if self._statements is _BY_PROGRESS:
                noted = {"shards": sorted(shards), "now": now, "before": before}
                await connection.execute(_NOTE_POINT, {**noted, "latest": now - retention / _KEPT_POINTS})
                await connection.execute(_FORGET_POINTS, noted)
            while True:
                values = {"last": last, "portion": limit, "before": before}
                rows = (await connection.execute(oldest, values)).all()
                if ids := [row.id for row in rows if row.purgeable and row.shard in shards]:
                    gone += (await connection.execute(delete, {"ids": ids})).rowcount
                    await asyncio.sleep(_PURGE_PAUSE)
                if len(rows) < limit or rows[-1].created_at >= before:
                    return gone
                last = rows[-1].id


_OLDEST = (
    f"SELECT id, shard, created_at, CASE WHEN status IN ('{PUBLISHED}', '{DROPPED}') "
    "AND COALESCE(published_at, created_at) < :before OR {passed} THEN 1 ELSE 0 END AS purgeable "
    "FROM {table} o WHERE id > :last ORDER BY id LIMIT :portion"
)


async def has_outbox(connection: AsyncConnection) -> bool:
    """True if the database has an outbox, with all of its tables."""
    needed = _statements(connection.dialect.name).needed_table
    return needed in await table_names(connection)


# Unpublished events: how many, and for how long.
_COUNT_WAITING = """
SELECT '{new}' AS status, o.shard, COUNT(*) AS events, {now} - MIN(o.created_at) AS oldest
FROM {waiting} GROUP BY o.shard
UNION ALL
SELECT status, shard, COUNT(*), {now} - MIN(created_at)
FROM {table} WHERE status IN ({set_aside}) GROUP BY status, shard
"""

_SELECT_TOPICS = """
SELECT DISTINCT topic FROM (
    SELECT topic FROM (SELECT topic FROM {table} ORDER BY id DESC LIMIT 1000) AS latest
    UNION SELECT topic FROM (SELECT o.topic FROM {waiting} ORDER BY o.id LIMIT 1000) AS first
    UNION SELECT topic FROM (SELECT topic FROM {table} WHERE status = '{suspended}' LIMIT 1000) AS late
) AS used
"""


@dataclass(frozen=True, slots=True)
class WaitingEvents:
    """Events of one status in one shard; ``oldest`` is the age of the oldest in seconds."""

    events: int = 0
    oldest: float = 0.0

    def __add__(self, other: WaitingEvents) -> WaitingEvents:
        return WaitingEvents(self.events + other.events, max(self.oldest, other.oldest))


@dataclass(frozen=True, slots=True)
class OutboxLag:
    """Unpublished events by status, then by shard."""

    by_status: Mapping[str, Mapping[int, WaitingEvents]] = field(default_factory=dict)

    def of(self, status: str, shard: int) -> WaitingEvents:
        return self.by_status.get(status, {}).get(shard, WaitingEvents())

    def total(self, status: str) -> WaitingEvents:
        """The sum over all shards, with the age of the oldest event."""
        return sum(self.by_status.get(status, {}).values(), WaitingEvents())


async def read_lag(engine: AsyncEngine) -> OutboxLag:
    """Count the unpublished events of an outbox. Raises SQLAlchemyError."""
    by_database = _statements(engine.dialect.name)
    statement = _COUNT_WAITING.format(
        now=now_sql(engine.dialect.name),
        new=NEW,
        table=by_database.table,
        waiting=by_database.waiting,
        set_aside=by_database.set_aside,
    )
    waiting: dict[str, dict[int, WaitingEvents]] = {}
    async with engine.connect() as connection:
        for status, shard, events, oldest in (await connection.execute(text(statement))).all():
            of_status = waiting.setdefault(NEW if status == SUSPENDED else status, {})
            counted = WaitingEvents(events, max(0.0, float(oldest)))
            of_status[shard] = of_status.get(shard, WaitingEvents()) + counted
    return OutboxLag(waiting)


async def topics_used(engine: AsyncEngine) -> list[str]:
    """The topics of the newest events and of the longest-waiting ones. Raises SQLAlchemyError."""
    by_database = _statements(engine.dialect.name)
    query = _SELECT_TOPICS.format(table=by_database.table, waiting=by_database.waiting, suspended=SUSPENDED)
    async with engine.connect() as connection:
        return sorted((await connection.execute(text(query))).scalars())
