"""The view of a saga as `saga show` prints it, from whichever source can still be read.

A running saga answers a query; a closed one has left its view in its memo, so no worker is needed. Temporal's close
status completes what the engine could not write: a terminated run has a view without an end. If a view cannot be
complete, its field ``incomplete`` gives the reason.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus
from temporalio.converter import DataConverter
from temporalio.exceptions import FailureError

from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of, verified_view
from saga_workers.temporal.attempt_failure import latest_failure
from saga_workers.temporal.begun_runs import has_begun, open_state
from saga_workers.temporal.foreign_payloads import UNREADABLE_VALUE, read_foreign_failure, read_single_payload
from saga_workers.temporal.run_history import readable_events
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo, describe_run
from saga_workers.temporal.visible_states import carried_start, closed_view, may_be_undone, visible_state
from saga_workers.views.answering import NO_VIEW, Unqueryable, Workers
from saga_workers.views.bulk_view import view_in_bulk
from saga_workers.views.notifications import with_notifications
from saga_workers.views.pending_activities import activities_under_way, parse_activity_id
from saga_workers.views.redeliveries import with_redelivery
from saga_workers.views.run_facts import close_reason, iso_time, web_ui_link
from saga_workers.views.undone_before_reset import with_undone_steps
from sagas.builtins.signal_names import CANCEL_SIGNAL
from sagas.errors import UsageError
from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.outcomes import Failure
from sagas.protocol.payloads import (
    NOT_REGISTERED_TYPES,
    NOTIFICATION_WORKFLOW,
)
from sagas.protocol.redelivery_names import REDELIVERY_WORKFLOW
from sagas.protocol.saga_view import (
    ErrorView,
    OperationView,
    ReasonView,
    SagaView,
    StepView,
)
from sagas.text.shell import saga_command
from sagas.workflow.failures import activity_outcome

QUERY_TIMEOUT = timedelta(seconds=5)


async def read_view(
    locator: Locator,
    saga_id: str,
    *,
    web_ui: str | None = None,
    timeout: timedelta = QUERY_TIMEOUT,
    workers: Workers | None = None,
) -> SagaView:
    """The complete view of one saga, with that of its undo, from wherever it lives.

    Raises UsageError if nobody knows it, LedgerUnavailable if only the ledger could.

    A run that does not answer within ``timeout`` is described from outside, with the field ``incomplete``. To read
    many, pass one ``workers``: what it has learned about a task queue then holds for all of them.
    """
    workers = workers or Workers(locator.temporal, locator.keys)
    try:
        location = await locator.locate(saga_id)
    except LedgerUnavailable:
        location = await locator.within_temporal().locate(saga_id)
        if location.home is None:
            raise
    return await view_at(locator, location, web_ui=web_ui, timeout=timeout, workers=workers)


async def read_ended_view(locator: Locator, saga_id: str, timeout: timedelta = QUERY_TIMEOUT) -> SagaView:
    """The view of a saga whose run the caller has followed to its end. The memo of that run has it, so nobody else is
    asked; what has been done to the saga since does not concern who waited for its end. Errors as of :func:`read_view`,
    which answers for any other end.
    """
    described = await describe_run(locator.temporal, saga_id)
    if described is not None and described.run.ended_by_itself:
        outcome = await outcome_of(locator, described.run)
        if outcome.is_believed and outcome.view is not None:
            return outcome.view
    return await read_view(locator, saga_id, timeout=timeout)


async def view_at(
    locator: Locator, location: Location, *, web_ui: str | None, timeout: timedelta, workers: Workers
) -> SagaView:
    """Read the view of a saga that was located. Raises UsageError if the location is unknown, or that of a
    notification.
    """
    temporal = locator.temporal

    async def read(described: RunDescription) -> SagaView:
        return await verified_view(locator, described.run, await view_of_run(workers, described, timeout))

    if location.run is not None:
        run = location.run.run
        if run.workflow_type in (NOTIFICATION_WORKFLOW, REDELIVERY_WORKFLOW):
            saga = run.parent_id or "a saga"
            what = "a notification" if run.workflow_type == NOTIFICATION_WORKFLOW else "the next start"
            raise UsageError(f"{run.id} is {what} of {saga}, not a saga", help=saga_command("show", saga))
        view = await read(location.run)
        undo = location.undo
        if run.running and may_be_undone(view.state):  # it is over, although its run is not closed yet
            undo = await locator.undo_of(run)
        if undo is not None:
            view = with_shown_undo(view, await read(undo))
        view = await with_notifications(temporal, await with_undone_steps(locator, run, view))
        view = await with_redelivery(temporal, view, closed=not run.running)
        return replace(view, web_ui=web_ui_link(web_ui, temporal.namespace, run.id, run.run_id))
    if location.member is not None:
        view = await view_in_bulk(temporal, location.member, web_ui=web_ui, timeout=timeout, workers=workers)
    elif location.row is not None:
        view = location.row.view
    elif location.undo is not None:  # its saga is known neither to Temporal nor to the ledger any more
        return await read(location.undo)
    else:
        raise await locator.unknown_saga(location.saga_id)
    if location.undo is None or (location.member is not None and not may_be_undone(view.state)):
        return view
    undone = with_shown_undo(view, await read(location.undo))
    return undone if undone is view else replace(undone, source=None)


async def with_blocking_checked(locator: Locator, view: SagaView) -> SagaView:
    """The view without ``blocks: saga`` if a nested saga has gone on but its report of that has not arrived yet.

    Otherwise a command that waits for a saga after a decision about a nested one would end at once.
    """
    if view.state == "PARKED" or not view.waits_for_a_person:
        return view
    blocking = {wait.id for child in view.children for wait in child.waits or ()}
    for saga_id in sorted(blocking):
        nested = await read_view(locator, saga_id)
        if not nested.incomplete and not nested.waits_for_a_person:
            children = (replace(child, blocks="step") if child.waits else child for child in view.children)
            return replace(view, children=tuple(children))
    return view


def with_undo(view: SagaView, undo: SagaView) -> SagaView:
    """The views of a completed saga and of its undo, merged into one."""
    if undo.state == "FAILED" and not undo.is_of_unsigned_run:
        return view  # the undo was refused and changed nothing
    if not undo.steps:
        # The undo cannot be queried: the final view of the first run is the best there is.
        return replace(
            view,
            state="COMPENSATING" if undo.state == "RUNNING" else undo.state,
            phase="backward",
            reason=undo.reason,
            ended_at=undo.ended_at,
            incomplete=undo.incomplete,
        )
    return replace(undo, id=view.id, started_at=view.started_at, labels=view.labels)


def with_shown_undo(view: SagaView, undo: SagaView) -> SagaView:
    """The views merged for people: marked if either run is not believed, see :func:`verified_view`."""
    undone = with_undo(view, undo)
    undone = replace(undone, verified=False if False in (view.verified, undo.verified) else None)
    return replace(undone, incomplete=undone.incomplete or view.incomplete) if view.is_of_unsigned_run else undone


async def view_of_run(workers: Workers, described: RunDescription, timeout: timedelta = QUERY_TIMEOUT) -> SagaView:
    """The view of one run, without that of its undo."""
    temporal, run = workers.temporal, described.run
    view = await closed_view(run)
    if view is None:
        # A run that failed without a view never became a saga, and one that was closed before its first workflow task
        # has begun none: neither can be queried.
        ask = run.running or (can_be_queried(run) and await has_begun(temporal, run))
        view = await (_query_run(workers, described, timeout) if ask else bare_view(run))
    if run.running and view.incomplete:
        view = replace(view, cancel_requested=await cancel_on_record(temporal, described))
    if run.status not in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED):
        view = await _with_temporal_end(temporal, run, view)
    if run.paused:
        view = replace(view, incomplete="the run is paused in Temporal")
    if run.running and described.raw.pending_activities:
        # A call that has ended since the description is counted in the view already.
        latest = await describe_run(temporal, run.id, run.run_id)
        if latest is not None and latest.run.running:
            view = await with_attempt_progress(view, latest)
    return replace(view, labels=labels_of(run) or view.labels)


def can_be_queried(run: RunInfo) -> bool:
    """Return whether only the run itself has its view: it is open, or was ended before it could leave one."""
    return run.running or run.ended_from_outside


async def _query_run(workers: Workers, described: RunDescription, timeout: timedelta) -> SagaView:
    """Query the run itself; without a worker, describe what Temporal knows."""
    try:
        answer = await workers.query_view(described, timeout)
        view = read_foreign_view(answer.document, described.run.id)
        return answer.marked(view) if view else replace(await bare_view(described.run), incomplete=NO_VIEW)
    except Unqueryable as error:
        bare = replace(await bare_view(described.run), state=await open_state(workers.temporal, described.run))
        under_way = activities_under_way(described)
        under_way_text = f"; in flight: {', '.join(under_way)}" if under_way else ""
        if bare.state == "PARKED" and "SagaStep" in described.run.attributes:
            under_way_text = f"; parked at {described.run.attributes['SagaStep']}{under_way_text}"
        return replace(bare, incomplete=f"{error}, so the saga cannot be queried{under_way_text}")


async def _with_temporal_end(temporal: Temporal, run: RunInfo, view: SagaView) -> SagaView:
    """Complete a view whose end the engine did not write: a refused start, a terminate, a timeout."""
    terminated = run.ended_from_outside
    if view.reason and not terminated:
        return view
    reason = await close_reason(temporal, run)
    view = replace(view, ended_at=iso_time(run.close_time), can_undo=False)
    if not terminated:
        return replace(view, reason=reason)
    if view.reason:
        # Why a run was terminated is known from its message only; an earlier cause of the rollback is kept in `before`.
        reason = replace(reason, details={"before": view.reason.to_json()})
    return replace(view, state="TERMINATED", reason=reason)


async def bare_view(run: RunInfo) -> SagaView:
    """Return what Temporal alone knows; most fields are empty."""
    began = await carried_start(run)
    started = run.start_time if began is None else datetime.fromtimestamp(began, run.start_time.tzinfo)
    kind = run.attributes.get("SagaReason")
    return SagaView(
        id=run.id,
        saga=run.workflow_type,
        state=visible_state(run),
        reason=ReasonView(kind=kind, message="") if kind else None,
        labels=labels_of(run),
        started_at=iso_time(started),
        ended_at=iso_time(run.close_time),
        parent=run.parent_id,
    )


def labels_of(run: RunInfo) -> dict[str, str]:
    written = run.attributes.get("SagaLabels") or ()
    return dict(label.split("=", 1) for label in written if "=" in label)


# Pending activities: attempts so far, the last failure, and the last heartbeat.
async def with_attempt_progress(view: SagaView, described: RunDescription) -> SagaView:
    """The view with what only Temporal knows of calls in flight.

    A row counts the attempts that have ended and has the ``error`` of the last one; a step whose attempt sends
    heartbeats has a ``progress``: the JSON object of the last one.
    """
    steps = {step.id: step for step in view.steps}
    converter = described.run.converter
    for activity in described.raw.pending_activities:
        entry, operation = parse_activity_id(activity.activity_id)
        step = steps.get(entry)
        if step is None or operation is None:
            continue
        if not operation:
            step = await _with_attempts(step, activity, converter)
            steps[entry] = replace(step, progress=await _heartbeat(activity, converter))
        elif (row := getattr(step, operation)) is not None:
            steps[entry] = replace(step, **{operation: await _with_attempts(row, activity, converter)})
    return replace(view, steps=tuple(steps.values()))


_Row = TypeVar("_Row", StepView, OperationView)


async def _with_attempts(row: _Row, activity: PendingActivityInfo, converter: DataConverter) -> _Row:
    """The row with ``attempts`` and ``error`` of the attempts of this call that have ended, and the next one's time."""
    if activity.attempt < 2 or not activity.HasField("last_failure"):
        return row
    failure = await _failure(activity, converter)
    counted = 0 if failure.type in NOT_REGISTERED_TYPES else activity.attempt - 1
    error = ErrorView(type=failure.type, message=failure.message, details=failure.details)
    attempts = None if row.attempts is None else row.attempts + counted
    is_waiting = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    # An attempt that is due and waits for a worker has no time.
    is_waiting = is_waiting and activity.HasField("next_attempt_schedule_time")
    following = activity.next_attempt_schedule_time.ToDatetime(UTC) if is_waiting else None
    return replace(row, attempts=attempts, error=error, next_attempt_at=iso_time(following))


async def _failure(activity: PendingActivityInfo, converter: DataConverter) -> Failure:
    error = await read_foreign_failure(latest_failure(activity), converter)
    failure = activity_outcome(error).failure if isinstance(error, FailureError) else None
    return failure or Failure(type(error).__name__, str(error))


async def _heartbeat(activity: PendingActivityInfo, converter: DataConverter) -> dict[str, Any] | None:
    with suppress(*UNREADABLE_VALUE):
        value = await read_single_payload(activity.heartbeat_details.payloads, converter)
        return value if isinstance(value, dict) and value else None
    return None


# Whether Temporal has a cancel for the saga: read when no worker can answer.
_TAKEN = ("accepted", "recorded")


async def cancel_on_record(temporal: Temporal, described: RunDescription) -> bool:
    """Return whether there is a native cancel, the signal of a parent saga, or an update that the saga has accepted."""
    if described.raw.workflow_extended_info.cancel_requested:
        return True
    open_updates: set[str] = set()
    async for event in readable_events(temporal, described.run):
        if event.workflow_execution_signaled_event_attributes.signal_name == CANCEL_SIGNAL:
            return True
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        if request.input.name == "cancel":
            open_updates.add(request.meta.update_id)
        if (done := event.workflow_execution_update_completed_event_attributes.meta.update_id) in open_updates:
            open_updates.remove(done)
            if await _answer(temporal, event) in _TAKEN:
                return True
    return bool(open_updates)


async def _answer(temporal: Temporal, event: HistoryEvent) -> object:
    outcome = event.workflow_execution_update_completed_event_attributes.outcome
    with suppress(*UNREADABLE_VALUE):
        return await read_single_payload(outcome.success.payloads, temporal.data_converter)
    return None
