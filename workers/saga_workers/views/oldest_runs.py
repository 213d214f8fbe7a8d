"""The oldest runs that match a filter, without reading all of them.

Temporal lists the newest runs first, and no filter changes the order. So the time is searched before which only as many
have started as are wanted, by counts, of which none reads a run.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from temporalio.client import Client as Temporal

from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.views.saga_counts import count_runs
from saga_workers.views.saga_list import SagaFilter, list_saga_runs

MOST_LISTED = 1000
"""Runs that are listed at most, of which the oldest are taken."""

_FIRST_START = datetime(2020, 1, 1, tzinfo=UTC)
_SHORTEST_STEP = timedelta(milliseconds=1)


async def oldest_runs(temporal: Temporal, criteria: SagaFilter, limit: int) -> tuple[list[RunInfo], int]:
    """At least the ``limit`` oldest runs, if there are as many, and the number of all that match.

    Raises UsageError if the filter is invalid, RPCError.
    """
    total = await count_runs(temporal, criteria)
    listed = criteria if total <= MOST_LISTED else await _started_early(temporal, criteria, limit)
    runs: list[RunInfo] = []
    async for run in list_saga_runs(temporal, listed):
        runs.append(run)
        if len(runs) >= MOST_LISTED:
            break
    return sorted(runs, key=lambda run: run.start_time), max(total, len(runs))


async def _started_early(temporal: Temporal, criteria: SagaFilter, limit: int) -> SagaFilter:
    """The filter for the runs before a time, which are at least ``limit``, and at most :data:`MOST_LISTED` if these
    have not all started at once.
    """
    early, late = _FIRST_START, datetime.now(UTC)
    while late - early > _SHORTEST_STEP:
        middle = early + (late - early) / 2
        count = await count_runs(temporal, _before(criteria, middle))
        if count < limit:
            early = middle
        elif count > MOST_LISTED:
            late = middle
        else:
            return _before(criteria, middle)
    return _before(criteria, late)


def _before(criteria: SagaFilter, time: datetime) -> SagaFilter:
    condition = f"StartTime < '{time.isoformat()}'"
    return replace(criteria, where=f"({criteria.where}) AND {condition}" if criteria.where else condition)
