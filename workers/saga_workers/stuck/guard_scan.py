"""Finds sagas that may have lost their run among all sagas of the guards and of commands, whose ids nobody has to know.

Databases have rows of every saga within their retention, so they are read in portions, in the order of their keys.
Temporal deletes a closed run after its own retention: only a saga with a row that is younger must have a run.

Most sagas need no closer look: the newest run of their id was open at all times at which an effect was recorded, and
has ended by itself or is open on the project's task queue. If the clocks of a database and of Temporal differ, the
origins of the effects tell, which have the time of Temporal. All others are suspects, about which
:mod:`saga_workers.stuck.lost_effects` decides. So is a nested saga that has completed without a parent that was open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus

from saga_activities.guard.entry_key import PARTICIPANT_PREFIX
from saga_activities.guard.tables import guard_table, request_table
from saga_activities.messaging.kafka_request import DONE
from saga_workers.location.locator import Locator
from saga_workers.location.traces import RecordedEffect, effects_of_sagas, reading_tables
from saga_workers.stuck.lost_effects import was_open_at_start
from saga_workers.temporal.saga_runs import describe_saga_run, was_never_accepted
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_runs import RunInfo, list_runs, namespace_retention
from saga_workers.temporal.visibility_filter import has_literal, quote
from sagas.portions import in_portions
from sagas.protocol.payloads import NOTIFICATION_PREFIX
from sagas.protocol.saga_view import OVER
from sagas.settings import Settings, SqlConnection

MIN_AGE = 60.0
"""Seconds; a saga with a younger row may be missing in the visibility store, or end in a moment."""

MAX_SCANNED = 20_000
"""Sagas of guards, and commands, that a `saga` command reads; a worker reads all of them, in smaller portions."""

_MAX_MARGIN = 3600.0
"""Seconds before the end of Temporal's retention, because clocks differ."""

_IDS_AT_ONCE = 50
_OF_NO_STEP = (PARTICIPANT_PREFIX, NOTIFICATION_PREFIX)


class GuardScan:
    """A position in the databases of a project. ``complete``: the last of them has been read to its end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sources = [
            _ScannedTable(connection, guard_table, _read_guard) for connection in settings.sql_connections()
        ]
        if settings.kafka.outbox is not None:
            outbox = settings.sql_connection(settings.kafka.outbox)
            self._sources.append(_ScannedTable(outbox, request_table, _read_commands))
        self._current = 0
        self._after = ""
        self.complete = not self._sources
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
        queue = self._settings.temporal.task_queue
        doubtful = [id for id, run in present.items() if not all(_spans(run, row, queue) for row in rows[id])]
        effects = await effects_of_sagas(self._settings, doubtful)
        others = [id for id in doubtful if not _made_all(runs[id], effects[id], queue)]
        others += await _without_parent(locator.temporal, runs, present)
        return list(dict.fromkeys([*(id for id in missing if id not in ended), *others, *_completed(runs, sagas)]))

    async def _now(self, locator: Locator) -> float:
        """The time of the Temporal server; this machine's if the two cannot be compared: nothing is deleted by it."""
        if self._time is None:
            self._time = ServerTime(locator.temporal)
        return await self._time.likely()

    async def _read(self, limit: int, since: float, until: float) -> dict[str, list[_SagaRows]]:
        """The rows of sagas with open or undone entries whose newest row is from this time, by id."""
        sagas: dict[str, list[_SagaRows]] = {}
        while limit > 0 and self._sources:
            source, portion = self._sources[self._current], _ScannedPortion()
            async with reading_tables(source.connection, "the guard") as (engine, tables):
                if source.table.name in tables:
                    portion = await source.read(engine, self._after, limit)
            for rows in portion.sagas:
                if (rows.open > 0 or rows.undone > 0) and since < rows.newest < until:
                    sagas.setdefault(rows.saga_id, []).append(rows)
            if portion.size == limit:
                self._after = portion.last
                break
            limit -= portion.size
            self._after = ""
            self._current = (self._current + 1) % len(self._sources)
            if self._current == 0:
                self.complete = True
                break
        return sagas


@dataclass(slots=True)
class _SagaRows:
    """Rows of one saga: the times of the newest one and of its effects, and how many entries are undone and are not."""

    saga_id: str
    newest: float
    open: int = 0
    undone: int = 0
    first_made: float | None = None
    last_made: float | None = None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class _ScannedPortion:
    """``size``: the number of rows that were read, of which the ``last`` has this key."""

    sagas: Sequence[_SagaRows] = ()
    size: int = 0
    last: str = ""


class _ScannedTable(NamedTuple):
    """A table with a row of each effect of a kind. ``read`` reads at most so many rows after a key."""

    connection: SqlConnection
    table: sa.Table
    read: Callable[[AsyncEngine, str, int], Awaitable[_ScannedPortion]]


async def _read_guard(engine: AsyncEngine, after: str, limit: int) -> _ScannedPortion:
    """Sagas by id: the primary key has this order.

    The rows of a participant are keyed by commands of others, whose sagas are none of this project. Those of
    notifications are made after the end of their saga.
    """
    row = guard_table.c
    entry = sa.case((row.op == "do", 1), (row.op == "undo", -1), else_=0)
    made_at = sa.case((row.op == "do", row.created_at))
    query = (
        sa.select(
            row.saga_id,
            sa.func.max(row.created_at),
            sa.func.sum(entry),
            sa.func.sum(sa.case((row.op == "undo", 1), else_=0)),
            sa.func.min(made_at),
            sa.func.max(made_at),
            sa.func.max(row.generation),
        )
        .where(row.saga_id > after, *(~row.step.startswith(prefix, autoescape=True) for prefix in _OF_NO_STEP))
        .group_by(row.saga_id)
        .order_by(row.saga_id)
        .limit(limit)
    )
    async with engine.connect() as connection:
        sagas = [_SagaRows(*columns) for columns in await connection.execute(query)]
    return _ScannedPortion(sagas, len(sagas), sagas[-1].saga_id if sagas else "")


async def _read_commands(engine: AsyncEngine, after: str, limit: int) -> _ScannedPortion:
    """Commands by key. Those of one saga may be in two portions; who looks closer reads all of its rows."""
    row = request_table.c
    columns = (row.step_key, row.saga_id, row.generation, row.op, row.outcome, row.created_at)
    query = sa.select(*columns).where(row.step_key > after).order_by(row.step_key).limit(limit)
    async with engine.connect() as connection:
        commands = (await connection.execute(query)).all()
    sagas: dict[str, _SagaRows] = {}
    for command in commands:
        rows = sagas.setdefault(command.saga_id, _SagaRows(command.saga_id, command.created_at))
        rows.newest = max(rows.newest, command.created_at)
        rows.generation = max(rows.generation, command.generation)
        if command.op == "do" and command.outcome in (None, DONE):
            rows.open += 1
            rows.first_made = min(rows.first_made or command.created_at, command.created_at)
            rows.last_made = max(rows.last_made or 0.0, command.created_at)
        elif command.op == "undo" and command.outcome == DONE:
            rows.open -= 1
            rows.undone += 1
    return _ScannedPortion(list(sagas.values()), len(commands), commands[-1].step_key if commands else "")


async def _newest_runs(temporal: Temporal, ids: Sequence[str]) -> dict[str, RunInfo]:
    """The newest run of each id, open or closed, but for those that were never accepted."""
    # Only of these the store can be asked by their ids.
    literals = [id for id in ids if has_literal(id)]
    described = [await describe_saga_run(temporal, id) for id in set(ids) - set(literals)]
    newest = {saga.run.id: saga.run for saga in described if saga is not None and not saga.never_accepted}
    for asked in in_portions(literals, _IDS_AT_ONCE):
        names = ", ".join(quote(id) for id in asked)
        async for run in list_runs(temporal, f"WorkflowId IN ({names})"):
            is_newer = run.id not in newest or newest[run.id].start_time < run.start_time
            if run.id in asked and is_newer and not await was_never_accepted(temporal, run):
                newest[run.id] = run
    return newest


def _completed(runs: Mapping[str, RunInfo], sagas: Mapping[str, Sequence[_SagaRows]]) -> list[str]:
    """The sagas that have completed, although a database has an undo of them."""
    completed = [id for id, run in runs.items() if run.status is WorkflowExecutionStatus.COMPLETED]
    return [id for id in completed if any(row.undone > 0 for row in sagas[id])]


def _may_end(run: RunInfo, queue: str) -> bool:
    """True if the run is open on this task queue, or has ended by itself: a closed one of another kind may have had a
    successor.
    """
    return run.ended_by_itself or (run.running and run.task_queue == queue)


def _spans(run: RunInfo, rows: _SagaRows, queue: str) -> bool:
    """True if the run was open when the effects of these rows were recorded."""
    if rows.first_made is None or rows.last_made is None:
        return True
    is_until = run.close_time is None or rows.last_made <= run.close_time.timestamp()
    return _may_end(run, queue) and run.start_time.timestamp() <= rows.first_made and is_until


def _made_all(run: RunInfo, effects: Sequence[RecordedEffect], queue: str) -> bool:
    """True if the run is of the saga of each open effect that says of which one it is."""
    origins = [effect.origin for effect in effects if effect.open and effect.origin is not None]
    return _may_end(run, queue) and all(was_open_at_start(run, origin) for origin in origins)


async def _without_parent(temporal: Temporal, runs: Mapping[str, RunInfo], present: Mapping[str, RunInfo]) -> list[str]:
    """The completed nested sagas among the ``present`` ones above which a run is missing, or was not open when they
    were. ``runs``: the newest runs of ids that are known already.
    """
    newest = dict(runs)
    asked = set(newest)
    while missing := {_parent_of(run) for run in newest.values()} - asked - {None}:
        asked |= missing
        newest |= await _newest_runs(temporal, [id for id in missing if id is not None])

    def has_parents(run: RunInfo) -> bool:
        while (id := _parent_of(run)) is not None:
            parent = newest.get(id)
            if parent is None or not (parent.running or parent.ended_by_itself) or not _was_open(parent, run):
                return False
            run = parent
        return True

    return [id for id, run in present.items() if not has_parents(run)]


def _parent_of(run: RunInfo) -> str | None:
    """The id of the parent that decides about the effects of a completed run."""
    return run.parent_id if run.status is WorkflowExecutionStatus.COMPLETED else None


def _was_open(parent: RunInfo, child: RunInfo) -> bool:
    is_until = parent.close_time is None or (child.close_time is not None and child.close_time <= parent.close_time)
    return parent.start_time <= child.start_time and is_until
