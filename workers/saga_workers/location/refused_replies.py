"""Commands that have no reply, although one has come: it was refused, as from somebody else than the participant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from saga_activities.guard.entry_key import fits_guard_key
from saga_activities.guard.tables import request_table
from saga_workers.location.traces import reading_tables
from sagas.definition.times import format_timestamp
from sagas.settings import Settings

_MOST = 500
_MOST_SHOWN = 5_000

_WORDS = {"undo": "the undo of ", "confirm": "the confirm of "}


@dataclass(frozen=True, slots=True)
class ReplyRefusal:
    """The last reply to the command of an entry that was refused, and why. ``at``: seconds since the epoch."""

    saga_id: str
    step: str
    op: str
    reason: str
    at: float

    @property
    def text(self) -> str:
        when = format_timestamp(min(max(self.at, 0.0), datetime.max.replace(tzinfo=UTC).timestamp() - 86_400))
        what = f"{_WORDS.get(self.op, '')}{self.step}"
        return f"a reply to the command of {what} was refused at {when}, and is a dead letter: {self.reason}"


async def refused_replies(settings: Settings, saga_ids: Sequence[str]) -> list[ReplyRefusal]:
    """The refused replies to commands of these sagas that have no other reply, of the first many. Raises SagaError."""
    ids = [id for id in saga_ids if fits_guard_key(id)][:_MOST]
    return await _select(settings, request_table.c.saga_id.in_(ids)) if ids else []


async def newest_refused_replies(settings: Settings) -> dict[str, list[ReplyRefusal]]:
    """The newest refused replies to commands that have no other reply, of all sagas, by saga id. A saga that has ended
    may be among them. Raises SagaError.
    """
    refused: dict[str, list[ReplyRefusal]] = {}
    for reply in await _select(settings, sa.true()):
        refused.setdefault(reply.saga_id, []).append(reply)
    return refused


async def _select(settings: Settings, condition: sa.ColumnElement[bool]) -> list[ReplyRefusal]:
    """The newest many, the oldest first."""
    outbox = settings.kafka.outbox
    if outbox is None:
        return []
    columns = request_table.c
    query = sa.select(columns.saga_id, columns.step, columns.op, columns.refusal, columns.refused_at).where(
        condition, columns.refusal.is_not(None), columns.outcome.is_(None)
    )
    async with reading_tables(settings.sql_connection(outbox), "the commands") as (engine, tables):
        if request_table.name not in tables:
            return []
        async with engine.connect() as database:
            newest = await database.execute(query.order_by(columns.refused_at.desc()).limit(_MOST_SHOWN))
            return [ReplyRefusal(*row) for row in newest][::-1]
