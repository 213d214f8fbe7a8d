"""Reads everything a reconciliation needs: the sagas from Temporal, then what the databases say.

In this order: when a saga is over in Temporal, its effects are settled, and nothing the databases say later is news.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client as Temporal

from saga_activities.guard import watermark
from saga_spark.reconcile.effects import Effects
from saga_spark.reconcile.extract import Scope, extract
from saga_spark.reconcile.journal import FINAL, Journal
from saga_workers.databases import database_says, open_engine
from saga_workers.listing import Wanted, query_of
from saga_workers.runs import RunInfo, describe, list_runs
from saga_workers.stories import bare_story, closed_story, may_be_undone, with_undo
from sagas.errors import SagaError
from sagas.settings import Settings
from sagas.wire import UNDO_SUFFIX

STRANGERS = 5_000
"""Sagas that the guards know and the list of runs does not: so many are asked for one by one."""

_AT_ONCE = 32


@dataclass(slots=True)
class Material:
    """What was read into ``folder``. ``horizon``: Temporal remembers everything that ended since (epoch seconds);
    ``began`` is when the reading began, ``rows`` how many were read from each source."""

    folder: Path
    began: float
    horizon: float = 0.0
    states: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


async def gather(
    temporal: Temporal, settings: Settings, effects: Sequence[Effects], folder: Path, scope: Scope
) -> Material:
    """Read all sides. Raises SagaError: a database does not answer; UsageError: a URL or a table is wrong."""
    material = Material(folder, time.time())
    material.horizon = material.began - await _retention(temporal)
    engines = {one.name: open_engine(one) for one in settings.sql_connections()}
    try:
        mark = max([await _watermark(name, engine) for name, engine in engines.items()], default=0.0)
        with Journal(folder, mark) as journal:
            older: list[str] = []
            async for story in _stories(temporal, settings, scope):
                journal.add(story)
                if scope.floor is not None and _began(story) < scope.floor:
                    older.append(story["id"])
            scope = Scope(scope.since, scope.saga_id, tuple(older))
            for name, engine in engines.items():
                mine = [one for one in effects if one.connection == name]
                counts = await _read(name, engine, mine, folder, scope)
                material.rows.update({f"{name}.{what}": count for what, count in counts.items()})
            async for story in _strangers(temporal, folder, journal.states):
                journal.add(story)
            material.states = journal.states
            material.rows["sagas"] = journal.count
    finally:
        for engine in engines.values():
            await engine.dispose()
    return material


async def story_now(temporal: Temporal, saga_id: str) -> dict[str, Any] | None:
    """The story of one saga with that of its undo, as far as Temporal itself has it; None: Temporal knows none."""
    base = await describe(temporal, saga_id)
    if base is None:
        return None
    undo = await describe(temporal, saga_id + UNDO_SUFFIX)
    return await _told(base.run, undo.run if undo else None)


async def _stories(temporal: Temporal, settings: Settings, scope: Scope) -> AsyncIterator[dict[str, Any]]:
    if scope.saga_id is not None:
        async for story in _family(temporal, scope.saga_id):
            yield story
        return
    where = None
    if scope.since is not None:
        since = datetime.fromtimestamp(scope.since, UTC).isoformat()
        where = f"ExecutionStatus = 'Running' OR CloseTime >= '{since}'"
    bases: dict[str, RunInfo] = {}
    undos: dict[str, RunInfo] = {}
    async for run in list_runs(temporal, query_of(Wanted(where=where, task_queue=settings.temporal.task_queue))):
        known = undos if run.id.endswith(UNDO_SUFFIX) else bases
        saga_id = run.id.removesuffix(UNDO_SUFFIX)
        if saga_id not in known or known[saga_id].start_time < run.start_time:
            known[saga_id] = run
    for saga_id in undos.keys() - bases.keys():  # it ended before the window, and was undone in it
        if (base := await describe(temporal, saga_id)) is not None:
            bases[saga_id] = base.run
    for saga_id, run in bases.items():
        yield await _told(run, undos.get(saga_id))


async def _family(temporal: Temporal, saga_id: str) -> AsyncIterator[dict[str, Any]]:
    """A saga and those nested in it."""
    queue = [saga_id]
    while queue:
        story = await story_now(temporal, queue.pop())
        if story is not None:
            queue += [child["id"] for child in story.get("children") or ()]
            yield story


async def _told(run: RunInfo, undo: RunInfo | None) -> dict[str, Any]:
    story = await _brief(run)
    if undo is None or undo.start_time < run.start_time or not may_be_undone(story):
        return story
    if undo.running:
        return {**story, "state": "COMPENSATING", "ended_at": None}
    return with_undo(story, await _brief(undo))


async def _brief(run: RunInfo) -> dict[str, Any]:
    """The story in the memo of a closed run; else what Temporal alone knows, marked as incomplete."""
    bare = await bare_story(run)
    story = await closed_story(run)
    if story is None or bare["state"] == "TERMINATED":
        return {**bare, "incomplete": "it left no story"}
    return {**bare, **story}


async def _strangers(temporal: Temporal, folder: Path, known: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
    """Sagas that only the guards know so far: of another task queue, or younger than Temporal's index."""
    ids: set[str] = set()
    for file in sorted((folder / "guard").glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(columns=["saga_id"]):
            ids.update(one for one in batch.column(0).unique().to_pylist() if one not in known)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(saga_id: str) -> dict[str, Any] | None:
        async with gate:
            return await story_now(temporal, saga_id)

    for story in await asyncio.gather(*(ask(one) for one in sorted(ids)[:STRANGERS])):
        if story is not None:
            # Its effects were read before its end, so nothing is said about it now.
            state = story["state"]
            yield {**story, "incomplete": "it is new"} if state in FINAL else story


async def _read(
    name: str, engine: AsyncEngine, effects: Sequence[Effects], folder: Path, scope: Scope
) -> dict[str, int]:
    try:
        return await extract(engine, name, effects, folder, scope)
    except (SQLAlchemyError, OSError) as error:
        tables = ", ".join(one.table for one in effects) or "its guard"
        raise SagaError(f"The connection {name} could not be read ({tables}): {database_says(error)}.") from error


async def _watermark(name: str, engine: AsyncEngine) -> float:
    from sqlalchemy import inspect

    try:
        async with engine.connect() as connection:
            there = await connection.run_sync(lambda sync: inspect(sync).has_table("saga_watermark"))
        return await watermark.read(engine) if there else 0.0
    except (SQLAlchemyError, OSError) as error:
        raise SagaError(f"The connection {name} does not answer: {database_says(error)}.") from error


async def _retention(temporal: Temporal) -> float:
    """Seconds for which Temporal remembers a run that is over."""
    request = DescribeNamespaceRequest(namespace=temporal.namespace)
    answer = await temporal.workflow_service.describe_namespace(request, retry=True)
    return float(answer.config.workflow_execution_retention_ttl.ToSeconds())


def _began(story: Mapping[str, Any]) -> float:
    from saga_spark.reconcile.journal import seconds

    return seconds(story.get("started_at")) or 0.0


def ids_of(findings: Iterable[Any]) -> list[str]:
    """The sagas of some findings, each once."""
    return list(dict.fromkeys(one.saga_id for one in findings if one.saga_id))
