"""The oldest runs that match a filter, without reading all of them.

Temporal lists the newest runs first, and no filter changes the order. So the time is searched before which only as many
have started as are wanted, by counts, of which none reads a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from temporalio.client import Client as Temporal

from saga_workers.temporal.begun_runs import has_begun
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.temporal.visibility_filter import time_literal
from saga_workers.views.saga_counts import count_runs
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from sagas.portions import in_portions

MOST_LISTED = 1000
"""Runs that are listed at most, of which the oldest are taken."""

MOST_NOT_BEGUN = 2000
"""Runs that no worker has begun which are passed over at most, each after a look at its history."""

_CONCURRENCY = 16
_FIRST_START = datetime(2020, 1, 1, tzinfo=UTC)
_SHORTEST_STEP = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class BegunRuns:
    """The oldest runs that a worker has begun. ``total``: the number of runs that match, without those that are known
    not to be begun, of which there are ``not_begun``. ``is_complete``: no run was left out but for the limit.
    """

    runs: Sequence[RunInfo]
    total: int
    not_begun: int
    is_complete: bool


async def oldest_begun_runs(temporal: Temporal, criteria: SagaFilter, limit: int) -> BegunRuns:
    """At least the ``limit`` oldest runs that a worker has begun, if there are as many.

    Any client may start runs that claim the state which the filter selects, and that no worker can begin: they must not
    use up the limit. Raises UsageError if the filter is invalid, RPCError.
    """
    rest, total, begun, not_begun = criteria, 0, list[RunInfo](), 0
    seen: set[str] = set()
    while True:
        page, matching = await oldest_runs(temporal, rest, max(limit - len(begun), MOST_LISTED // 2))
        total = max(total, matching)
        runs = [run for run in page if run.run_id not in seen]
        for part in in_portions(runs, _CONCURRENCY):
            if len(begun) >= limit or not_begun >= MOST_NOT_BEGUN:
                return BegunRuns(begun, total - not_begun, not_begun, len(begun) >= limit)
            answers = await asyncio.gather(*(has_begun(temporal, run) for run in part))
            begun += [run for run, answer in zip(part, answers, strict=True) if answer]
            not_begun += answers.count(False)
        if not runs:
            return BegunRuns(begun, total - not_begun, not_begun, True)
        seen.update(run.run_id for run in runs)
        rest = _narrowed(criteria, f"StartTime >= {time_literal(page[-1].start_time)}")


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
    return _narrowed(criteria, f"StartTime < {time_literal(time)}")


def _narrowed(criteria: SagaFilter, condition: str) -> SagaFilter:
    return replace(criteria, where=f"({criteria.where}) AND {condition}" if criteria.where else condition)
