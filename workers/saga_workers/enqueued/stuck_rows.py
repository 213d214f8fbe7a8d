"""Enqueued rows that will not be delivered by themselves, or have waited for long, in words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from saga_activities.enqueued.tables import NEW, REFUSED
from saga_workers.enqueued.enqueued_table import Enqueued, EnqueuedTable
from saga_workers.enqueued.row_decisions import ListedRow, enqueued_database, read_rows
from sagas.errors import SagaError
from sagas.settings import Settings
from sagas.text.shortening import counted

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
    problems = []
    if refused_rows:
        refused = counted(counts.get(REFUSED, Enqueued()).rows, "enqueued row was", "enqueued rows were")
        problems.append(f"{refused} refused; row {refused_rows[0].row}: {refused_rows[0].reason}")
    new = counts.get(NEW, Enqueued())
    if new.oldest > MAX_DELAY:
        waits = counted(new.rows, "enqueued row waits", "enqueued rows wait")
        problems.append(f"{waits}, the oldest for {new.oldest:.0f} s: {_why(settings, new_rows)}")
    return problems


def _why(settings: Settings, rows: Sequence[ListedRow]) -> str:
    reason = rows[0].reason if rows else None
    return reason or f"perhaps no `saga {settings.enqueue.delivered_by}` runs"
