"""The story of a saga as `saga show` prints it, from wherever it can still be read.

A running saga answers a query; a closed one left its story in its memo, so no worker is needed. Temporal's own
close status tells what the engine could not say: a terminated run has a story without an end. Where a story cannot
be whole, its field ``incomplete`` says why in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client as Temporal
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
)
from temporalio.converter import DataConverter
from temporalio.exceptions import FailureError

from saga_workers.temporal.temporal_runs import RunDescription, RunInfo, describe_run, visible_state
from saga_workers.views.answering import NoAnswer, Workers
from saga_workers.views.notifications import with_notifications
from sagas.errors import UsageError
from sagas.machine.parked import waits_for_a_person
from sagas.protocol.outcomes import Failure
from sagas.protocol.payloads import (
    CANCEL_SIGNAL,
    LOAD_ACTIVITY,
    NOT_REGISTERED_TYPES,
    NOTIFICATION_WORKFLOW,
    STARTED_AT_MEMO,
    UNDO_SUFFIX,
)
from sagas.workflow.failures import activity_outcome

TERMINATED_STATES = ("TERMINATED",)
FINAL_STATES = ("COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "FAILED")
QUERY_TIMEOUT = timedelta(seconds=5)
_ENDED_FROM_OUTSIDE = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)


class RunWithMemo(Protocol):
    """A run, read by us or by Temporal's client."""

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
) -> dict[str, Any]:
    """The whole story of one saga, with that of its undo. Raises UsageError when Temporal does not know the id.

    A run that does not answer within ``patience`` is told from outside, with the field ``incomplete``. ``workers`` is
    for those who read many: what was found of the workers for one saga holds for the next.
    """
    workers = workers or Workers(temporal)
    saga_id = saga_id.removesuffix(UNDO_SUFFIX)
    described = await describe_run(temporal, saga_id)
    if described is None:
        raise unknown_saga_error(temporal, saga_id)
    if described.run.workflow_type == NOTIFICATION_WORKFLOW:
        saga = described.run.parent_id or "a saga"
        raise UsageError(f"{saga_id} is a notification of {saga}, and no saga", help=f"saga show {saga}")
    story = await view_of_run(temporal, described, timeout, workers)
    if may_be_undone(story):
        undo = await describe_run(temporal, saga_id + UNDO_SUFFIX)
        # An older undo belongs to an earlier run of this id, before it was started again.
        if undo is not None and undo.run.start_time >= described.run.start_time:
            story = with_undo(story, await view_of_run(temporal, undo, timeout, workers))
    story = await with_notifications(temporal, story)
    return {**story, "web_ui": web_ui_link(web_ui, temporal.namespace, saga_id, described.run.run_id)}


async def running_of(temporal: Temporal, saga_id: str) -> RunDescription | None:
    """The run that goes on: the saga's, or that of its undo; None: neither does."""
    for id in (saga_id, saga_id + UNDO_SUFFIX):
        described = await describe_run(temporal, id)
        if described is not None and described.run.running:
            return described
    return None


async def with_blocking_checked(temporal: Temporal, story: Mapping[str, Any]) -> dict[str, Any]:
    """The story, without ``blocks: saga`` when a nested saga has gone on and its report of that is still on the way.

    Whoever waits for a saga after a decision about a nested one would leave at once otherwise.
    """
    if story["state"] == "PARKED" or not waits_for_a_person(story):
        return dict(story)
    children = story["children"]
    blocking = {one["id"] for child in children for one in child.get("waits") or ()}
    for saga_id in sorted(blocking):
        nested = await read_view(temporal, saga_id)
        if not nested.get("incomplete") and not waits_for_a_person(nested):
            return {**story, "children": [{**one, "blocks": "step"} if one.get("waits") else one for one in children]}
    return dict(story)


def unknown_saga_error(temporal: Temporal, saga_id: str) -> UsageError:
    """The sentence for an id that Temporal does not know."""
    return UsageError(
        f"there is no saga with the id {saga_id} in the namespace {temporal.namespace}",
        help="saga list    shows the ids",
    )


def may_be_undone(story: Mapping[str, Any]) -> bool:
    """Whether a second run, the undo, may have changed what this one left."""
    return story["state"] in ("COMPLETED", "TERMINATED")  # a terminated run can be taken up, see reconciliation


def with_undo(story: Mapping[str, Any], undo: Mapping[str, Any]) -> dict[str, Any]:
    """The story of a completed saga and that of its undo as one."""
    if undo["state"] == "FAILED":
        return dict(story)  # the undo was refused and changed nothing
    if not undo.get("steps"):
        # The undo cannot be asked: what the first run left is still the best there is.
        told = {name: undo[name] for name in ("state", "reason", "ended_at")}
        return {**story, **told, "phase": "backward", "incomplete": undo.get("incomplete")}
    return {**undo, "id": story["id"], "started_at": story["started_at"], "labels": story["labels"]}


async def view_of_run(
    temporal: Temporal,
    described: RunDescription,
    timeout: timedelta = QUERY_TIMEOUT,
    workers: Workers | None = None,
) -> dict[str, Any]:
    """The story of one run, without that of its undo."""
    run = described.run
    story = await closed_view(run)
    if story is None:
        # A run that failed without a story never became a saga: there is nothing to ask.
        ask = can_be_queried(run)
        asking = workers or Workers(temporal)
        story = await (_query_run(asking, described, timeout) if ask else bare_view(run))
    if run.running and story.get("incomplete"):
        story["cancel_requested"] = await cancel_on_record(temporal, described)
    if run.status not in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED):
        story = await _with_temporal_end(temporal, run, story)
    if run.paused:
        story["incomplete"] = "the run is paused in Temporal"
    if run.running:
        story = await with_attempt_progress(story, described)
    return {**story, "labels": labels_of(run) or story.get("labels") or {}}


def can_be_queried(run: RunInfo) -> bool:
    """Whether only the run itself knows its story: it goes on, or it was ended before it could leave one."""
    return run.running or run.status in _ENDED_FROM_OUTSIDE


async def _query_run(workers: Workers, described: RunDescription, timeout: timedelta) -> dict[str, Any]:
    """Ask the run itself; without a worker, tell what Temporal knows."""
    bare = await bare_view(described.run)
    try:
        story = await workers.query(described, "saga", timeout)
    except NoAnswer as error:
        under_way = operations_under_way(described)
        known = f"; under way: {', '.join(under_way)}" if under_way else ""
        if bare["state"] == "PARKED" and "SagaStep" in described.run.attributes:
            known = f"; parked at {described.run.attributes['SagaStep']}{known}"
        return {**bare, "incomplete": f"{error}, so the saga itself cannot be asked{known}"}
    # A run that has not loaded its definition yet answers with less than a whole story.
    return {**bare, **story}


async def _with_temporal_end(temporal: Temporal, run: RunInfo, story: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a story whose end the engine did not write: a refused start, a terminate, a timeout."""
    terminated = run.status in _ENDED_FROM_OUTSIDE
    if story.get("reason") and not terminated:
        return dict(story)
    reason = await _close_reason(temporal, run)
    ended = {"ended_at": iso_time(run.close_time), "can_undo": False}
    if not terminated:
        return {**story, **ended, "reason": reason}
    # Only a message tells why somebody terminated; what led backward before stays the first cause.
    details = {**(reason.get("details") or {}), "before": story["reason"]} if story.get("reason") else reason["details"]
    return {**story, **ended, "state": "TERMINATED", "reason": {**reason, "details": details}}


async def _close_reason(temporal: Temporal, run: RunInfo) -> dict[str, Any]:
    """The ``reason`` that a run's last event gives."""
    handle = temporal.get_workflow_handle(run.id, run_id=run.run_id)
    kind, type_, message, details = "terminated", None, "closed by Temporal", {}
    async for event in handle.fetch_history_events(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT):
        if event.HasField("workflow_execution_terminated_event_attributes"):
            end = event.workflow_execution_terminated_event_attributes
            message = f"terminated by {end.identity or 'somebody'}" + (f": {end.reason}" if end.reason else "")
        elif event.HasField("workflow_execution_timed_out_event_attributes"):
            message = "the run's own timeout has passed, which no saga should have"
        elif event.HasField("workflow_execution_failed_event_attributes"):
            failure = event.workflow_execution_failed_event_attributes.failure
            kind, message = "failed", failure.message
            type_ = failure.application_failure_info.type or None
            if type_ == "SagaRefused":
                kind = "rejected"
    return {"kind": kind, "step": None, "type": type_, "message": message, "details": details}


async def closed_view(run: RunWithMemo) -> dict[str, Any] | None:
    """The story a closed run left in its memo; None while it runs, or when it left none."""
    if run.status is WorkflowExecutionStatus.RUNNING:
        return None
    memo = await run.memo()
    story = memo.get("saga")
    return dict(story) if isinstance(story, Mapping) else None


async def closed_state(run: RunInfo) -> str:
    """How a closed run ended; also where the namespace has no search attributes to tell it."""
    story = await closed_view(run)
    return visible_state(run) if story is None or run.status in _ENDED_FROM_OUTSIDE else story["state"]


async def bare_view(run: RunInfo) -> dict[str, Any]:
    """What Temporal alone knows: every field of the document is there, most of them empty."""
    began = (await run.memo()).get(STARTED_AT_MEMO)
    started = datetime.fromtimestamp(began, run.start_time.tzinfo) if isinstance(began, float) else run.start_time
    reason = run.attributes.get("SagaReason")
    return {
        "id": run.id,
        "saga": run.workflow_type,
        "digest": None,
        "generation": None,
        "state": visible_state(run),
        "phase": None,
        "reason": {"kind": reason, "step": None, "type": None, "message": "", "details": {}} if reason else None,
        "input": None,
        "output": None,
        "labels": labels_of(run),
        "started_at": iso_time(started),
        "committed_at": None,
        "ended_at": iso_time(run.close_time),
        "deadline_at": None,
        "can_undo": False,
        "undo_until": None,
        "cancel_requested": False,
        "overdue": False,
        "steps_omitted": None,
        "parent": run.parent_id,
        "children": [],
        "steps": [],
        "parked": [],
        "not_done": [],
        "residue": [],
        "operator": [],
        "notifications": [],
    }


def labels_of(run: RunInfo) -> dict[str, str]:
    written = run.attributes.get("SagaLabels") or ()
    return dict(one.split("=", 1) for one in written if "=" in one)


def iso_time(timestamp: datetime | None) -> str | None:
    return None if timestamp is None else timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def web_ui_link(web_ui: str | None, namespace: str, saga_id: str, run_id: str) -> str | None:
    """The address of a run in the Temporal Web UI; None when no Web UI is known."""
    if not web_ui:
        return None
    from urllib.parse import quote

    return f"{web_ui.rstrip('/')}/namespaces/{quote(namespace)}/workflows/{quote(saga_id, safe='')}/{run_id}/history"


# How far the attempts in flight are: how many have ended, how the last one failed, what the one at work has said.

_OPERATION_FIELDS = {"undo": "compensation", "confirm": "confirmation"}
_WORDS = {"": "", "compensation": "the undo of ", "confirmation": "the confirm of "}


async def with_attempt_progress(story: Mapping[str, Any], described: RunDescription) -> dict[str, Any]:
    """The story with what only Temporal knows of calls that go on.

    A row counts the attempts that have ended and has the ``error`` of the last one; a step whose attempt beats has a
    ``progress``: the JSON object of its last heartbeat.
    """
    steps = {step["id"]: dict(step) for step in story.get("steps") or ()}
    converter = described.run.converter
    for activity in described.raw.pending_activities:
        entry, row = parse_activity_id(activity.activity_id)
        step = steps.get(entry)
        if step is None or row is None:
            continue
        if not row:
            step |= await _attempt_fields(step, activity, converter) | await _heartbeat_fields(activity, converter)
        elif step.get(row):
            step[row] = {**step[row], **await _attempt_fields(step[row], activity, converter)}
    return {**story, "steps": list(steps.values())}


def parse_activity_id(activity_id: str) -> tuple[str, str | None]:
    """The ledger id of a call, and the field of its row that tells of it: "" for the step itself, None for none."""
    entry, _, what = activity_id.partition("~")
    if not what or what.isdigit():
        return entry, ""  # a number: the first one was given up
    return entry, _OPERATION_FIELDS.get(what.partition(".")[0])


def operations_under_way(described: RunDescription) -> list[str]:
    """The calls that Temporal knows to be open, in words; what the server still lists of a closed run is not."""
    return [_in_words(one) for one in described.raw.pending_activities] if described.run.running else []


def _in_words(activity: PendingActivityInfo) -> str:
    """`the undo of hotel (attempt 2)`."""
    entry, row = parse_activity_id(activity.activity_id)
    name = "reading its definition" if activity.activity_type.name == LOAD_ACTIVITY else activity.activity_id
    if row is not None and activity.activity_type.name != LOAD_ACTIVITY:
        name = f"{_WORDS[row]}{entry}"
    return f"{name} (attempt {activity.attempt})" if activity.attempt > 1 else name


async def _attempt_fields(
    row: Mapping[str, Any], activity: PendingActivityInfo, converter: DataConverter
) -> dict[str, Any]:
    """``attempts`` and ``error`` after the attempts of this call that have ended."""
    if activity.attempt < 2 or not activity.HasField("last_failure"):
        return {}
    failure = await _failure(activity, converter)
    counted = 0 if failure.type in NOT_REGISTERED_TYPES else activity.attempt - 1
    before = row.get("attempts")
    return {"attempts": None if before is None else before + counted, "error": failure.to_json()}


async def _failure(activity: PendingActivityInfo, converter: DataConverter) -> Failure:
    error = await converter.decode_failure(activity.last_failure)
    found = activity_outcome(error).failure if isinstance(error, FailureError) else None
    return found or Failure(type(error).__name__, str(error))


async def _heartbeat_fields(activity: PendingActivityInfo, converter: DataConverter) -> dict[str, Any]:
    if not activity.heartbeat_details.payloads:
        return {}
    values = await converter.decode(activity.heartbeat_details.payloads[:1])
    return {"progress": values[0]} if isinstance(values[0], dict) and values[0] else {}


# Whether a cancel of a saga is on record, read from Temporal when no worker can say what the saga has made of it.

_TAKEN = ("accepted", "recorded")


async def cancel_on_record(temporal: Temporal, described: RunDescription) -> bool:
    """A native cancel, the signal of a parent saga, or an update that the saga has taken."""
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
