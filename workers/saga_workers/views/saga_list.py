"""The list of sagas, from Temporal's visibility store, which lags behind the runs by a few seconds at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from temporalio.client import Client as Temporal

from saga_activities.ledger.records import RunFilter
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.location import BulkMember
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import verified_view
from saga_workers.temporal.begun_runs import open_pause, open_state
from saga_workers.temporal.saga_runs import was_never_accepted
from saga_workers.temporal.temporal_runs import ENDED_FROM_OUTSIDE, RunInfo, list_runs
from saga_workers.temporal.visibility_filter import (
    begun_condition,
    keyword_condition,
    list_condition,
    prefix_condition,
    require_literals,
    time_literal,
)
from saga_workers.temporal.visible_states import closed_view, may_be_undone, visible_state
from saga_workers.views.answering import Workers
from saga_workers.views.bulk_view import claimed_view, view_in_bulk
from saga_workers.views.run_facts import web_ui_link
from saga_workers.views.saga_view import (
    bare_view,
    can_be_queried,
    labels_of,
    read_view,
    view_at,
    with_shown_undo,
)
from saga_workers.views.unreadable_runs import readable_view
from sagas.errors import UsageError
from sagas.protocol.payloads import (
    ENGINE_WORKFLOWS,
    UNDO_SUFFIX,
)
from sagas.protocol.saga_view import FINAL_STATES, STATES, SagaView

_CONCURRENCY = 16
_LEDGER_PAGE = 50
"""Rows of the ledger read at once; Temporal is asked about each of them."""
_QUERY_TIMEOUT = timedelta(seconds=2)
"""Maximum time for the response of one saga in a list."""

# Most runs never write SagaState: RUNNING and COMPLETED follow from Temporal's status alone.
_FILTERS = {
    "RUNNING": "ExecutionStatus = 'Running' AND (SagaState IS NULL OR SagaState = 'RUNNING')",
    "COMPLETED": "ExecutionStatus = 'Completed' AND (SagaState IS NULL OR SagaState != 'RESIDUE')",
    # A completed saga that was undone is COMPENSATED; its undo run closes as Completed.
    "COMPENSATED": "(SagaState = 'COMPENSATED' OR ExecutionStatus = 'Canceled')",
    "RESIDUE": "SagaState = 'RESIDUE'",
    "TERMINATED": ENDED_FROM_OUTSIDE,
    "FAILED": "ExecutionStatus = 'Failed' AND SagaState IS NULL",
}


@dataclass(frozen=True, slots=True)
class SagaFilter:
    """The sagas to list; all conditions must hold. ``where`` adds one in Temporal's list filter syntax.

    ``id_prefix``: the first characters of their ids.
    """

    saga: str | None = None
    states: tuple[str, ...] = ()
    since: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    task_queue: str | None = None
    workflow_id: str | None = None
    id_prefix: str = ""

    def selects(self, run: RunInfo) -> bool:
        """Return whether a run that Temporal lists has exactly the values that are asked for.

        The store of the development server finds values by words without regard to case, and see
        :mod:`saga_workers.temporal.visibility_filter`.
        """
        labels = run.attributes.get("SagaLabels", ())
        return (
            self.saga in (None, run.workflow_type)
            and self.task_queue in (None, run.task_queue)
            and self.workflow_id in (None, run.id)
            and run.id.startswith(self.id_prefix)
            and all(f"{name}={value}" in labels for name, value in self.labels.items())
        )


def visibility_query(criteria: SagaFilter) -> str:
    """The list filter for Temporal; what it selects has to be compared again, see :meth:`SagaFilter.selects`.

    Raises UsageError if there is no such state, or if the filter compares a value that Temporal cannot compare.
    """
    parts = ["ExecutionStatus != 'ContinuedAsNew'"]
    parts += [f"WorkflowType != '{type}'" for type in ENGINE_WORKFLOWS]
    if criteria.saga is not None:
        parts.append(keyword_condition("WorkflowType", criteria.saga))
    if criteria.task_queue is not None:
        # The namespace may hold other workflows, and sagas of this name of other projects.
        parts.append(keyword_condition("TaskQueue", criteria.task_queue))
    if criteria.states:
        parts.append("(" + " OR ".join(f"({_state_query(state)})" for state in criteria.states) + ")")
    if criteria.since is not None:
        parts.append(f"StartTime >= {time_literal(criteria.since.astimezone(UTC))}")
    parts += [list_condition("SagaLabels", f"{name}={value}") for name, value in criteria.labels.items()]
    if criteria.workflow_id is not None:
        parts.append(keyword_condition("WorkflowId", criteria.workflow_id))
    if (begin := prefix_condition("WorkflowId", criteria.id_prefix)) is not None:
        parts.append(begin)
    if criteria.where:
        require_literals(criteria.where)
        parts.append(f"({criteria.where})")
    return " AND ".join(parts)


async def list_saga_runs(temporal: Temporal, criteria: SagaFilter) -> AsyncIterator[RunInfo]:
    """The runs that match, newest first. Raises UsageError if the filter is invalid."""
    async for run in list_runs(temporal, visibility_query(criteria)):
        if criteria.selects(run):
            yield run


def _state_query(state: str) -> str:
    if state not in STATES:
        raise UsageError(f"there is no state {state}; the states are {', '.join(STATES)}")
    return _FILTERS.get(state) or f"ExecutionStatus = 'Running' AND SagaState = '{state}' AND {begun_condition()}"


async def query_sagas(
    locator: Locator,
    criteria: SagaFilter,
    *,
    limit: int,
    web_ui: str | None = None,
    ask_running: bool = False,
) -> AsyncGenerator[SagaView]:
    """One view per saga: the open ones, of which those of bulk workflows come last; the others; those that only the
    ledger knows. Each of them newest first.

    Raises UsageError if a filter is invalid, LedgerUnavailable after the sagas that Temporal has.

    Without ``ask_running``, open sagas are described by the visibility store alone, which is fast and leaves fields
    empty. With it each open saga is queried; one that does not answer at once keeps those fields and says so in
    ``incomplete``.
    """
    temporal = locator.temporal
    workers = Workers(temporal, locator.keys)

    async def tell(run: RunInfo) -> SagaView:
        saga_id = run.id.removesuffix(UNDO_SUFFIX)
        if await was_never_accepted(temporal, run):
            with suppress(LedgerUnavailable, UsageError):
                return await read_view(locator, saga_id, web_ui=web_ui, timeout=_QUERY_TIMEOUT, workers=workers)
        if ask_running and can_be_queried(run):
            location = await locator.within_temporal().locate(saga_id)
            if location.home is not None:  # the visibility store may list a run that has been deleted
                return await view_at(locator, location, web_ui=web_ui, timeout=_QUERY_TIMEOUT, workers=workers)
        link = web_ui_link(web_ui, temporal.namespace, saga_id, run.run_id)
        return replace(await _list_entry(locator, run, saga_id), web_ui=link)

    ask = workers if ask_running else None
    members: list[SagaView] | None = None
    unavailable: LedgerUnavailable | None = None
    count = 0
    seen: set[str] = set()
    async for runs in _newest_runs(temporal, criteria, min(limit, _CONCURRENCY)):
        told = await asyncio.gather(*(readable_view(run, tell(run)) for run in runs))
        for run, view in zip(runs, told, strict=True):
            if members is None and not run.running:
                try:
                    members = await bulk_views(locator, criteria, limit - count, without=seen, web_ui=web_ui, ask=ask)
                except LedgerUnavailable as error:
                    members, unavailable = [], error
                for member in (member for member in members if member.state not in FINAL_STATES):
                    seen.add(member.id)
                    yield member
                    count += 1
                if count >= limit:
                    return
            if view.id in seen:
                continue  # a bulk workflow has started it again
            seen.add(view.id)
            if criteria.states and view.state not in criteria.states:
                continue
            if criteria.saga not in (None, view.saga):
                continue  # the listed run was never accepted, and its id belongs to another saga
            yield view
            count += 1
            if count >= limit:
                return
    if unavailable is not None:
        raise unavailable
    if members is None:
        members = await bulk_views(locator, criteria, limit - count, without=seen, web_ui=web_ui, ask=ask)
    for member in (member for member in members if member.id not in seen):
        seen.add(member.id)
        yield member
        count += 1
        if count >= limit:
            return
    async for view in ledger_views(locator, criteria, without=seen):
        yield view
        count += 1
        if count >= limit:
            return


async def bulk_views(
    locator: Locator,
    criteria: SagaFilter,
    limit: int,
    *,
    without: Collection[str] = (),
    web_ui: str | None = None,
    ask: Workers | None = None,
) -> list[SagaView]:
    """The sagas that bulk workflows run and that match, newest first.

    None with a filter in Temporal's syntax. Raises LedgerUnavailable. Only with ``ask``, or while a standing pause may
    hold sagas, the bulk workflows are queried; else a saga is RUNNING until it has ended, or TERMINATED if its bulk
    workflow was.
    """
    states = criteria.states or STATES
    if criteria.where is not None or not (ask or {"RUNNING", "TERMINATED"} & set(states)):
        return []
    rows = RunFilter(criteria.saga, (), criteria.since, criteria.labels, id_prefix=criteria.id_prefix)
    claims = await locator.ledger.bulk_claims(rows, limit + len(without))
    members = await locator.members(claims, without=without)
    temporal = locator.temporal
    if ask is None and members and (await locator.ledger.pauses() or await locator.ledger.open_breakers()):
        ask = Workers(temporal, locator.keys)
    if ask is None:
        views = [claimed_view(temporal, member, web_ui=web_ui) for member in members]
    else:
        gate = asyncio.Semaphore(_CONCURRENCY)

        async def query(member: BulkMember) -> SagaView:
            async with gate:
                return await view_in_bulk(temporal, member, web_ui=web_ui, timeout=_QUERY_TIMEOUT, workers=ask)

        views = await asyncio.gather(*(query(member) for member in members))
    return [view for view in views if view.state in states][:limit]


async def ledger_views(
    locator: Locator, criteria: SagaFilter, *, without: Collection[str] = ()
) -> AsyncIterator[SagaView]:
    """The sagas that match and of which Temporal has no run any more, newest first.

    None with a filter in Temporal's syntax, which the ledger cannot apply. Raises LedgerUnavailable.
    """
    if criteria.where is not None:
        return
    in_temporal = locator.within_temporal()
    rows = RunFilter(criteria.saga, criteria.states, criteria.since, criteria.labels, id_prefix=criteria.id_prefix)
    while page := await locator.ledger.list(rows, _LEDGER_PAGE):
        views = [row.view for row in page if row.view.id not in without]
        locations = await asyncio.gather(*(in_temporal.locate(view.id) for view in views))
        for view, location in zip(views, locations, strict=True):
            if location.run is None or location.run.never_accepted:
                yield view
        rows = replace(rows, before=(page[-1].started_at, page[-1].view.id))


async def _newest_runs(temporal: Temporal, criteria: SagaFilter, size: int) -> AsyncIterator[list[RunInfo]]:
    """The newest run of each saga, in pages of ``size``."""
    seen: set[str] = set()
    runs: list[RunInfo] = []
    async for run in list_saga_runs(temporal, criteria):
        saga_id = run.id.removesuffix(UNDO_SUFFIX)
        if saga_id in seen:
            continue
        seen.add(saga_id)
        runs.append(run)
        if len(runs) == size:
            yield runs
            runs = []
    if runs:
        yield runs


async def _list_entry(locator: Locator, run: RunInfo, saga_id: str) -> SagaView:
    """The view of a saga by its newest run, or that of its undo, without asking a worker."""
    base, undo = run, None
    if run.id != saga_id:  # its undo, which is always newer than the saga
        location = await locator.within_temporal().locate(saga_id)
        if location.run is None:
            return await _shown_view(locator, run)
        base, undo = location.run.run, location.undo
    elif may_be_undone(visible_state(run)):
        undo = await locator.undo_of(run)
    view = await _shown_view(locator, base)
    return view if undo is None else with_shown_undo(view, await _shown_view(locator, undo.run))


async def _shown_view(locator: Locator, run: RunInfo) -> SagaView:
    view = await closed_view(run)
    if view is None:
        state, pause = await open_state(locator.temporal, run), await open_pause(locator.temporal, run)
        view = replace(await bare_view(run), state=state, paused=pause)
    return await verified_view(locator, run, replace(view, labels=labels_of(run) or view.labels))
