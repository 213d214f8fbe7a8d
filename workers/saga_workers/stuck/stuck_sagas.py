"""Sagas that will not finish by themselves, each with the reasons in words.

Reads Temporal's raw description of each run (pending activities, pending workflow task), and so also finds what a saga
cannot report itself: no worker polls, the code fails, the run was terminated. A saga with a notification that was given
up counts too, because its receiver was not informed, and one whose event is not served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace

from temporalio.service import RPCError

from saga_activities.ledger.records import RunFilter
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.location import BulkMember
from saga_workers.location.locator import Locator
from saga_workers.stuck.database_traces import DatabaseTraces
from saga_workers.stuck.open_sagas import (
    describe_bulk_workflows,
    describe_newest,
    find_left_members,
)
from saga_workers.stuck.run_reasons import is_failing_task, temporal_reasons
from saga_workers.stuck.stuck_view import awaits_reply, with_earlier_saga, with_reasons
from saga_workers.stuck.verdict import OpenSaga, left_saga, terminated_saga, undo_again_command
from saga_workers.temporal.saga_input import UnreadableRunInput
from saga_workers.temporal.temporal_runs import (
    ENDED_FROM_OUTSIDE,
    UNREADABLE,
    RunInfo,
)
from saga_workers.temporal.worker_deployments import worker_help
from saga_workers.views.answering import Workers
from saga_workers.views.bulk_view import claimed_view
from saga_workers.views.given_up import given_up_reasons, list_given_up
from saga_workers.views.parked_holders import ParkedHolders
from saga_workers.views.paused_children import PausedChildren
from saga_workers.views.prepared import add_reasons
from saga_workers.views.reported_reasons import reported_reasons
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from saga_workers.views.saga_view import QUERY_TIMEOUT, bare_view, read_view, view_at
from saga_workers.views.unreadable_runs import unreadable_text
from sagas.errors import SagaError
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView
from sagas.text.shell import saga_command
from sagas.text.shortening import shorten
from sagas.workflow.json_payloads import KEY_IS_MISSING

RUN_TIMEOUT = 15.0
"""Seconds for one run: it is described, queried, and what it waits for is looked up."""

NOT_IN_TIME = "what Temporal and its worker have of it was not read within"
_CONCURRENCY = 16
_PORTION = 400
_MOST_SHOWN = 200
"""Characters of an error of Temporal."""

_MAX_CLAIMS = 10_000


async def list_stuck(
    locator: Locator,
    criteria: SagaFilter,
    *,
    limit: int,
    web_ui: str | None = None,
    databases: DatabaseTraces | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> AsyncIterator[SagaView]:
    """The views of stuck sagas, with the field ``stuck``: one message per reason.

    Those that the ``databases`` tell of come first, and last those that wait for a worker with another key: any client
    can start as many of them as it wants. ``on_progress`` gets the number of runs that have been read. A run that
    cannot be read, or not in time, is one of them. Raises LedgerUnavailable after the sagas that Temporal has.
    """
    seen: set[str] = set()
    without_key: dict[str, SagaView] = {}
    async for view in _find_stuck(locator, criteria, web_ui, databases or DatabaseTraces(), on_progress, seen):
        if any(is_failing_task(reason) and KEY_IS_MISSING in reason for reason in view.stuck or ()):
            if len(without_key) < limit:
                without_key[view.id] = view
        elif view.id not in seen:
            seen.add(view.id)
            yield view
        if len(seen) == limit:
            return
    for view in list(without_key.values())[: limit - len(seen)]:
        yield view


async def _find_stuck(
    locator: Locator,
    criteria: SagaFilter,
    web_ui: str | None,
    databases: DatabaseTraces,
    on_progress: Callable[[int], None],
    seen: Collection[str],
) -> AsyncIterator[SagaView]:
    """The views of stuck sagas; some of them twice. ``seen``: the ids of those that have been listed already."""
    temporal = locator.temporal
    workers = Workers(temporal, locator.keys)
    holders, children = ParkedHolders(locator, workers), PausedChildren(locator.within_temporal(), workers)
    gate = asyncio.Semaphore(_CONCURRENCY)

    read = 0

    async def look(run: RunInfo) -> SagaView | None:
        nonlocal read
        async with gate:
            try:
                async with asyncio.timeout(RUN_TIMEOUT):
                    return await inspect_run(locator, run, workers, holders, children, web_ui, databases)
            except TimeoutError:
                unreadable = f"{NOT_IN_TIME} {RUN_TIMEOUT:g} s"
            except RPCError as error:
                if error.status not in UNREADABLE:
                    raise
                unreadable = f"what Temporal has of it cannot be read ({shorten(error.message, _MOST_SHOWN)})"
            except UnreadableRunInput as error:
                unreadable = error.message
            except SagaError:
                raise
            except Exception as error:  # noqa: BLE001, no run may hide the others
                unreadable = unreadable_text(run, error)
            finally:
                read += 1
                on_progress(read)
            return replace(await bare_view(run), incomplete=unreadable, stuck=(unreadable,))

    members: dict[str, SagaView] = {}
    unavailable: Exception | None = None
    try:
        members = {view.id: view for view in await _stuck_in_bulk(locator, criteria, workers, web_ui)}
    except (LedgerUnavailable, RPCError) as error:
        unavailable = error  # those that Temporal has come first
    lost = {saga.saga_id: saga for saga in databases.lost if _is_asked_for(criteria, saga)}
    for saga in lost.values():
        if not saga.id_is_in_use:
            yield _with_reasons_of(saga.bare_view, members.pop(saga.saga_id, None))
    for status in ("ExecutionStatus = 'Running'", ENDED_FROM_OUTSIDE):
        async for runs in _portions(list_saga_runs(temporal, _with_status(criteria, status))):
            for view in await asyncio.gather(*(look(run) for run in runs)):
                if view is not None:
                    view = _with_lost_effects(view, lost.pop(view.id, None))
                    # A run of somebody else may have the id of a saga that is in a bulk workflow.
                    view = _with_reasons_of(view, members.pop(view.id, None))
                    yield add_reasons(view, databases.prepared)
    for saga in lost.values():
        yield saga.bare_view
    for saga_id in databases.prepared:
        if saga_id not in seen and await _matches(locator, criteria, saga_id):
            yield add_reasons(await read_view(locator, saga_id, web_ui=web_ui), databases.prepared)
    async for saga_id in list_given_up(temporal, criteria.task_queue):
        if saga_id not in seen and await _matches(locator, criteria, saga_id):
            view = await _with_given_up(locator, saga_id, web_ui)
            if view is not None:
                yield view
    for view in members.values():
        yield view
    if unavailable is not None:
        raise unavailable


async def _portions(runs: AsyncIterator[RunInfo]) -> AsyncIterator[list[RunInfo]]:
    """The runs in lists of a bounded length, so that a long list is not read to its end before its first run."""
    portion: list[RunInfo] = []
    async for run in runs:
        portion.append(run)
        if len(portion) == _PORTION:
            yield portion
            portion = []
    yield portion


def remedy(view: SagaView) -> str:
    """The command that continues a stuck saga, or shows what has to be decided about it."""
    if view.state == "TERMINATED" and view.can_undo:
        return undo_again_command(view.id)
    if view.needs_resume or (view.needs_resume is None and view.state == "TERMINATED"):
        return view.continue_command or saga_command("resume", view.id)
    helps = list(map(worker_help, view.stuck or ()))
    return (helps[0] if helps and all(helps) else None) or saga_command("show", view.id)


def _with_status(criteria: SagaFilter, status: str) -> SagaFilter:
    where = status if criteria.where is None else f"({criteria.where}) AND {status}"
    return replace(criteria, where=where)


def _with_lost_effects(view: SagaView, saga: OpenSaga | None) -> SagaView:
    """The view of a run, with the reason of a saga whose id it has. A reason that says more may be there."""
    if saga is None or view.needs_resume:
        return view
    return replace(saga.mark(view), stuck=(*(view.stuck or ()), saga.reason))


def _with_reasons_of(view: SagaView, member: SagaView | None) -> SagaView:
    """The view of a run or of a deleted saga, with the reasons of the one with its id in a bulk workflow, if any."""
    return view if member is None else replace(view, stuck=(*(member.stuck or ()), *(view.stuck or ())))


def _is_asked_for(criteria: SagaFilter, deleted: OpenSaga) -> bool:
    if criteria.where is not None or criteria.labels or criteria.saga not in (None, deleted.saga):
        return False
    return not criteria.states or "TERMINATED" in criteria.states


async def _stuck_in_bulk(
    locator: Locator, criteria: SagaFilter, workers: Workers, web_ui: str | None
) -> list[SagaView]:
    """The sagas of bulk workflows that will not finish by themselves, or that were closed by Temporal."""
    if criteria.where is not None:
        return []
    rows = RunFilter(criteria.saga, (), criteria.since, criteria.labels, id_prefix=criteria.id_prefix)
    stuck: list[tuple[BulkMember, Sequence[str]]] = []
    for id, bulk in (await describe_bulk_workflows(locator)).items():
        if bulk is None or not bulk.run.running:
            continue
        reasons = await temporal_reasons(locator.temporal, bulk, workers)
        claims = await locator.ledger.bulk_claims(rows, _MAX_CLAIMS, [id]) if reasons else []
        stuck += [(BulkMember(claim, bulk), reasons) for claim in claims]
    left_members = await find_left_members(locator, rows, limit=_MAX_CLAIMS)
    stuck += [(member, (left_saga(member).reason,)) for member in left_members]
    views = (replace(claimed_view(locator.temporal, member, web_ui=web_ui), stuck=tuple(its)) for member, its in stuck)
    return [view for view in views if not criteria.states or view.state in criteria.states]


async def _matches(locator: Locator, criteria: SagaFilter, saga_id: str) -> bool:
    """Return whether the saga matches the filter; the notification that led to it has no labels and the like."""
    runs = list_saga_runs(locator.temporal, replace(criteria, workflow_id=saga_id))
    return [run async for run in runs] != []


async def _with_given_up(locator: Locator, saga_id: str, web_ui: str | None) -> SagaView | None:
    """The view of a saga with what was given up after its end; the saga itself may have ended normally."""
    location = await locator.within_temporal().locate(saga_id)
    if location.home is None:
        return None
    view = await view_at(
        locator, location, web_ui=web_ui, timeout=QUERY_TIMEOUT, workers=Workers(locator.temporal, locator.keys)
    )
    return with_reasons(view, given_up_reasons(view))


async def inspect_run(
    locator: Locator,
    run: RunInfo,
    workers: Workers,
    holders: ParkedHolders,
    children: PausedChildren,
    web_ui: str | None,
    databases: DatabaseTraces,
) -> SagaView | None:
    """The view of the newest run of a saga, with the reasons why it is stuck; None if there are none."""
    described = await describe_newest(locator, run)
    if described is None:
        return None
    view = await read_view(locator.within_temporal(), run.id, web_ui=web_ui, workers=workers)
    reasons = []
    if described.run.running:
        shown = {step.id for step in view.steps}
        view, reasons = await with_earlier_saga(locator, described, view)
        reasons += await temporal_reasons(locator.temporal, described, workers, shown) + reported_reasons(view)
        reasons += await holders.reasons(view, reasons)
        reasons += await children.reasons(view)
        if awaits_reply(view):
            reasons += [reply.text for reply in databases.refused.get(run.id.removesuffix(UNDO_SUFFIX), ())]
    elif (saga := await terminated_saga(locator, described.run, view)) is not None:
        view, reasons = saga.mark_terminated(view), [saga.reason]
    reasons += given_up_reasons(view)
    return with_reasons(replace(view, id=run.id.removesuffix(UNDO_SUFFIX)), reasons)
