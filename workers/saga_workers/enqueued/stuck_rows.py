"""Enqueued rows that will not be delivered by themselves, or have waited for long, in words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.enqueued.tables import NEW, REFUSED
from saga_workers.enqueued.enqueued_table import Enqueued, EnqueuedTable
from saga_workers.enqueued.row_decisions import ListedRow, enqueued_database, read_rows
from sagas.errors import SagaError
from sagas.settings import Settings
from sagas.text.shortening import counted

_LOOK = 2.0
"""Seconds in which a row is delivered, unless nobody delivers."""

_IN_ORDER = "they are being delivered, rows with the same key after each other"

MAX_DELAY = 60.0
"""Seconds a row may wait; its delivery takes milliseconds, and a restart of its process a few seconds."""


async def stuck_rows(settings: Settings) -> AsyncIterator[tuple[str, str]]:
    """Each connection of ``[enqueue]`` with such rows, and what is the matter, or why that cannot be read."""
    for name in settings.enqueue.connections:
        try:
            problems = await _problems(settings, name)
        except SagaError as error:
            problems = [error.message]
        for problem in problems:
            yield name, problem


async def _problems(settings: Settings, name: str) -> list[str]:
    async with enqueued_database(settings, name) as engine:
        counts = await EnqueuedTable(engine).counts()
        refused_rows = await read_rows(name, engine, (REFUSED,), 1)
        new_rows = await read_rows(name, engine, (NEW,), 1)
        new = counts.get(NEW, Enqueued())
        # Of a single row nobody can see that others go before it.
        looks = new.oldest > MAX_DELAY and new.rows > 1 and new_rows and not new_rows[0].reason
        in_order = bool(looks) and await _are_delivered(name, engine, new_rows[0].row)
    problems = []
    if refused_rows:
        refused = counted(counts.get(REFUSED, Enqueued()).rows, "enqueued row was", "enqueued rows were")
        problems.append(f"{refused} refused; row {refused_rows[0].row}: {refused_rows[0].reason}")
    if new.oldest > MAX_DELAY:
        waits = counted(new.rows, "enqueued row waits", "enqueued rows wait")
        why = _IN_ORDER if in_order else _why(settings, new_rows)
        problems.append(f"{waits}, the oldest for {new.oldest:.0f} s: {why}")
    return problems


async def _are_delivered(name: str, engine: AsyncEngine, first: int) -> bool:
    """True if the row that was the oldest is delivered within a short time."""
    deadline = time.monotonic() + _LOOK
    while time.monotonic() < deadline:
        rows = await read_rows(name, engine, (NEW,), 1)
        if not rows or rows[0].row != first:
            return True
        await asyncio.sleep(0.2)
    return False


def _why(settings: Settings, rows: Sequence[ListedRow]) -> str:
    reason = rows[0].reason if rows else None
    return reason or f"perhaps no `saga {settings.enqueue.delivered_by}` runs"
