"""How many sagas wait for the end of a pause or of an open circuit breaker: all of them, not those that a list shows.

Runs are counted by Temporal's visibility store, by what each has recorded, and sagas of bulk workflows by these.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from saga_workers.temporal.temporal_runs import list_runs
from saga_workers.temporal.visibility_filter import begun_condition, keyword_condition, quote
from saga_workers.views.saga_counts import count_runs
from saga_workers.views.saga_list import SagaFilter
from sagas.bulk.names import HELD_QUERY
from sagas.protocol.payloads import BULK_WORKFLOW
from sagas.protocol.standing_pause import ONE_SAGA, StandingPause
from sagas.text.shell import saga_command
from sagas.text.shortening import counted
from sagas.workflow.json_payloads import question

_MOST_ASKED = 200
"""Bulk workflows that are asked; with more, the numbers are lower bounds."""

_CONCURRENCY = 16
_QUERY_TIMEOUT = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class HeldCounts:
    """``by_order``: the number of sagas, by the orders of pauses. ``is_complete``: every bulk workflow has answered."""

    by_order: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = True

    def words(self, pause: StandingPause) -> str:
        """A clause that says how many sagas wait for the end of a pause."""
        at_least = "" if self.is_complete else "at least "
        return f"{at_least}{counted(self.by_order.get(pause.order, 0), 'saga waits', 'sagas wait')} for it"

    @property
    def one_by_one(self) -> int:
        """The number of sagas that are paused by their ids, or by a filter."""
        return self.by_order.get(ONE_SAGA, 0)

    @property
    def one_by_one_text(self) -> str:
        return f"{counted(self.one_by_one, 'saga is', 'sagas are')} paused one by one"


LIST_ONE_BY_ONE = saga_command("list", where=f"SagaPaused = '{ONE_SAGA}'")
"""The command that shows who has paused which of them, and why."""


async def count_held(temporal: Temporal, criteria: SagaFilter, orders: Collection[str]) -> HeldCounts:
    """Count the open sagas that match and wait for one of these orders, and those that are paused one by one.

    Raises RPCError, and UsageError if the filter is invalid.
    """
    every = (ONE_SAGA, *orders)
    numbers = await asyncio.gather(*(_count_runs(temporal, criteria, order) for order in every))
    counts = collections.Counter(dict(zip(every, numbers, strict=True)))
    if not orders or criteria.where is not None or criteria.labels or criteria.states not in ((), ("RUNNING",)):
        return HeldCounts(counts)
    in_bulk, is_complete = await _count_in_bulk(temporal, criteria)
    counts.update({order: number for order, number in in_bulk.items() if order in orders})
    return HeldCounts(counts, is_complete)


async def _count_runs(temporal: Temporal, criteria: SagaFilter, order: str) -> int:
    where = f"ExecutionStatus = 'Running' AND SagaPaused = {quote(order)} AND {begun_condition()}"
    return await count_runs(
        temporal, replace(criteria, where=f"({criteria.where}) AND {where}" if criteria.where else where)
    )


async def _count_in_bulk(temporal: Temporal, criteria: SagaFilter) -> tuple[collections.Counter[str], bool]:
    """The sagas of bulk workflows that wait, by the orders, and whether all of these workflows have answered."""
    query = f"WorkflowType = '{BULK_WORKFLOW}' AND ExecutionStatus = 'Running'"
    if criteria.task_queue is not None:
        query += f" AND {keyword_condition('TaskQueue', criteria.task_queue)}"
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def ask(id: str, run_id: str) -> Mapping[str, int] | None:
        handle = temporal.get_workflow_handle(id, run_id=run_id)
        try:
            async with gate, asyncio.timeout(_QUERY_TIMEOUT.total_seconds()):
                return await handle.query(HELD_QUERY, question(criteria.saga), result_type=dict[str, int])
        except (TimeoutError, RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError, TypeError):
            return None

    runs: list[tuple[str, str]] = []
    are_all = True
    async for run in list_runs(temporal, query):
        if len(runs) == _MOST_ASKED:
            are_all = False
            break
        runs.append((run.id, run.run_id))
    answers = await asyncio.gather(*(ask(*run) for run in runs))
    total = collections.Counter[str]()
    for answer in answers:
        total.update(answer or {})
    return total, are_all and None not in answers
