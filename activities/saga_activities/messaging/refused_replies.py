"""Notes in the row of a command that a reply to it was refused, for who looks why its saga waits."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.database_clock import DatabaseNow
from saga_activities.guard.tables import MAX_STEP_KEY, request_table
from saga_activities.kafka.record_codec import STEP_KEY_HEADER, decode_headers
from sagas.actions.message_headers import UnreadableHeader
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_MAX_REASON = 300


async def note_refusal(engine: AsyncEngine, headers: Sequence[tuple[str, bytes | None]], reason: str) -> None:
    """Note the ``reason`` in the row of the command that the ``headers`` of a refused reply name, while it has no
    reply. Anybody who may write to the reply topic can cause a note, and nothing else. Raises SQLAlchemyError.
    """
    try:
        key = decode_headers(headers).get(STEP_KEY_HEADER)
    except UnreadableHeader:
        return
    if not key or len(key) > MAX_STEP_KEY or "\0" in key:
        return
    columns = request_table.c
    waits = sa.and_(columns.step_key == key, columns.outcome.is_(None))
    note = {"refusal": shorten(printable_line(reason), _MAX_REASON), "refused_at": DatabaseNow()}
    async with engine.connect() as connection:
        await connection.execute(sa.update(request_table).where(waits).values(**note))
