"""The view of a saga as `saga show` prints it, from whichever source can still be read.

A running saga answers a query; a closed one has left its view in its memo, so no worker is needed. Temporal's close
status completes what the engine could not write: a terminated run has a view without an end. If a view cannot be
complete, its field ``incomplete`` gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus
from temporalio.converter import DataConverter
from temporalio.exceptions import FailureError

from saga_activities.ledger.claims import Claim
from saga_activities.ledger.rows import RunRow
from saga_workers.ledger.run_ledger import LedgerUnavailable, RunLedger
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo, describe_run, describe_undo, visible_state
from saga_workers.views.answering import NoAnswer, Workers
from saga_workers.views.bulk_view import view_in_bulk
from saga_workers.views.notifications import with_notifications
from saga_workers.views.run_facts import close_reason, iso_time, web_ui_link
from sagas.errors import UsageError
from sagas.protocol.outcomes import Failure
from sagas.protocol.payloads import (
    CANCEL_SIGNAL,
    LOAD_ACTIVITY,
    NOT_REGISTERED_TYPES,
    NOTIFICATION_WORKFLOW,
    STARTED_AT_MEMO,
    UNDO_SUFFIX,
)
from sagas.protocol.saga_view import (
    STARTED_AGAIN,
    ErrorView,
    OperationView,
    ReasonView,
    SagaView,
    StepView,
    ViewState,
)
from sagas.text.shell import saga_command
from sagas.workflow.failures import activity_outcome

TERMINATED_STATES = ("TERMINATED",)
FINAL_STATES = ("COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "FAILED")
QUERY_TIMEOUT = timedelta(seconds=5)
_ENDED_FROM_OUTSIDE = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)


class RunWithMemo(Protocol):
    """A run, either ours or that of Temporal's client."""

    @property
    def status(self) -> WorkflowExecutionStatus | None: ...

    async def memo(self) -> Mapping[str, Any]: ...


async def read_view(
    temporal: Temporal,
    saga_id: str,
    *,
    web_ui: str | None = None,
    timeout: timedelta = QUERY_TIMEOUT,
    workers: Workers | None = None,
    ledger: RunLedger | None = None,
) -> SagaView:
    """The complete view of one saga, with that of its undo. If Temporal does not know the id, ``ledger`` is asked.

    Raises UsageError if neither knows it, LedgerUnavailable if only the ledger could.

    A run that does not answer within ``timeout`` is described from outside, with the field ``incomplete``. To read
    many, pass one ``workers``: what it has learned about a task queue then holds for all of them.
    """
    workers = workers or Workers(temporal)
    saga_id = saga_id.removesuffix(UNDO_SUFFIX)
    described = await describe_run(temporal, saga_id)
    if described is None:
        return await _view_without_run(temporal, ledger, saga_id, web_ui, timeout, workers)
    if described.run.workflow_type == NOTIFICATION_WORKFLOW:
        saga = described.run.parent_id or "a saga"
        raise UsageError(f"{saga_id} is a notification of {saga}, not a saga", help=saga_command("show", saga))
    view = await view_of_run(temporal, described, timeout, workers)
    if may_be_undone(view.state):
        undo = await describe_undo(temporal, described.run)
        if undo is not None:
            view = with_undo(view, await view_of_run(temporal, undo, timeout, workers))
    if ledger is not None and view.state in STARTED_AGAIN:
        later = await _later_in_bulk(temporal, ledger, described.run, web_ui, timeout, workers)
        if later is not None:
            return later
    view = await with_notifications(temporal, view)
    return replace(view, web_ui=web_ui_link(web_ui, temporal.namespace, saga_id, described.run.run_id))


async def _view_without_run(
    temporal: Temporal, ledger: RunLedger | None, saga_id: str, web_ui: str | None, timeout: timedelta, workers: Workers
) -> SagaView:
    """The view of a saga of which Temporal has no run: a bulk workflow runs it, or it is only in the ledger."""
    if ledger is None:
        raise unknown_saga_error(temporal, saga_id)
    # The claim first: when it is deleted, there is a row.
    claim = await ledger.bulk_claim(saga_id)
    if claim is not None:
        return await _view_of_claim(temporal, claim, web_ui, timeout, workers)
    row = await ledger.find(saga_id)
    if row is not None:
        return await _with_undo_of_row(temporal, row, timeout, workers)
    if await describe_run(temporal, saga_id) is not None:  # it has left its bulk workflow meanwhile
        return await read_view(temporal, saga_id, web_ui=web_ui, timeout=timeout, workers=workers, ledger=ledger)
    raise unknown_saga_error(temporal, saga_id)


async def _later_in_bulk(
    temporal: Temporal, ledger: RunLedger, run: RunInfo, web_ui: str | None, timeout: timedelta, workers: Workers
) -> SagaView | None:
    """The view of a later generation of this undone saga, which was started in a bulk workflow; None if none was."""
    try:
        claim = await ledger.bulk_claim(run.id)
        if claim is not None:
            return await _view_of_claim(temporal, claim, web_ui, timeout, workers)
        row = await ledger.find(run.id)
    except LedgerUnavailable:
        return None  # Temporal's run is the best there is
    if row is None or run.close_time is None or row.started_at <= run.close_time:
        return None
    return await _with_undo_of_row(temporal, row, timeout, workers)


async def _view_of_claim(
    temporal: Temporal, claim: Claim, web_ui: str | None, timeout: timedelta, workers: Workers
) -> SagaView:
    """The view in the bulk workflow; if that was terminated, the saga may have been continued since."""
    view = await view_in_bulk(temporal, claim, web_ui=web_ui, timeout=timeout, workers=workers)
    if not may_be_undone(view.state):
        return view
    undo = await describe_run(temporal, claim.saga_id + UNDO_SUFFIX)
    if undo is None or undo.run.workflow_type != claim.saga or undo.run.start_time < claim.claimed_at:
        return view
    return with_undo(view, await view_of_run(temporal, undo, timeout, workers))


async def _with_undo_of_row(temporal: Temporal, row: RunRow, timeout: timedelta, workers: Workers) -> SagaView:
    """The view of a row of the ledger; its undo may have been started since."""
    undo = await describe_run(temporal, row.view.id + UNDO_SUFFIX)
    if undo is None or undo.run.workflow_type != row.view.saga or undo.run.start_time < row.started_at:
        return row.view
    if not may_be_undone(row.view.state) and not undo.run.running:
        return row.view
    view = with_undo(row.view, await view_of_run(temporal, undo, timeout, workers))
    return view if view is row.view else replace(view, source=None)


async def running_of(temporal: Temporal, saga_id: str) -> RunDescription | None:
    """The open run: the saga's, or that of its undo; None if neither is open."""
    described = await describe_run(temporal, saga_id)
    if described is not None and described.run.running:
        return described
    # Without the saga's own run, the ledger knew it.
    undo = await (
        describe_run(temporal, saga_id + UNDO_SUFFIX) if described is None else describe_undo(temporal, described.run)
    )
    return undo if undo is not None and undo.run.running else None


async def with_blocking_checked(temporal: Temporal, view: SagaView) -> SagaView:
    """The view without ``blocks: saga`` if a nested saga has gone on but its report of that has not arrived yet.

    Otherwise a command that waits for a saga after a decision about a nested one would end at once.
    """
    if view.state == "PARKED" or not view.waits_for_a_person:
        return view
    blocking = {one.id for child in view.children for one in child.waits or ()}
    for saga_id in sorted(blocking):
        nested = await read_view(temporal, saga_id)
        if not nested.incomplete and not nested.waits_for_a_person:
            children = (replace(child, blocks="step") if child.waits else child for child in view.children)
            return replace(view, children=tuple(children))
    return view


def unknown_saga_error(temporal: Temporal, saga_id: str) -> UsageError:
    """The error for an id that Temporal does not know."""
    return UsageError(
        f"there is no saga with the id {saga_id} in the namespace {temporal.namespace}",
        help="saga list    lists the ids",
    )


def may_be_undone(state: ViewState) -> bool:
    """Whether a second run, the undo, may have changed what this one left."""
    return state in ("COMPLETED", "TERMINATED")  # an undo may follow a terminated run, see reconciliation


def with_undo(view: SagaView, undo: SagaView) -> SagaView:
    """The views of a completed saga and of its undo, merged into one."""
    if undo.state == "FAILED":
        return view  # the undo was refused and changed nothing
    if not undo.steps:
        # The undo cannot be queried: the final view of the first run is the best there is.
        return replace(
            view,
            state=undo.state,
            phase="backward",
            reason=undo.reason,
            ended_at=undo.ended_at,
            incomplete=undo.incomplete,
        )
    return replace(undo, id=view.id, started_at=view.started_at, labels=view.labels)


async def view_of_run(
    temporal: Temporal,
    described: RunDescription,
    timeout: timedelta = QUERY_TIMEOUT,
    workers: Workers | None = None,
) -> SagaView:
    """The view of one run, without that of its undo."""
    run = described.run
    view = await closed_view(run)
    if view is None:
        # A run that failed without a view never became a saga, and cannot be queried.
        ask = can_be_queried(run)
        asking = workers or Workers(temporal)
        view = await (_query_run(asking, described, timeout) if ask else bare_view(run))
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
    """Whether only the run itself has its view: it is open, or was ended before it could leave one."""
    return run.running or run.status in _ENDED_FROM_OUTSIDE


async def _query_run(workers: Workers, described: RunDescription, timeout: timedelta) -> SagaView:
    """Query the run itself; without a worker, describe what Temporal knows."""
    try:
        return SagaView.from_json(await workers.query(described, "saga", timeout))
    except NoAnswer as error:
        bare = await bare_view(described.run)
        under_way = operations_under_way(described)
        known = f"; in flight: {', '.join(under_way)}" if under_way else ""
        if bare.state == "PARKED" and "SagaStep" in described.run.attributes:
            known = f"; parked at {described.run.attributes['SagaStep']}{known}"
        return replace(bare, incomplete=f"{error}, so the saga cannot be queried{known}")


async def _with_temporal_end(temporal: Temporal, run: RunInfo, view: SagaView) -> SagaView:
    """Complete a view whose end the engine did not write: a refused start, a terminate, a timeout."""
    terminated = run.status in _ENDED_FROM_OUTSIDE
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


async def closed_view(run: RunWithMemo) -> SagaView | None:
    """The view that a closed run left in its memo; None if it is open or left none."""
    if run.status is WorkflowExecutionStatus.RUNNING:
        return None
    document = (await run.memo()).get("saga")
    return SagaView.from_json(document) if isinstance(document, Mapping) else None


async def closed_state(run: RunInfo) -> ViewState:
    """The final state of a closed run, also in a namespace without the engine's search attributes."""
    view = await closed_view(run)
    return visible_state(run) if view is None or run.status in _ENDED_FROM_OUTSIDE else view.state


async def bare_view(run: RunInfo) -> SagaView:
    """What Temporal alone knows; most fields are empty."""
    began = (await run.memo()).get(STARTED_AT_MEMO)
    started = run.start_time if began is None else datetime.fromtimestamp(float(began), run.start_time.tzinfo)
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
    return dict(one.split("=", 1) for one in written if "=" in one)


# Pending activities: attempts so far, the last failure, and the last heartbeat.

_OPERATION_FIELDS = {"undo": "compensation", "confirm": "confirmation"}
_WORDS = {"": "", "compensation": "the undo of ", "confirmation": "the confirm of "}


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


def parse_activity_id(activity_id: str) -> tuple[str, str | None]:
    """The ledger id of a call and the field of its row: "" for the step itself, None if there is none."""
    entry, _, what = activity_id.partition("~")
    if not what or what.isdigit():
        return entry, ""  # a number: an earlier call was given up
    return entry, _OPERATION_FIELDS.get(what.partition(".")[0])


def operations_under_way(described: RunDescription) -> list[str]:
    """The open calls, in words. Empty for a closed run, although the server may still list some."""
    return [_in_words(one) for one in described.raw.pending_activities] if described.run.running else []


def _in_words(activity: PendingActivityInfo) -> str:
    """For example `the undo of hotel (attempt 2)`."""
    entry, row = parse_activity_id(activity.activity_id)
    name = "loading its definition" if activity.activity_type.name == LOAD_ACTIVITY else activity.activity_id
    if row is not None and activity.activity_type.name != LOAD_ACTIVITY:
        name = f"{_WORDS[row]}{entry}"
    return f"{name} (attempt {activity.attempt})" if activity.attempt > 1 else name


_Row = TypeVar("_Row", StepView, OperationView)


async def _with_attempts(row: _Row, activity: PendingActivityInfo, converter: DataConverter) -> _Row:
    """The row with ``attempts`` and ``error`` of the attempts of this call that have ended."""
    if activity.attempt < 2 or not activity.HasField("last_failure"):
        return row
    failure = await _failure(activity, converter)
    counted = 0 if failure.type in NOT_REGISTERED_TYPES else activity.attempt - 1
    error = ErrorView(type=failure.type, message=failure.message, details=failure.details)
    return replace(row, attempts=None if row.attempts is None else row.attempts + counted, error=error)


async def _failure(activity: PendingActivityInfo, converter: DataConverter) -> Failure:
    error = await converter.decode_failure(activity.last_failure)
    found = activity_outcome(error).failure if isinstance(error, FailureError) else None
    return found or Failure(type(error).__name__, str(error))


async def _heartbeat(activity: PendingActivityInfo, converter: DataConverter) -> dict[str, Any] | None:
    if not activity.heartbeat_details.payloads:
        return None
    values = await converter.decode(activity.heartbeat_details.payloads[:1])
    return values[0] if isinstance(values[0], dict) and values[0] else None


# Whether a cancel is on record, read from Temporal when no worker can answer.

_TAKEN = ("accepted", "recorded")


async def cancel_on_record(temporal: Temporal, described: RunDescription) -> bool:
    """Whether there is a native cancel, the signal of a parent saga, or an update that the saga has accepted."""
    if described.raw.workflow_extended_info.cancel_requested:
        return True
    open_updates: set[str] = set()
    handle = temporal.get_workflow_handle(described.run.id, run_id=described.run.run_id)
    async for event in handle.fetch_history_events():
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
    if not outcome.HasField("success"):
        return None
    return (await temporal.data_converter.decode(outcome.success.payloads))[0]
