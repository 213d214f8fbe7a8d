"""Events that need an operator: held ones whose saga gives no answer, and those that the broker refuses for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.outbox_postgresql import outbox_rows
from saga_activities.guard.stored_values import StoredValues, stored_values
from saga_activities.guard.tables import now_sql
from saga_activities.guard.unreadable_rows import UnreadableRow
from saga_activities.messaging.outbox import DROPPED, HELD, NEW, REFUSED, decrypted_event
from sagas.errors import RefusedError
from sagas.text.printable import MASK

MAX_UNANSWERED = 15
"""Consecutive checks without an answer before the event is listed for an operator: about half a day."""

_MAX_SHOWN = 100

_SELECT_UNDECIDED = (
    "SELECT event_id, status, topic, event_key, value, headers, saga_id, step, created_at, checks, note FROM {outbox} "
    f"WHERE status = '{REFUSED}' OR (status = '{HELD}' AND checks >= :checks) ORDER BY id LIMIT {_MAX_SHOWN}"
)
_COUNT_UNANSWERED = f"SELECT COUNT(*) FROM {{outbox}} WHERE status = '{HELD}' AND checks >= :checks"
_SELECT_EVENT = text("SELECT status, topic, saga_id, step, generation, checks FROM saga_outbox WHERE event_id = :id")
_UPDATE_STATUS = (
    "UPDATE {outbox} SET status = :status, note = :note, published_at = {dropped_at} "
    f"WHERE event_id = :id AND status IN ('{HELD}', '{REFUSED}')"
)

EventDecision = Literal["release", "drop"]


@dataclass(frozen=True, slots=True)
class UndecidedEvent:
    """An event that an operator decides about. ``since``: when it was written, in seconds since the epoch."""

    event_id: str
    status: str
    topic: str
    key: str | None
    saga_id: str
    step: str
    since: float
    checks: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "event": self.event_id,
            "status": self.status,
            "topic": self.topic,
            "key": self.key,
            "saga": self.saga_id,
            "step": self.step,
            "since": self.since,
            "checks": self.checks,
            "why": self.reason,
        }


async def list_undecided(engine: AsyncEngine) -> list[UndecidedEvent]:
    """The oldest hundred events that need an operator's decision. Raises SQLAlchemyError."""
    values = stored_values(engine)
    async with engine.connect() as connection:
        rows = (await connection.execute(_on_rows(_SELECT_UNDECIDED, engine), {"checks": MAX_UNANSWERED})).all()
    return [
        UndecidedEvent(
            row.event_id,
            row.status,
            row.topic,
            _key(row, values),
            row.saga_id,
            row.step,
            row.created_at,
            row.checks,
            row.note or "",
        )
        for row in rows
    ]


async def count_unanswered(engine: AsyncEngine) -> int:
    """The number of held events whose saga has given no answer for half a day. Raises SQLAlchemyError."""
    async with engine.connect() as connection:
        counted = await connection.execute(_on_rows(_COUNT_UNANSWERED, engine), {"checks": MAX_UNANSWERED})
        return counted.scalar_one()


def _key(row: Any, values: StoredValues) -> str | None:
    """The key of an event; `•••` if it is encrypted with a key that is not here."""
    try:
        return decrypted_event(row._mapping, values)["event_key"]
    except UnreadableRow:
        return MASK


def _on_rows(statement: str, engine: AsyncEngine) -> TextClause:
    return text(statement.format(outbox=outbox_rows(engine.dialect.name).name))


async def read_event(engine: AsyncEngine, event_id: str) -> Any:
    """The row of an event: status, topic, saga_id, step, generation and checks; None if this outbox does not have it.

    Raises SQLAlchemyError.
    """
    async with engine.connect() as connection:
        return (await connection.execute(_SELECT_EVENT, {"id": event_id})).first()


async def decide_event(
    engine: AsyncEngine, event_id: str, decision: EventDecision, *, reason: str, who: str
) -> str | None:
    """Apply an operator's decision about a held or refused event: publish it, or never.

    Returns a message that says what was done; None if this outbox does not have the event. Raises RefusedError if there
    is nothing to decide about it, and SQLAlchemyError.
    """
    status = NEW if decision == "release" else DROPPED
    note = f"{decision}: {who}: {reason}"
    values = {"id": event_id, "status": status, "note": note}
    dropped_at = now_sql(engine.dialect.name) if status == DROPPED else "NULL"
    update = _UPDATE_STATUS.replace("{dropped_at}", dropped_at)
    async with engine.connect() as connection:
        row = (await connection.execute(_SELECT_EVENT, {"id": event_id})).first()
        if row is None:
            return None
        if (await connection.execute(_on_rows(update, engine), values)).rowcount != 1:
            now = (await connection.execute(_SELECT_EVENT, {"id": event_id})).first()
            state = row.status if now is None else now.status
            raise RefusedError(
                f"the event {event_id} is {state}; only HELD and REFUSED events can be released or dropped"
            )
    done = "will be published" if decision == "release" else "will never be published"
    return f"the event {event_id} of {row.saga_id}/{row.step} for {row.topic} {done}"
