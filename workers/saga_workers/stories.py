"""The story of a saga as `saga show` prints it, from wherever it can still be read.

A running saga answers a query; a closed one left its story in its memo, so no worker is needed. Temporal's own
close status tells what the engine could not say: a terminated run has a story without an end. Where a story cannot
be whole, its field ``incomplete`` says why in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from temporalio.client import Client as Temporal
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
)

from saga_workers.answering import NoAnswer, Workers
from saga_workers.cancels import cancel_on_record
from saga_workers.notifications import with_notifications
from saga_workers.progress import operations_under_way, with_progress
from saga_workers.runs import Description, RunInfo, describe, state_of
from sagas.blocked import waits_for_a_person
from sagas.errors import UsageError
from sagas.wire import NOTIFY, STARTED_MEMO, UNDO_SUFFIX

TERMINATED_STATES = ("TERMINATED",)
FINAL_STATES = ("COMPLETED", "COMPENSATED", "RESIDUE", "TERMINATED", "FAILED")
QUERY_TIMEOUT = timedelta(seconds=5)
_NO_END = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)


class Execution(Protocol):
    """A run, read by us or by Temporal's client."""

    @property
    def status(self) -> WorkflowExecutionStatus | None: ...

    async def memo(self) -> Mapping[str, Any]: ...


async def read_story(
    temporal: Temporal,
    saga_id: str,
    *,
    web_ui: str | None = None,
    patience: timedelta = QUERY_TIMEOUT,
    workers: Workers | None = None,
) -> dict[str, Any]:
    """The whole story of one saga, with that of its undo. Raises UsageError when Temporal does not know the id.

    A run that does not answer within ``patience`` is told from outside, with the field ``incomplete``. ``workers`` is
    for those who read many: what was found of the workers for one saga holds for the next.
    """
    workers = workers or Workers(temporal)
    saga_id = saga_id.removesuffix(UNDO_SUFFIX)
    described = await describe(temporal, saga_id)
    if described is None:
        raise unknown_saga(temporal, saga_id)
    if described.run.workflow_type == NOTIFY:
        saga = described.run.parent_id or "a saga"
        raise UsageError(f"{saga_id} is a notification of {saga}, and no saga", help=f"saga show {saga}")
    story = await story_of(temporal, described, patience, workers)
    if may_be_undone(story):
        undo = await describe(temporal, saga_id + UNDO_SUFFIX)
        # An older undo belongs to an earlier run of this id, before it was started again.
        if undo is not None and undo.run.start_time >= described.run.start_time:
            story = with_undo(story, await story_of(temporal, undo, patience, workers))
    story = await with_notifications(temporal, story)
    return {**story, "web_ui": run_link(web_ui, temporal.namespace, saga_id, described.run.run_id)}


async def running_of(temporal: Temporal, saga_id: str) -> Description | None:
    """The run that goes on: the saga's, or that of its undo; None: neither does."""
    for id in (saga_id, saga_id + UNDO_SUFFIX):
        described = await describe(temporal, id)
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
        nested = await read_story(temporal, saga_id)
        if not nested.get("incomplete") and not waits_for_a_person(nested):
            return {**story, "children": [{**one, "blocks": "step"} if one.get("waits") else one for one in children]}
    return dict(story)


def unknown_saga(temporal: Temporal, saga_id: str) -> UsageError:
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


async def story_of(
    temporal: Temporal,
    described: Description,
    patience: timedelta = QUERY_TIMEOUT,
    workers: Workers | None = None,
) -> dict[str, Any]:
    """The story of one run, without that of its undo."""
    run = described.run
    story = await closed_story(run)
    if story is None:
        # A run that failed without a story never became a saga: there is nothing to ask.
        ask = may_be_asked(run)
        asking = workers or Workers(temporal)
        story = await (_ask(asking, described, patience) if ask else bare_story(run))
    if run.running and story.get("incomplete"):
        story["cancel_requested"] = await cancel_on_record(temporal, described)
    if run.status not in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED):
        story = await _ended_by_temporal(temporal, run, story)
    if run.paused:
        story["incomplete"] = "the run is paused in Temporal"
    if run.running:
        story = await with_progress(story, described)
    return {**story, "labels": labels_of(run) or story.get("labels") or {}}


def may_be_asked(run: RunInfo) -> bool:
    """Whether only the run itself knows its story: it goes on, or it was ended before it could leave one."""
    return run.running or run.status in _NO_END


async def _ask(workers: Workers, described: Description, patience: timedelta) -> dict[str, Any]:
    """Ask the run itself; without a worker, tell what Temporal knows."""
    bare = await bare_story(described.run)
    try:
        story = await workers.query(described, "saga", patience)
    except NoAnswer as error:
        under_way = operations_under_way(described)
        known = f"; under way: {', '.join(under_way)}" if under_way else ""
        if bare["state"] == "PARKED" and "SagaStep" in described.run.attributes:
            known = f"; parked at {described.run.attributes['SagaStep']}{known}"
        return {**bare, "incomplete": f"{error}, so the saga itself cannot be asked{known}"}
    # A run that has not loaded its definition yet answers with less than a whole story.
    return {**bare, **story}


async def _ended_by_temporal(temporal: Temporal, run: RunInfo, story: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a story whose end the engine did not write: a refused start, a terminate, a timeout."""
    terminated = run.status in _NO_END
    if story.get("reason") and not terminated:
        return dict(story)
    reason = await _last_words(temporal, run)
    ended = {"ended_at": iso(run.close_time), "can_undo": False}
    if not terminated:
        return {**story, **ended, "reason": reason}
    # Only a message tells why somebody terminated; what led backward before stays the first cause.
    details = {**(reason.get("details") or {}), "before": story["reason"]} if story.get("reason") else reason["details"]
    return {**story, **ended, "state": "TERMINATED", "reason": {**reason, "details": details}}


async def _last_words(temporal: Temporal, run: RunInfo) -> dict[str, Any]:
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


async def closed_story(described: Execution) -> dict[str, Any] | None:
    """The story a closed run left in its memo; None while it runs, or when it left none."""
    if described.status is WorkflowExecutionStatus.RUNNING:
        return None
    memo = await described.memo()
    story = memo.get("saga")
    return dict(story) if isinstance(story, Mapping) else None


async def closed_state(run: RunInfo) -> str:
    """How a closed run ended; also where the namespace has no search attributes to tell it."""
    story = await closed_story(run)
    return state_of(run) if story is None or run.status in _NO_END else story["state"]


async def bare_story(run: RunInfo) -> dict[str, Any]:
    """What Temporal alone knows: every field of the document is there, most of them empty."""
    began = (await run.memo()).get(STARTED_MEMO)
    started = datetime.fromtimestamp(began, run.start_time.tzinfo) if isinstance(began, float) else run.start_time
    reason = run.attributes.get("SagaReason")
    return {
        "id": run.id,
        "saga": run.workflow_type,
        "digest": None,
        "generation": None,
        "state": state_of(run),
        "phase": None,
        "reason": {"kind": reason, "step": None, "type": None, "message": "", "details": {}} if reason else None,
        "input": None,
        "output": None,
        "labels": labels_of(run),
        "started_at": iso(started),
        "committed_at": None,
        "ended_at": iso(run.close_time),
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


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def run_link(web_ui: str | None, namespace: str, saga_id: str, run_id: str) -> str | None:
    """The address of a run in the Temporal Web UI; None when no Web UI is known."""
    if not web_ui:
        return None
    from urllib.parse import quote

    return f"{web_ui.rstrip('/')}/namespaces/{quote(namespace)}/workflows/{quote(saga_id, safe='')}/{run_id}/history"
