"""The inbox of a consumer: the id of each message, inserted in the transaction of its effect.

The insert is the first statement and waits for an open transaction that has inserted the same id, so exactly one of
two deliveries has its effect, in whichever processes they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.schema import MYSQL_DIALECTS
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.tables import MAX_NAME, now_sql
from sagas.errors import UsageError
from sagas.text.exact_numbers import exact_value, is_whole
from sagas.text.shortening import shorten

InboxStatus = Literal["DONE", "REJECTED", "DEAD"]
"""The result of a message: it had its effect, was rejected, or had no effect because every attempt failed."""

_COLUMNS = "(consumer, event_id, topic, topic_id, topic_partition, topic_offset, digest, status, reason, received_at)"
_VALUES = "(:consumer, :event_id, :topic, :topic_id, :partition, :offset, :digest, :status, :reason, {now})"
_SELECT_ROW = (
    "SELECT topic, topic_partition, topic_offset, digest, status, reason FROM saga_inbox"
    " WHERE consumer = :consumer AND event_id = :event_id"
)
_RAISE_VERSION = (
    "UPDATE saga_version_seen SET version = :version"
    " WHERE consumer = :consumer AND entity = :entity AND version < :version"
)


@dataclass(frozen=True, slots=True)
class InboxRow:
    """The row of one message of one consumer. ``digest`` is that of its content."""

    consumer: str
    event_id: str
    topic: str
    topic_id: str
    partition: int
    offset: int
    digest: str


@dataclass(frozen=True, slots=True)
class TopicUse:
    """The messages of a topic that a consumer has handled: how many, and when the last (seconds since the epoch)."""

    consumer: str
    messages: int
    last_at: float


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The existing row of a message that was recorded before.

    ``other``: topic/partition/offset of a message with the same id and other content, which the row belongs to; None
    if it is the same message.
    """

    status: InboxStatus
    reason: str | None
    other: str | None = None


def _insert_ignore(dialect: str, table: str) -> str:
    """The start of an insert that ignores an existing row of the same key and then affects no row."""
    return f"INSERT IGNORE INTO {table}" if dialect in MYSQL_DIALECTS else f"INSERT INTO {table}"


def _on_conflict(dialect: str) -> str:
    return "" if dialect in MYSQL_DIALECTS else " ON CONFLICT DO NOTHING"


async def record(
    sql: SqlSession, message: InboxRow, status: InboxStatus, reason: str | None = None
) -> Duplicate | None:
    """Insert the row of a message; returns the existing one if it was recorded before, else None."""
    dialect = sql.dialect
    touched = await sql.execute(
        f"{_insert_ignore(dialect, 'saga_inbox')} {_COLUMNS}"
        f" VALUES {_VALUES.format(now=now_sql(dialect))}{_on_conflict(dialect)}",
        consumer=message.consumer,
        event_id=message.event_id,
        topic=message.topic,
        topic_id=message.topic_id,
        partition=message.partition,
        offset=message.offset,
        digest=message.digest,
        status=status,
        reason=None if reason is None else reason.replace("\0", ""),  # PostgreSQL's text cannot contain it
    )
    if touched:
        return None
    # On MySQL a plain read would not see the row that the insert has waited for, if the transaction has read before.
    read = f"{_SELECT_ROW} LOCK IN SHARE MODE" if dialect in MYSQL_DIALECTS else _SELECT_ROW
    row: Mapping[str, Any] = await sql.one(read, consumer=message.consumer, event_id=message.event_id)
    is_same = row["digest"] == message.digest
    place = "{topic}/{topic_partition}/{topic_offset}".format_map(row)
    return Duplicate(row["status"], row["reason"], None if is_same else place)


async def topic_uses(engine: AsyncEngine, topic: str, topic_id: str) -> list[TopicUse]:
    """The consumers that have handled messages of a topic, as far as their rows are kept. Reads all rows."""
    statement = (
        "SELECT consumer, count(*), max(received_at) FROM saga_inbox"
        " WHERE topic = :topic AND topic_id = :topic_id GROUP BY consumer ORDER BY consumer"
    )
    async with engine.connect() as connection:
        rows = await connection.execute(sa.text(statement), {"topic": topic, "topic_id": topic_id})
        return [TopicUse(*row) for row in rows]


async def is_newer(sql: SqlSession, consumer: str, entity: str, version: int) -> bool:
    """True if ``version`` is higher than any that this consumer has seen of ``entity``; it is then recorded as seen.

    Raises UsageError for what some database would change, and so confuse with another entity or version: a name that
    is not text or too long, and a version that is not an integer of 64 bits.
    """
    if not isinstance(entity, str):
        raise UsageError(f"the name of an entity must be a text, not {_shown(entity)}")
    if len(entity) > MAX_NAME:
        raise UsageError(f"the name of an entity, {entity[:40]}…, is longer than {MAX_NAME} characters")
    values = {"consumer": consumer, "entity": entity, "version": _stored_version(version)}
    if await sql.execute(_RAISE_VERSION, values):
        return True
    dialect = sql.dialect
    first = (
        f"{_insert_ignore(dialect, 'saga_version_seen')} (consumer, entity, version)"
        f" VALUES (:consumer, :entity, :version){_on_conflict(dialect)}"
    )
    # Another transaction may insert the entity between the two statements, possibly with an older version.
    return bool(await sql.execute(first, values)) or bool(await sql.execute(_RAISE_VERSION, values))


def _stored_version(version: Any) -> int:
    """The version as the column holds it, of 3.0 too. Raises UsageError."""
    number = exact_value(version)
    if not is_whole(number) or not -(1 << 63) <= number < 1 << 63:
        raise UsageError(
            f"a version must be an integer of at most 64 bits, not {_shown(version)}:"
            " number the versions of an entity 1, 2, 3, or use a time in whole milliseconds"
        )
    return int(number)


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 40 else f"{shorten(text, 40)}…"


async def purge(engine: AsyncEngine, older_than: float, limit: int = 1_000) -> int:
    """Delete at most ``limit`` rows received before ``older_than``, in seconds since the epoch by the database's clock.

    Returns the number of deleted rows.
    """
    one_portion = (
        "SELECT consumer, event_id FROM saga_inbox WHERE received_at < :before ORDER BY received_at LIMIT :portion"
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(sa.text(one_portion), {"before": older_than, "portion": limit})).all()
        delete = sa.text("DELETE FROM saga_inbox WHERE consumer = :consumer AND event_id = :event_id")
        for row in rows:
            await connection.execute(delete, {"consumer": row[0], "event_id": row[1]})
    return len(rows)
