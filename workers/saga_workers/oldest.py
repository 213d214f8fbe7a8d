"""Finds the oldest saga whose guard rows somebody may still need, in Temporal's visibility."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution

from saga_workers.stories import closed_story
from sagas.wire import STARTED_MEMO

_PATIENCE = timedelta(seconds=30)
_SLICE = 200
"""Ended runs read at once: each brings its story along."""

Holds = Callable[[WorkflowExecution], Awaitable[bool]]


async def oldest_needed(client: Client, *, before: float) -> float | None:
    """When the oldest saga began that runs, or has completed and can be undone; None: none began before ``before``.

    Times are seconds since the epoch. Every workflow that runs in the namespace counts, whoever it belongs to: too
    low an answer only keeps rows longer. Raises RPCError when Temporal does not answer.
    """
    running = [await _began(run) async for run in _list(client, "ExecutionStatus = 'Running'", page_size=1000)]
    undoable = await _earliest(client, "ExecutionStatus = 'Completed'", 0.0, before, _can_be_undone)
    found = [began for began in (*running, undoable) if began is not None and began < before]
    return min(found, default=None)


async def _earliest(client: Client, query: str, since: float, until: float, holds: Holds) -> float | None:
    """The earliest begin in [since, until) of a run for which ``holds``.

    Lists come newest first and may be long, so this bisects by counts and reads the oldest slices first.
    """
    within = f"{query} AND StartTime >= '{_iso(since)}' AND StartTime < '{_iso(until)}'"
    count = (await client.count_workflows(within, rpc_timeout=_PATIENCE)).count
    if count == 0:
        return None
    if count <= _SLICE or until - since < 1.0:
        return min([await _began(run) async for run in _list(client, within, _SLICE) if await holds(run)], default=None)
    middle = (since + until) / 2
    earlier = await _earliest(client, query, since, middle, holds)
    return earlier if earlier is not None else await _earliest(client, query, middle, until, holds)


def _list(client: Client, query: str, page_size: int) -> AsyncIterator[WorkflowExecution]:
    return client.list_workflows(query, page_size=page_size, rpc_timeout=_PATIENCE)


async def _began(run: WorkflowExecution) -> float:
    """When the saga began: a run that continues another one carries the beginning of the first."""
    carried = (await run.memo()).get(STARTED_MEMO)
    return carried if isinstance(carried, float) else run.start_time.timestamp()


async def _can_be_undone(run: WorkflowExecution) -> bool:
    story = await closed_story(run)
    return story is not None and bool(story.get("can_undo"))


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
