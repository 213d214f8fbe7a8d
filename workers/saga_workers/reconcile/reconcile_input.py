"""Reads the input of a reconciliation: first the sagas from Temporal, then the databases.

In this order, because the effects of a saga that has ended in Temporal are final: whatever a database shows later is
not a change.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard import watermark
from saga_activities.guard.tables import guard_table
from saga_activities.table_names import table_names
from saga_spark.reconcile.extracts import FINAL_STATES, ReconciliationScope, SagaExport, extract_database
from saga_workers.location.locator import Locator
from saga_workers.reconcile.current_views import combined_view, current_view, current_views
from saga_workers.reconcile.declared_columns import HELP, find_problems
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.database_identity import table_identity
from saga_workers.runtime.databases import open_command_engine
from saga_workers.temporal.saga_runs import was_never_accepted
from saga_workers.temporal.temporal_runs import RunInfo, namespace_retention
from saga_workers.temporal.visibility_filter import time_literal
from saga_workers.views.bulk_view import claimed_view
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from saga_workers.views.unreadable_runs import readable_view
from sagas.errors import SagaError
from sagas.portions import in_portions
from sagas.protocol.doubtful_outcomes import IN_LEDGER, missing_key
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings
from sagas.settings.reconcile import EffectTable

MAX_ORPHANS = 5_000
"""Maximum number of sagas that only the guards know and that are looked up one by one."""

_ROWS_AT_ONCE = 500


@dataclass(slots=True)
class ReconcileInput:
    """The data that was read into ``folder``. ``horizon``: Temporal still has every run that ended since then (seconds
    since the epoch). ``started_at``: when the reading began. ``rows``: how many were read from each source.
    ``replaced``: sagas with an earlier run that was terminated. ``decided``: publications that count as undone because
    an operator has decided so, as the report has them. ``missing_keys``: how many outcomes each key has encrypted that
    is not here. ``readers``: for each connection the first one that leads to the same guard, through which that guard
    and its outbox are read.
    """

    folder: Path
    started_at: float
    horizon: float = 0.0
    states: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    decided: list[dict[str, Any]] = field(default_factory=list)
    missing_keys: Counter[str] = field(default_factory=Counter[str])
    readers: dict[str, str] = field(default_factory=dict[str, str])


async def read_input(
    locator: Locator, settings: Settings, effects: Sequence[EffectTable], folder: Path, scope: ReconciliationScope
) -> ReconcileInput:
    """Read all sources. Raises SagaError if a database does not answer, UsageError if a URL or a table is wrong."""
    material = ReconcileInput(folder, time.time())
    material.horizon = material.started_at - await namespace_retention(locator.temporal)
    engines = {
        sql_connection.name: open_command_engine(sql_connection) for sql_connection in settings.sql_connections()
    }
    try:
        mark = max([await _read_watermark(name, engine) for name, engine in engines.items()], default=0.0)
        with SagaExport(folder, mark) as journal:
            older: list[str] = []
            async for view in _saga_views(locator, settings, scope, material.replaced):
                journal.add(_as_read(view, material.missing_keys))
                if scope.read_since is not None and _started_at(view) < scope.read_since:
                    older.append(view.id)
            scope = ReconciliationScope(scope.since, scope.saga_id, tuple(older))
            material.readers = await _readers(engines)
            for name, engine in engines.items():
                mine = [effect for effect in effects if effect.connection == name]
                guarded = [effect for effect in effects if material.readers.get(effect.connection) == name]
                reads_guard = material.readers[name] == name
                counts = await _read_connection(name, engine, mine, folder, scope, guarded if reads_guard else None)
                material.rows.update({f"{name}.{what}": count for what, count in counts.items()})
            async for view in _orphans(locator, folder, journal.states):
                journal.add(view)
            unknown = sorted(_guarded_ids(folder) - journal.states.keys())
            span = {"horizon": material.horizon, "until": material.started_at}
            async for view in sagas_of_bulk_workflows(locator, unknown, **span):
                journal.add(view)
            material.states = journal.states
            material.rows["sagas"] = journal.count
    finally:
        for engine in engines.values():
            await engine.dispose()
    return material


def _as_read(view: SagaView, missing_keys: Counter[str]) -> SagaView:
    """The view to compare: that of the ledger, if there is one, where the outcome of the run cannot be read."""
    doubt = view.incomplete or ""
    if (key := missing_key(doubt)) is None:
        return view
    missing_keys[key] += 1
    return replace(view, incomplete=None) if doubt.endswith(IN_LEDGER) else view


async def _saga_views(
    locator: Locator, settings: Settings, scope: ReconciliationScope, replaced: set[str]
) -> AsyncIterator[SagaView]:
    """The sagas of the scope; adds to ``replaced`` those that may have an earlier run that was terminated."""
    if scope.saga_id is not None:
        replaced.add(scope.saga_id)
        async for view in _saga_and_nested(locator, scope.saga_id):
            yield view
        return
    where = None
    if scope.since is not None:
        where = f"ExecutionStatus = 'Running' OR CloseTime >= {time_literal(scope.since)}"
    bases: dict[str, RunInfo] = {}
    undos: dict[str, RunInfo] = {}
    without_saga: set[str] = set()
    async for run in list_saga_runs(locator.temporal, SagaFilter(where=where, task_queue=settings.temporal.task_queue)):
        runs = undos if run.id.endswith(UNDO_SUFFIX) else bases
        saga_id = run.id.removesuffix(UNDO_SUFFIX)
        if await was_never_accepted(locator.temporal, run):
            without_saga.update([saga_id] if runs is bases else [])
            continue
        if runs is bases and saga_id in runs:
            older = min(runs[saga_id], run, key=lambda other: other.start_time)
            replaced.update([saga_id] if older.ended_from_outside else [])
        if saga_id not in runs or runs[saga_id].start_time < run.start_time:
            runs[saga_id] = run
    for saga_id in undos.keys() - bases.keys():  # it ended before the window and was undone within it
        if (base := (await locator.within_temporal().locate(saga_id)).run) is not None:
            bases[saga_id] = base.run
    for saga_id, run in bases.items():
        yield await readable_view(run, combined_view(locator, run, may_have_undo=saga_id in undos))
    for saga_id in sorted(without_saga - bases.keys()):  # its run, if it has one, ended before the window
        if (view := await current_view(locator, saga_id)) is not None:
            yield view


async def _saga_and_nested(locator: Locator, saga_id: str) -> AsyncIterator[SagaView]:
    """A saga and its nested sagas, at all levels."""
    queue = [saga_id]
    while queue:
        view = await current_view(locator, queue.pop())
        if view is not None:
            queue += [child.id for child in view.children]
            yield view


async def _orphans(locator: Locator, folder: Path, exported: Mapping[str, str]) -> AsyncIterator[SagaView]:
    """Sagas that only the guards know so far: of another task queue, or newer than the visibility store."""
    ids = _guarded_ids(folder) - exported.keys()
    for view in (await current_views(locator, sorted(ids)[:MAX_ORPHANS])).values():
        if view is not None:
            # Its effects were read before it ended, so they cannot be judged now.
            yield replace(view, incomplete="it ended during the reconciliation") if view.state in FINAL_STATES else view


async def sagas_of_bulk_workflows(
    locator: Locator, ids: list[str], *, horizon: float, until: float
) -> AsyncIterator[SagaView]:
    """The views of those of the ids that Temporal has no run of, because a bulk workflow runs or has run them.

    ``horizon`` and ``until``: see :class:`ReconcileInput`; a saga that ended after ``until`` cannot be judged.
    """
    for part in in_portions(ids, _ROWS_AT_ONCE):
        claims = [claim for claim in (await locator.ledger.claims(part)).values() if claim.bulk_id is not None]
        rows = await locator.ledger.find_all(part)
        for row in rows.values():
            ended = None if row.view.ended_at is None else datetime.fromisoformat(row.view.ended_at).timestamp()
            if ended is not None and ended >= horizon:
                late = "it ended during the reconciliation" if ended >= until else row.view.incomplete
                yield replace(row.view, incomplete=late)
        for member in await locator.members(claims, without=rows):
            view = claimed_view(locator.temporal, member, web_ui=None)
            yield replace(view, incomplete="it was not asked for")


def _guarded_ids(folder: Path) -> set[str]:
    """The ids of all sagas in the guards that were read."""
    ids: set[str] = set()
    for file in sorted((folder / "guard").glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(columns=["saga_id"]):
            ids.update(batch.column(0).unique().to_pylist())
    return ids


async def _readers(engines: Mapping[str, AsyncEngine]) -> dict[str, str]:
    """See ``readers`` of :class:`ReconcileInput`."""
    first: dict[str, str] = {}
    readers: dict[str, str] = {}
    for name, engine in engines.items():
        try:
            identity = name if len(engines) == 1 else await table_identity(engine, guard_table.name)
        except (SQLAlchemyError, OSError) as error:
            raise _does_not_answer(name, error) from error
        readers[name] = first.setdefault(identity, name)
    return readers


async def _read_connection(
    name: str,
    engine: AsyncEngine,
    effects: Sequence[EffectTable],
    folder: Path,
    scope: ReconciliationScope,
    guarded: Sequence[EffectTable] | None,
) -> dict[str, int]:
    """``guarded``: see :func:`saga_spark.reconcile.extracts.extract_database`."""
    try:
        return await extract_database(engine, name, effects, folder, scope, guarded)
    except (SQLAlchemyError, OSError) as error:
        await _refuse_wrong_declarations(name, engine, effects)
        tables = ", ".join(effect.table for effect in effects) or "its guard table"
        raise SagaError(f"the connection {name} could not be read ({tables}): {driver_message(error)}") from error


async def _refuse_wrong_declarations(name: str, engine: AsyncEngine, effects: Sequence[EffectTable]) -> None:
    """Raises SagaError if the database does not know what is declared about its tables."""
    try:
        problems = await find_problems(engine, effects)
    except (SQLAlchemyError, OSError):
        return
    if problems:
        refused = SagaError(f"the connection {name} could not be read: {problems[0]}", help=HELP)
        refused.more = problems[1:]
        raise refused


async def _read_watermark(name: str, engine: AsyncEngine) -> float:
    try:
        async with engine.connect() as connection:
            there = "saga_watermark" in await table_names(connection)
        return await watermark.read(engine) if there else 0.0
    except (SQLAlchemyError, OSError) as error:
        raise _does_not_answer(name, error) from error


def _does_not_answer(name: str, error: Exception) -> SagaError:
    return SagaError(f"the database of the connection {name} does not answer: {driver_message(error)}")


def _started_at(view: SagaView) -> float:
    from saga_spark.reconcile.extracts import epoch_seconds

    return epoch_seconds(view.started_at) or 0.0
