"""The events of one saga in the outboxes of a project."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from saga_activities.guard.tables import outbox_table
from saga_workers.location.traces import reading_tables
from saga_workers.relay.outbox_table import has_outbox
from sagas.settings import Settings

MAX_EVENTS = 100
"""Events of a saga that are listed, the oldest first."""


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """A row of ``saga_outbox`` without its content. ``created_at``: in seconds since the epoch."""

    connection: str
    event_id: str
    topic: str
    step: str
    status: str
    created_at: float
    note: str | None


async def events_of_saga(settings: Settings, saga_id: str) -> list[OutboxEvent]:
    """The first events that a saga has written, of all connections. Raises SagaError."""
    columns = outbox_table.c
    query = (
        sa.select(columns.event_id, columns.topic, columns.step, columns.status, columns.created_at, columns.note)
        .where(columns.saga_id == saga_id)
        .order_by(columns.id)
        .limit(MAX_EVENTS)
    )
    events: list[OutboxEvent] = []
    for connection in settings.sql_connections():
        async with reading_tables(connection, "the outbox") as (engine, _), engine.connect() as database:
            if await has_outbox(database):
                events += [OutboxEvent(connection.name, *row) for row in await database.execute(query)]
    return events[:MAX_EVENTS]
