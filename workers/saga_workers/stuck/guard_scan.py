"""Finds sagas that may have lost their run among all sagas of the guards, whose ids nobody has to know.

A guard has rows of every saga within its retention, so they are read in portions, in the order of their ids. Temporal
deletes a closed run after its own retention: only a saga with a row that is younger must have a run.

Most sagas need no closer look: the newest run of their id was open at all times at which the guard has recorded an
effect, and has ended by itself or is open. If the clocks of a database and of Temporal differ, the origins of the
effects decide, which have the time of Temporal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus

from saga_activities.guard.entry_key import PARTICIPANT_PREFIX
from saga_activities.guard.tables import guard_table
from saga_workers.location.locator import Locator
from saga_workers.location.traces import GuardedEffect, effects_of_sagas, reading_tables
from saga_workers.stuck.lost_effects import OVER, made_by
from saga_workers.temporal.claimed_states import carried_start
from saga_workers.temporal.saga_runs import describe_saga_run, was_never_accepted
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import RunInfo, list_runs, namespace_retention
from saga_workers.temporal.visibility_filter import has_literal, quote
from sagas.protocol.payloads import NOTIFICATION_PREFIX
from sagas.settings import Settings

MIN_AGE = 60.0
"""Seconds; a saga with a younger row may be missing in the visibility store, or end in a moment."""

MAX_SCANNED = 20_000
"""Sagas that a command reads in the guards; a worker reads all of them, in smaller portions."""

_MAX_MARGIN = 3600.0
"""Seconds before the end of Temporal's retention, because clocks differ."""

_IDS_AT_ONCE = 50
_OF_NO_STEP = (PARTICIPANT_PREFIX, NOTIFICATION_PREFIX)


class GuardScan:
    """A position in the guards of a project. ``complete``: the last of them has been read to its end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connections = settings.sql_connections()
        self._current = 0
        self._after = ""
        self.complete = not self._connections
        self._time: ServerTime | None = None

    async def find_suspects(self, locator: Locator, limit: int, *, since: float = 0.0) -> list[str]:
        """The sagas among the next ``limit`` that have open effects which the newest run of their id may not have made,
        and no end in the ledger, or that have completed and have undone effects.

        ``since``: only sagas with a row from this time. After the last saga the next call begins with the first.
        Raises SagaError, RPCError.
        """
        retention = await namespace_retention(locator.temporal)
        now = await self._now(locator)
        kept_since = now - retention + min(_MAX_MARGIN, retention / 10)
        sagas = await self._read(limit, max(since, kept_since), now - MIN_AGE)
        runs = await _newest_runs(locator.temporal, list(sagas))
        rows = {id: portion for id, portion in sagas.items() if any(row.open > 0 for row in portion)}
        missing = [id for id in rows if id not in runs]
        # Of a later generation the row in the ledger may be that of an earlier one.
        first = [id for id in missing if all(row.generation == 1 for row in rows[id])]
        ended = {id for id, state in (await locator.ledger.states(first)).items() if state in OVER}
        present = {id: run for id, run in runs.items() if id in rows}
        doubtful = [id for id, run in present.items() if not all([await _spans(run, row) for row in rows[id]])]
        effects = await effects_of_sagas(self._settings, doubtful)
        others = [id for id in doubtful if not await _made_all(runs[id], effects[id])]
        return list(dict.fromkeys([*(id for id in missing if id not in ended), *others, *_completed(runs, sagas)]))

    async def _now(self, locator: Locator) -> float:
        """The time of the Temporal server; this machine's if the two cannot be compared: nothing is deleted by it."""
        if self._time is None:
            self._time = ServerTime(locator.temporal)
        return await self._time.likely()

    async def _read(self, limit: int, since: float, until: float) -> dict[str, list[Any]]:
        """The rows of :func:`_read_portion` of sagas with open or undone entries whose newest row is from this
        time, by id.
        """
        sagas: dict[str, list[Any]] = {}
        while limit > 0 and self._connections:
            async with reading_tables(self._connections[self._current], "the guard") as (engine, tables):
                rows = await _read_portion(engine, self._after, limit) if guard_table.name in tables else []
            for row in rows:
                if (row.open > 0 or row.undone > 0) and since < row.newest < until:
                    sagas.setdefault(row.saga_id, []).append(row)
            if len(rows) == limit:
                self._after = rows[-1].saga_id
                break
            limit -= len(rows)
            self._after = ""
            self._current = (self._current + 1) % len(self._connections)
            if self._current == 0:
                self.complete = True
                break
        return sagas


async def _read_portion(engine: AsyncEngine, after: str, limit: int) -> Sequence[Any]:
    """Sagas by id, each with the times of its rows, and how many of its entries are undone and are not: the primary key
    has this order.

    The rows of a participant are keyed by commands of others, whose sagas are none of this project. Those of
    notifications are made after the end of their saga.
    """
    row = guard_table.c
    entry = sa.case((row.op == "do", 1), (row.op == "undo", -1), else_=0)
    made_at = sa.case((row.op == "do", row.created_at))
    query = (
        sa.select(
            row.saga_id,
            sa.func.max(row.created_at).label("newest"),
            sa.func.sum(entry).label("open"),
            sa.func.sum(sa.case((row.op == "undo", 1), else_=0)).label("undone"),
            sa.func.min(made_at).label("first_made"),
            sa.func.max(made_at).label("last_made"),
            sa.func.max(row.generation).label("generation"),
        )
        .where(row.saga_id > after, *(~row.step.startswith(prefix, autoescape=True) for prefix in _OF_NO_STEP))
        .group_by(row.saga_id)
        .order_by(row.saga_id)
        .limit(limit)
    )
    async with engine.connect() as connection:
        return (await connection.execute(query)).all()


async def _newest_runs(temporal: Temporal, ids: Sequence[str]) -> dict[str, RunInfo]:
    """The newest run of each id, open or closed, but for those that were never accepted."""
    # Only of these the store can be asked by their ids.
    literals = [id for id in ids if has_literal(id)]
    described = [await describe_saga_run(temporal, id) for id in set(ids) - set(literals)]
    newest = {saga.run.id: saga.run for saga in described if saga is not None and not saga.never_accepted}
    for start in range(0, len(literals), _IDS_AT_ONCE):
        asked = literals[start : start + _IDS_AT_ONCE]
        names = ", ".join(quote(id) for id in asked)
        async for run in list_runs(temporal, f"WorkflowId IN ({names})"):
            is_newer = run.id not in newest or newest[run.id].start_time < run.start_time
            if run.id in asked and is_newer and not await was_never_accepted(temporal, run):
                newest[run.id] = run
    return newest


def _completed(runs: Mapping[str, RunInfo], sagas: Mapping[str, Sequence[Any]]) -> list[str]:
    """The sagas that have completed, although the guard has an undo of them."""
    completed = [id for id, run in runs.items() if run.status is WorkflowExecutionStatus.COMPLETED]
    return [id for id in completed if any(row.undone > 0 for row in sagas[id])]


def _may_end(run: RunInfo) -> bool:
    """True if a run is open, or has ended by itself: a closed one of another kind may have had a successor."""
    return run.running or run.ended_by_itself


async def _spans(run: RunInfo, row: Any) -> bool:
    """True if the run was open when the guard recorded the effects of this row."""
    began = await carried_start(run)
    since = run.start_time.timestamp() if began is None else began
    is_until = run.close_time is None or row.last_made <= run.close_time.timestamp()
    return _may_end(run) and since <= row.first_made and is_until


async def _made_all(run: RunInfo, effects: Sequence[GuardedEffect]) -> bool:
    """True if the run is of the saga of each open effect that says of which one it is."""
    origins = [effect.origin for effect in effects if effect.open and effect.origin is not None]
    return _may_end(run) and all([await made_by(run, origin) for origin in origins])
