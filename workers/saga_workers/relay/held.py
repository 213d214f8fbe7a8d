"""Events that wait for a person: held ones that no saga answers for, and those the broker will never take."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.outbox import DROPPED, HELD, NEW, REFUSED
from saga_workers.databases import database_says
from saga_workers.relay.check_back import UNANSWERED
from saga_workers.relay.run import open_databases
from sagas.errors import RefusedError, SagaError, UsageError
from sagas.settings import Settings

_SHOWN = 100
_PATIENCE = 15.0

_UNDECIDED = text(
    "SELECT event_id, status, topic, event_key, saga_id, step, created_at, checks, note FROM saga_outbox "
    f"WHERE status = '{REFUSED}' OR (status = '{HELD}' AND checks >= :checks) ORDER BY id LIMIT {_SHOWN}"
)
_ONE = text("SELECT status, topic, saga_id, step FROM saga_outbox WHERE event_id = :id")
_DECIDE = text(
    "UPDATE saga_outbox SET status = :status, note = :note, published_at = :dropped_at "
    f"WHERE event_id = :id AND status IN ('{HELD}', '{REFUSED}')"
)

Decision = Literal["release", "drop"]


@dataclass(frozen=True, slots=True)
class Undecided:
    """An event a person decides about. ``since``: when it was written, seconds since the epoch."""

    event_id: str
    status: str
    topic: str
    key: str | None
    saga_id: str
    step: str
    since: float
    checks: int
    why: str

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
            "why": self.why,
        }


async def undecided(engine: AsyncEngine, checks: int = UNANSWERED) -> list[Undecided]:
    """The events a person has to decide about, the oldest hundred. Raises SQLAlchemyError."""
    async with engine.connect() as connection:
        rows = (await connection.execute(_UNDECIDED, {"checks": checks})).all()
    return [
        Undecided(
            row.event_id,
            row.status,
            row.topic,
            row.event_key,
            row.saga_id,
            row.step,
            row.created_at,
            row.checks,
            row.note or "",
        )
        for row in rows
    ]


async def decide(engine: AsyncEngine, event_id: str, decision: Decision, *, reason: str, who: str) -> str | None:
    """What a person says about an event that is held, or that the broker refused: publish it, or never.

    A sentence that says what was done; None: this outbox has no such event. Raises RefusedError when there is nothing
    to decide about it, SQLAlchemyError.
    """
    status = NEW if decision == "release" else DROPPED
    note = f"{decision}: {who}: {reason}"
    values = {"id": event_id, "status": status, "note": note, "dropped_at": time.time() if status == DROPPED else None}
    async with engine.connect() as connection:
        row = (await connection.execute(_ONE, {"id": event_id})).first()
        if row is None:
            return None
        if (await connection.execute(_DECIDE, values)).rowcount != 1:
            now = (await connection.execute(_ONE, {"id": event_id})).first()
            state = row.status if now is None else now.status
            raise RefusedError(f"The event {event_id} is {state}: a person decides only what is HELD or REFUSED.")
    done = "will be published" if decision == "release" else "will never be published"
    return f"The event {event_id} of {row.saga_id}/{row.step} for {row.topic} {done}."


async def decide_anywhere(
    settings: Settings, connection: str | None, event_id: str, decision: Decision, *, reason: str, who: str
) -> str:
    """:func:`decide` in whichever outbox of the project has the event.

    Raises UsageError: none has it. RefusedError. SagaError: a database does not answer.
    """
    databases = open_databases(settings, connection, 1)
    try:
        for name in databases.names():
            try:
                async with asyncio.timeout(_PATIENCE):
                    said = await decide(databases.engine(name), event_id, decision, reason=reason, who=who)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                raise SagaError(
                    f"The database of the connection {name} does not answer: {database_says(error)}."
                ) from error
            if said is not None:
                return said
    finally:
        await databases.close()
    raise UsageError(f"No outbox has an event {event_id}.", help="saga relay --status    shows what waits for a person")
