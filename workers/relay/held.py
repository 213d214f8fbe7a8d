"""Held events that nobody answers for, and what a person decides about an event."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from activities.outbox import DROPPED, HELD, NEW, REFUSED
from sagas.errors import RefusedError, UsageError
from workers.relay.check_back import UNANSWERED

_SHOWN = 100

_ORPHANS = text(
    "SELECT event_id, topic, event_key, saga_id, step, created_at, checks, note FROM saga_outbox "
    f"WHERE status = '{HELD}' AND checks >= :checks ORDER BY id LIMIT {_SHOWN}"
)
_ONE = text("SELECT status, topic, saga_id, step FROM saga_outbox WHERE event_id = :id")
_DECIDE = text(
    "UPDATE saga_outbox SET status = :status, note = :note, published_at = :dropped_at "
    f"WHERE event_id = :id AND status IN ('{HELD}', '{REFUSED}')"
)

Decision = Literal["release", "drop"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A held event whose saga could not be asked, again and again. ``held_since``: seconds since the epoch."""

    event_id: str
    topic: str
    key: str | None
    saga_id: str
    step: str
    held_since: float
    checks: int
    why: str

    def to_json(self) -> dict[str, Any]:
        return {
            "event": self.event_id,
            "topic": self.topic,
            "key": self.key,
            "saga": self.saga_id,
            "step": self.step,
            "held_since": self.held_since,
            "checks": self.checks,
            "why": self.why,
        }


async def orphans(engine: AsyncEngine, checks: int = UNANSWERED) -> list[Orphan]:
    """The held events a person has to decide about, the oldest hundred. Raises SQLAlchemyError."""
    async with engine.connect() as connection:
        rows = (await connection.execute(_ORPHANS, {"checks": checks})).all()
    return [
        Orphan(
            row.event_id, row.topic, row.event_key, row.saga_id, row.step, row.created_at, row.checks, row.note or ""
        )
        for row in rows
    ]


async def decide(engine: AsyncEngine, event_id: str, decision: Decision, *, reason: str, who: str) -> str | None:
    """What a person says about an event that is held, or that the broker refused: publish it, or never.

    A sentence that says what was done; None: this outbox has no such event. Raises RefusedError when there is nothing
    to decide about it, UsageError without a reason, SQLAlchemyError.
    """
    if not reason.strip():
        raise UsageError("a decision about an event needs a reason", help="--reason 'a sentence'")
    status = NEW if decision == "release" else DROPPED
    note = f"{decision}: {who}: {reason.strip()}"
    values = {"id": event_id, "status": status, "note": note, "dropped_at": time.time() if status == DROPPED else None}
    async with engine.connect() as connection:
        row = (await connection.execute(_ONE, {"id": event_id})).first()
        if row is None:
            return None
        if (await connection.execute(_DECIDE, values)).rowcount != 1:
            now = (await connection.execute(_ONE, {"id": event_id})).first()
            state = row.status if now is None else now.status
            raise RefusedError(f"event {event_id} is {state}: only what is HELD or REFUSED is decided by a person")
    done = "will be published" if decision == "release" else "will never be published"
    return f"event {event_id} of {row.saga_id}/{row.step} for {row.topic} {done}"
