"""Sagas that will not finish by themselves, each with the reasons in words.

Reads Temporal's raw description of each run (pending activities, pending workflow task), and so also finds what a saga
cannot report itself: no worker polls, the code fails, the run was terminated. A saga with a notification that was given
up counts too, because its receiver was not informed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client as Temporal
from temporalio.service import RPCError

from saga_activities.ledger.records import RunFilter
from saga_workers.location.deleted_run import RUN_DELETED, DeletedRun
from saga_workers.location.locator import Locator
from saga_workers.temporal.machine_query import read_definition
from saga_workers.temporal.run_history import last_task_failure
from saga_workers.temporal.temporal_runs import (
    ENDED_FROM_OUTSIDE,
    UNREADABLE,
    RunDescription,
    RunInfo,
    describe_run,
    no_poller_message,
    nobody_answers,
)
from saga_workers.views.answering import DUE, Workers
from saga_workers.views.bulk_view import claimed_view
from saga_workers.views.notifications import exhausted_reasons, list_exhausted
from saga_workers.views.parked_holders import ParkedHolders, wait_messages
from saga_workers.views.run_facts import iso_time
from saga_workers.views.saga_list import SagaFilter, list_saga_runs
from saga_workers.views.saga_view import QUERY_TIMEOUT, bare_view, parse_activity_id, read_view, view_at
from sagas.bulk.names import BULK_ACTIVITIES
from sagas.protocol.outcomes import OTHER_ARGUMENTS
from sagas.protocol.payloads import LOAD_ACTIVITY, LOCK_ACTIVITY, RELEASE_ACTIVITY, UNDO_SUFFIX
from sagas.protocol.saga_view import FINAL_STATES, SagaView
from sagas.text.printable import printable_line
from sagas.text.shell import saga_command
from sagas.text.shortening import shorten
from sagas.workflow.run_trust import KeyMissing

MANY_ATTEMPTS = 5
"""An operation with more attempts than this is stuck."""

_ACTIVITIES = {
    LOAD_ACTIVITY: "loading its definition",
    LOCK_ACTIVITY: "the request for its locks",
    RELEASE_ACTIVITY: "the release of its locks",
    **{name: name for name in BULK_ACTIVITIES},
}
"""The labels of activities that belong to no step; the others are shown by their id, which names their step."""

_LONGEST_DELAY = timedelta(hours=1)
"""The longest delay that a participant may ask for, as with Retry-After, see `saga_activities.http.response`."""

RUN_TIMEOUT = 15.0
"""Seconds for one run: it is described, queried, and what it waits for is looked up."""

NOT_IN_TIME = "what Temporal and its worker have of it was not read within"
_CONCURRENCY = 16
_PORTION = 400
_MOST_SHOWN = 200
"""Characters of an error of Temporal."""

_MAX_CLAIMS = 10_000
_NOT_OVER = "its bulk workflow was closed before it ended"
_REPLACED = "a run with another input was ended by the start of this one, and its effects are open"
_EFFECT_STATES = ("DONE", "CONFIRMED", "CONFIRMING", "RUNNING", "UNKNOWN", "COMPENSATING", "PARKED")


async def list_stuck(
    locator: Locator,
    criteria: SagaFilter,
    *,
    limit: int,
    web_ui: str | None = None,
    prepared: Mapping[str, Sequence[str]] | None = None,
    deleted: Sequence[DeletedRun] = (),
    on_progress: Callable[[int], None] = lambda _: None,
) -> AsyncIterator[SagaView]:
    """The views of stuck sagas, with the field ``stuck``: one message per reason.

    ``prepared``: further reasons by saga id, of prepared transactions. ``deleted``: sagas without a run, which come
    first. ``on_progress`` gets the number of runs that have been read. A run that cannot be read, or not in time, is
    one of them. Raises LedgerUnavailable after the sagas that Temporal has.
    """
    prepared = prepared or {}
    temporal = locator.temporal
    workers = Workers(temporal)
    holders = ParkedHolders(locator, workers)
    gate = asyncio.Semaphore(_CONCURRENCY)

    read = 0

    async def look(run: RunInfo) -> SagaView | None:
        nonlocal read
        async with gate:
            try:
                async with asyncio.timeout(RUN_TIMEOUT):
                    return await inspect_run(locator, run, workers, holders, web_ui)
            except TimeoutError:
                unreadable = f"{NOT_IN_TIME} {RUN_TIMEOUT:g} s"
            except RPCError as error:
                if error.status not in UNREADABLE:
                    raise
                unreadable = f"what Temporal has of it cannot be read ({shorten(error.message, _MOST_SHOWN)})"
            finally:
                read += 1
                on_progress(read)
            return replace(await bare_view(run), incomplete=unreadable, stuck=(unreadable,))

    count = 0
    seen: set[str] = set()
    for view in [deleted_run_view(saga) for saga in deleted if _is_asked_for(criteria, saga)][:limit]:
        seen.add(view.id)
        count += 1
        yield view
    for status in ("ExecutionStatus = 'Running'", ENDED_FROM_OUTSIDE):
        async for runs in _portions(list_saga_runs(temporal, _with_status(criteria, status))):
            for view in await asyncio.gather(*(look(run) for run in runs)):
                if view is not None and view.id not in seen and count < limit:
                    seen.add(view.id)
                    count += 1
                    yield add_reasons(view, prepared)
    for saga_id in prepared:
        if count < limit and saga_id not in seen and await _matches(temporal, criteria, saga_id):
            seen.add(saga_id)
            count += 1
            yield add_reasons(await read_view(locator, saga_id, web_ui=web_ui), prepared)
    async for saga_id in list_exhausted(temporal, criteria.task_queue):
        if count >= limit:
            return
        if saga_id in seen or not await _matches(temporal, criteria, saga_id):
            continue
        view = await _with_exhausted_notifications(locator, saga_id, web_ui)
        if view is not None:
            seen.add(saga_id)
            count += 1
            yield view
    for view in await _stuck_in_bulk(locator, criteria, workers, web_ui, without=seen):
        if count >= limit:
            return
        count += 1
        yield view


async def _portions(runs: AsyncIterator[RunInfo]) -> AsyncIterator[list[RunInfo]]:
    """The runs in lists of a bounded length, so that a long list is not read to its end before its first run."""
    portion: list[RunInfo] = []
    async for run in runs:
        portion.append(run)
        if len(portion) == _PORTION:
            yield portion
            portion = []
    yield portion


def add_reasons(view: SagaView, prepared: Mapping[str, Sequence[str]]) -> SagaView:
    """The view with the reasons of its prepared transactions after the others."""
    reasons = prepared.get(view.id, ())
    return replace(view, stuck=(*(view.stuck or ()), *reasons)) if reasons else view


def remedy(view: SagaView) -> str:
    """The command that continues a stuck saga, or shows what has to be decided about it."""
    if view.state == "TERMINATED" or view.needs_resume:
        return saga_command("resume", view.id)
    return saga_command("show", view.id)


def deleted_run_view(deleted: DeletedRun) -> SagaView:
    """The view of a saga of which only the databases of the project know."""
    return SagaView(
        id=deleted.saga_id,
        saga=deleted.saga or "unknown",
        generation=None,
        state="TERMINATED",
        phase=None,
        incomplete=RUN_DELETED,
        stuck=(deleted.reason,),
    )


async def list_terminated(locator: Locator, task_queue: str, limit: int) -> list[RunInfo]:
    """The newest runs of sagas that were terminated or timed out."""
    runs: list[RunInfo] = []
    terminated = SagaFilter(task_queue=task_queue, where=ENDED_FROM_OUTSIDE)
    async for run in list_saga_runs(locator.temporal, terminated):
        runs.append(run)
        if len(runs) == limit:
            break
    return runs


def _with_status(criteria: SagaFilter, status: str) -> SagaFilter:
    where = status if criteria.where is None else f"({criteria.where}) AND {status}"
    return replace(criteria, where=where)


def _is_asked_for(criteria: SagaFilter, deleted: DeletedRun) -> bool:
    if criteria.where is not None or criteria.labels or criteria.saga not in (None, deleted.saga):
        return False
    return not criteria.states or "TERMINATED" in criteria.states


async def _stuck_in_bulk(
    locator: Locator, criteria: SagaFilter, workers: Workers, web_ui: str | None, *, without: Collection[str]
) -> list[SagaView]:
    """The sagas of bulk workflows that will not finish by themselves, or that were closed by Temporal."""
    if criteria.where is not None:
        return []
    rows = RunFilter(criteria.saga, (), criteria.since, criteria.labels)
    members = await locator.members(await locator.ledger.bulk_claims(rows, _MAX_CLAIMS), without=without)
    reasons: dict[str, list[str]] = {}
    stuck = []
    for member in members:
        if member.bulk_id not in reasons:
            reasons[member.bulk_id] = (
                await temporal_reasons(locator.temporal, member.bulk, workers) if member.bulk and member.open else []
            )
        view = claimed_view(locator.temporal, member, web_ui=web_ui)
        its_reasons = reasons[member.bulk_id] if member.open else [f"{_NOT_OVER}: continue it with `{remedy(view)}`"]
        if (not criteria.states or view.state in criteria.states) and its_reasons:
            stuck.append(replace(view, stuck=tuple(its_reasons)))
    return stuck


async def _matches(temporal: Temporal, criteria: SagaFilter, saga_id: str) -> bool:
    """Return whether the saga matches the filter; the notification that led to it has no labels and the like."""
    runs = list_saga_runs(temporal, replace(criteria, workflow_id=saga_id))
    return [run async for run in runs] != []


async def _with_exhausted_notifications(locator: Locator, saga_id: str, web_ui: str | None) -> SagaView | None:
    """The view of a saga with a notification that was given up; the saga itself may have ended normally."""
    location = await locator.within_temporal().locate(saga_id)
    if location.home is None:
        return None
    view = await view_at(locator, location, web_ui=web_ui, timeout=QUERY_TIMEOUT, workers=Workers(locator.temporal))
    return _with_reasons(view, exhausted_reasons(view))


async def read_view_with_stuck(locator: Locator, saga_id: str, *, web_ui: str | None = None) -> SagaView:
    """The view, with the field ``stuck`` if the saga will not finish by itself."""
    workers = Workers(locator.temporal)
    view = await read_view(locator, saga_id, web_ui=web_ui, workers=workers)
    if view.state in FINAL_STATES and view.state != "TERMINATED" and view.locks is None and not view.row_locks:
        return view  # one with locks may still be releasing them
    location = await locator.locate(view.id)
    if location.kind == "terminated" and location.run is not None:
        return _with_reasons(view, await _reasons_of_closed(locator, location.run.run, view)) or view
    workflow = location.workflow
    if workflow is None:
        deleted = DeletedRun(view.id, (f"not ended, it was {view.state}",))
        return replace(view, stuck=(deleted.reason,)) if view.source == "ledger" else view
    shown = {step.id for step in view.steps}
    reasons = await _reasons_of_replaced(locator, workflow, view)
    if reasons:
        view = replace(view, needs_resume=True)
    reasons += await temporal_reasons(locator.temporal, workflow, workers, shown)
    reasons += await ParkedHolders(locator, workers).reasons(view, wait_messages(view))
    return _with_reasons(view, reasons) or view


def _with_reasons(view: SagaView, reasons: Sequence[str]) -> SagaView | None:
    return replace(view, stuck=tuple(reasons)) if reasons else None


async def inspect_run(
    locator: Locator, run: RunInfo, workers: Workers, holders: ParkedHolders, web_ui: str | None
) -> SagaView | None:
    """The view of the newest run of a saga, with the reasons why it is stuck; None if there are none."""
    temporal = locator.temporal
    described = await describe_run(temporal, run.id)
    if described is None or described.run.run_id != run.run_id:
        return None  # visibility lags: another run has replaced it
    view = await read_view(locator.within_temporal(), run.id, web_ui=web_ui, workers=workers)
    reasons = []
    if described.run.running:
        shown = {step.id for step in view.steps}
        reasons = await _reasons_of_replaced(locator, described, view)
        if reasons:
            view = replace(view, needs_resume=True)
        reasons += await temporal_reasons(temporal, described, workers, shown) + reported_reasons(view)
        reasons += await holders.reasons(view, reasons)
    else:
        reasons = await _reasons_of_closed(locator, described.run, view)
    reasons += exhausted_reasons(view)
    return _with_reasons(replace(view, id=run.id.removesuffix(UNDO_SUFFIX)), reasons)


async def _reasons_of_replaced(locator: Locator, run: RunDescription, view: SagaView) -> list[str]:
    """The reason of a saga that ran into the effects of another run under its id, which was ended by its start."""
    if locator.settings is None or not any(parked.why in OTHER_ARGUMENTS for parked in view.parked):
        return []
    from saga_workers.location.deleted_runs import replaced_origin
    from saga_workers.location.traces import guarded_effects, open_effects

    effects = await guarded_effects(locator.settings, view.id)
    if await replaced_origin(locator.temporal, run, effects, view) is None:
        return []
    return [f"{_REPLACED} ({open_effects(effects)}): continue that run with `{saga_command('resume', view.id)}`"]


async def _reasons_of_closed(locator: Locator, run: RunInfo, view: SagaView) -> list[str]:
    if view.state != "TERMINATED" or not terminated_reasons(view):
        return []
    definition = await read_definition(locator.temporal, run, locator.settings)
    reads = [step.id for step in definition.steps if step.kind == "read"] if definition else []
    return [f"{reason}: `{remedy(view)}` {_direction(view)}" for reason in terminated_reasons(view, reads)]


def _direction(view: SagaView) -> str:
    """The way the saga goes when its terminated run is continued."""
    if not view.steps:
        return "undoes them before the commit point, and finishes the saga after it"
    return "finishes the saga, which is past its commit point" if view.phase == "committed" else "undoes them"


async def temporal_reasons(
    temporal: Temporal, described: RunDescription, workers: Workers, reported_steps: Collection[str] = ()
) -> list[str]:
    """Reasons that Temporal knows: no worker, a failing workflow task, activities that are retried again and again.

    ``reported_steps``: ids of the steps in the saga's view, which already reports their number of attempts.
    """
    reasons = []
    run, raw = described.run, described.raw
    if run.paused:
        reasons.append("it is paused in Temporal")
    attempt = raw.pending_workflow_task.attempt
    if not await workers.polled(run.task_queue):
        reasons.append(no_poller_message(run.task_queue))
    elif workers.unanswered(described):
        reasons.append(nobody_answers(run.task_queue))
    elif attempt > 1:
        failure, why = await last_task_failure(temporal, described.run), "see the worker's log or the Web UI"
        if failure is not None and failure.application_failure_info.type == KeyMissing.__name__:
            why = printable_line(failure.message)
        fails = "times out" if failure is None else "fails"
        reasons.append(f"its workflow task {fails} (attempt {attempt}): {why}")
    for activity in raw.pending_activities:
        what = _ACTIVITIES.get(activity.activity_type.name, activity.activity_id)
        queue = activity.activity_options.task_queue.name or run.task_queue
        scheduled = activity.scheduled_time.ToMicroseconds() / 1e6
        waiting = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        if activity.paused:
            reasons.append(f"{what} is paused in Temporal")
        elif waiting and (postponed := _postponed(activity)) is not None:
            reasons.append(f"{what} {postponed}")
        elif activity.attempt > MANY_ATTEMPTS and not _is_reported(activity.activity_id, reported_steps):
            last = activity.last_failure.message or "no answer"
            reasons.append(f"{what} was attempted {activity.attempt} times; the last failure: {last}")
            if activity.activity_type.name == RELEASE_ACTIVITY:
                reasons.append(f"if they cannot be released: {release_command(run.id)}")
            elif activity.activity_type.name == LOCK_ACTIVITY and run.id.endswith(UNDO_SUFFIX):
                reasons.append(f"if it is to go on without them: {_skip_command(run.id, LOCK_ACTIVITY)}")
        elif queue != run.task_queue and waiting and time.time() - scheduled > DUE:
            if not await workers.polled(queue, workflows=False):
                reasons.append(f"{what} waits: {no_poller_message(queue)}")
            elif not await workers.polled(queue, workflows=False, since=scheduled):
                # The last poller has gone or is busy: an idle worker takes a task at once.
                reasons.append(f"{what} waits: {nobody_answers(queue)}")
    return reasons


def _postponed(activity: PendingActivityInfo) -> str | None:
    """The reason of an attempt that its worker has postponed for longer than the `retry` of the definition allows; None
    for any other one. Temporal lets the failure of an attempt choose the delay, whatever the retry policy says.
    """
    if not activity.HasField("next_attempt_schedule_time"):
        return None
    following = activity.next_attempt_schedule_time.ToDatetime(UTC)
    longest = activity.activity_options.retry_policy.maximum_interval.ToTimedelta()
    if following - datetime.now(UTC) <= max(longest, _LONGEST_DELAY):
        return None
    return (
        f"waits until {iso_time(following)}: its worker has asked for a delay longer than `max_interval` and an hour;"
        " a reset of this activity in Temporal (`temporal activity reset`) makes the attempt at once"
    )


def release_command(workflow_id: str) -> str:
    """The command that lets a saga end without the release of its locks."""
    return _skip_command(workflow_id, RELEASE_ACTIVITY)


def _skip_command(workflow_id: str, what: str) -> str:
    return saga_command("resolve", workflow_id.removesuffix(UNDO_SUFFIX), what, "skip", reason="…")


def _is_reported(activity_id: str, reported_steps: Collection[str]) -> bool:
    entry, row = parse_activity_id(activity_id)
    return row is not None and entry in reported_steps


def reported_reasons(view: SagaView) -> list[str]:
    """Reasons that a running saga reports: parked, paused, overdue, an operation with many attempts."""
    nested = view.blocked_steps
    reasons = [
        f"{operation.step} is {'blocked' if operation.step in nested else 'parked'} ({operation.op}): {operation.why}"
        for operation in view.parked
    ]
    reasons += [reason for reason in (view.pause_text, view.lock_wait) if reason is not None]
    if view.overdue:
        reasons.append("overdue: it runs longer than its warn_after")
    for step in view.steps:
        for what, row in (("", step), ("the undo of ", step.compensation), ("the confirm of ", step.confirmation)):
            if row is not None and row.state == "RUNNING" and (row.attempts or 0) > MANY_ATTEMPTS:
                error = (row.error and row.error.message) or "no answer"
                reasons.append(f"{what}{step.id} was attempted {row.attempts} times; the last failure: {error}")
        uncounted = step.error and (step.error.details or {}).get("uncounted")
        if step.state == "RUNNING" and step.error and uncounted:
            times = "once" if uncounted == 1 else f"{uncounted} times in a row"
            reasons.append(f"{step.id} could not be attempted, {times}: {step.error.message}")
    return reasons


def terminated_reasons(view: SagaView, reads: Collection[str] = ()) -> list[str]:
    """Effects that a terminated saga may have left open. ``reads``: its steps that have no effect."""
    if not view.steps:
        return [f"terminated with unknown effects: {view.incomplete or 'it cannot be queried'}"]
    begun = [step for step in view.steps if step.state in _EFFECT_STATES and step.started_at]
    open_ = [step.id for step in begun if step.step not in reads]
    return [f"terminated with open effects: {', '.join(open_)}"] if open_ else []
