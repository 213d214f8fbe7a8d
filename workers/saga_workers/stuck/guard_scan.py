"""Finds sagas without a run among all sagas of the guards, whose ids nobody has to know.

A guard has rows of every saga within its retention, so they are read in portions, in the order of their ids. Temporal
deletes a closed run after its own retention: only a saga with a row that is younger must have a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal

from saga_activities.guard.entry_key import PARTICIPANT_PREFIX
from saga_activities.guard.tables import guard_table
from saga_workers.location.locator import Locator
from saga_workers.location.traces import reading_tables
from saga_workers.stuck.verdict import OVER
from saga_workers.temporal.saga_runs import describe_saga_run, was_never_accepted
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import list_runs, namespace_retention
from saga_workers.temporal.visibility_filter import has_literal, quote
from sagas.settings import Settings

MIN_AGE = 60.0
"""Seconds; a saga with a younger row may be missing in the visibility store, or end in a moment."""

MAX_SCANNED = 20_000
"""Sagas that a command reads in the guards; a worker reads all of them, in smaller portions."""

_MAX_MARGIN = 3600.0
"""Seconds before the end of Temporal's retention, because clocks differ."""

_IDS_AT_ONCE = 50


class GuardScan:
    """A position in the guards of a project. ``complete``: the last of them has been read to its end."""

    def __init__(self, settings: Settings) -> None:
        self._connections = settings.sql_connections()
        self._current = 0
        self._after = ""
        self.complete = not self._connections
        self._time: ServerTime | None = None

    async def find_suspects(self, locator: Locator, limit: int) -> list[str]:
        """The sagas among the next ``limit`` that have open effects, no run, and no end in the ledger.

        After the last saga the next call begins with the first. Raises SagaError, RPCError.
        """
        retention = await namespace_retention(locator.temporal)
        now = await self._now(locator)
        ids = await self._read(limit, now - retention + min(_MAX_MARGIN, retention / 10), now - MIN_AGE)
        missing = await _without_run(locator.temporal, ids)
        ended = {id for id, state in (await locator.ledger.states(missing)).items() if state in OVER}
        return [id for id in missing if id not in ended]

    async def _now(self, locator: Locator) -> float:
        """The time of the Temporal server; this machine's if the two cannot be compared: nothing is deleted by it."""
        if self._time is None:
            self._time = ServerTime(locator.temporal)
        return await self._time.likely()

    async def _read(self, limit: int, since: float, until: float) -> list[str]:
        """The sagas with open entries whose newest row is from this time."""
        ids: dict[str, None] = {}
        while limit > 0 and self._connections:
            async with reading_tables(self._connections[self._current], "the guard") as (engine, tables):
                rows = await _read_portion(engine, self._after, limit) if guard_table.name in tables else []
            ids |= {row.saga_id: None for row in rows if row.open > 0 and since < row.newest < until}
            if len(rows) == limit:
                self._after = rows[-1].saga_id
                break
            limit -= len(rows)
            self._after = ""
            self._current = (self._current + 1) % len(self._connections)
            if self._current == 0:
                self.complete = True
                break
        return list(ids)


async def _read_portion(engine: AsyncEngine, after: str, limit: int) -> Sequence[Any]:
    """Sagas by id, each with its newest row and its entries that are not undone: the primary key has this order.

    The rows of a participant are keyed by commands of others, whose sagas are none of this project.
    """
    row = guard_table.c
    entry = sa.case((row.op == "do", 1), (row.op == "undo", -1), else_=0)
    query = (
        sa.select(row.saga_id, sa.func.max(row.created_at).label("newest"), sa.func.sum(entry).label("open"))
        .where(row.saga_id > after, ~row.step.startswith(PARTICIPANT_PREFIX, autoescape=True))
        .group_by(row.saga_id)
        .order_by(row.saga_id)
        .limit(limit)
    )
    async with engine.connect() as connection:
        return (await connection.execute(query)).all()


async def _without_run(temporal: Temporal, ids: Sequence[str]) -> list[str]:
    """The ids of which Temporal has no run, neither open nor closed, but for those that were never accepted."""
    # Only of these the store can be asked by their ids.
    literals = [id for id in ids if has_literal(id)]
    described = [await describe_saga_run(temporal, id) for id in set(ids) - set(literals)]
    there = {saga.run.id for saga in described if saga is not None and not saga.never_accepted}
    for start in range(0, len(literals), _IDS_AT_ONCE):
        names = ", ".join(quote(id) for id in literals[start : start + _IDS_AT_ONCE])
        runs = list_runs(temporal, f"WorkflowId IN ({names})")
        there |= {run.id async for run in runs if not await was_never_accepted(temporal, run)}
    return [id for id in ids if id not in there]
