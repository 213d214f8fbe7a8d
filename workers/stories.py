"""The story of a saga as `saga show` prints it, from wherever it can still be read.

A running saga answers a query; a closed one left its story in its memo, so no worker is needed. Temporal's own
close status tells what the engine could not say: a terminated run has a story without an end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from sagas.errors import UsageError
from sagas.wire import UNDO_SUFFIX

TERMINATED_STATES = ("TERMINATED",)
QUERY_TIMEOUT = timedelta(seconds=5)


async def read_story(temporal: Temporal, saga_id: str, *, web_ui: str | None = None) -> dict[str, Any]:
    """The whole story of one saga, with that of its undo. Raises UsageError when Temporal does not know the id."""
    story = await _one(temporal, saga_id, web_ui)
    if story is None:
        raise UsageError(
            f"there is no saga with the id {saga_id} in the namespace {temporal.namespace}",
            help="`saga list` shows the ids",
        )
    if not saga_id.endswith(UNDO_SUFFIX) and story["state"] in ("COMPLETED", "COMPENSATED", "RESIDUE"):
        undo = await _one(temporal, saga_id + UNDO_SUFFIX, web_ui)
        if undo is not None and undo["state"] != "TERMINATED" and undo.get("steps"):
            return {**undo, "id": saga_id, "web_ui": story["web_ui"], "started_at": story["started_at"]}
    return story


async def _one(temporal: Temporal, saga_id: str, web_ui: str | None) -> dict[str, Any] | None:
    handle = temporal.get_workflow_handle(saga_id)
    try:
        described = await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    story = await closed_story(described)
    if story is None:
        story = await _asked(temporal, described)
    return {**story, "web_ui": run_link(web_ui, temporal.namespace, saga_id, described.run_id)}


async def _asked(temporal: Temporal, described: WorkflowExecutionDescription) -> dict[str, Any]:
    """Ask the run itself; without a worker, tell what Temporal knows."""
    handle = temporal.get_workflow_handle(described.id, run_id=described.run_id)
    try:
        story = await handle.query("saga", result_type=dict, rpc_timeout=QUERY_TIMEOUT)
    except RPCError:
        story = bare_story(described)
    if described.status is WorkflowExecutionStatus.TERMINATED:
        ended = described.close_time.isoformat() if described.close_time else None
        reason = {"kind": "terminated", "step": None, "type": None, "message": "terminated", "details": {}}
        story = {**story, "state": "TERMINATED", "ended_at": ended, "reason": story.get("reason") or reason}
    return story


async def closed_story(described: WorkflowExecution) -> dict[str, Any] | None:
    """The story a closed run left in its memo; None while it runs, or when it left none."""
    if described.status is WorkflowExecutionStatus.RUNNING:
        return None
    memo = await described.memo()
    story = memo.get("saga")
    return dict(story) if isinstance(story, Mapping) else None


def bare_story(described: WorkflowExecution) -> dict[str, Any]:
    """What Temporal alone knows: every field of the document is there, most of them empty."""
    states = {
        WorkflowExecutionStatus.RUNNING: "RUNNING",
        WorkflowExecutionStatus.CONTINUED_AS_NEW: "RUNNING",
        WorkflowExecutionStatus.COMPLETED: "COMPLETED",
        WorkflowExecutionStatus.CANCELED: "COMPENSATED",
        WorkflowExecutionStatus.FAILED: "FAILED",
        WorkflowExecutionStatus.TERMINATED: "TERMINATED",
        WorkflowExecutionStatus.TIMED_OUT: "TERMINATED",
    }
    attributes = {key.name: value for key, value in ((p.key, p.value) for p in described.typed_search_attributes)}
    state = attributes.get("SagaState") if described.status is WorkflowExecutionStatus.RUNNING else None
    return {
        "id": described.id,
        "saga": described.workflow_type,
        "digest": None,
        "generation": None,
        "state": state or states.get(described.status or WorkflowExecutionStatus.RUNNING, "RUNNING"),
        "phase": None,
        "reason": None,
        "input": None,
        "output": None,
        "labels": dict(one.split("=", 1) for one in attributes.get("SagaLabels") or () if "=" in one),
        "started_at": described.start_time.isoformat(),
        "committed_at": None,
        "ended_at": described.close_time.isoformat() if described.close_time else None,
        "deadline_at": None,
        "can_undo": False,
        "undo_until": None,
        "cancel_requested": False,
        "overdue": False,
        "steps_omitted": None,
        "parent": described.parent_id,
        "children": [],
        "steps": [],
        "parked": [],
        "not_done": [],
        "residue": [],
        "operator": [],
    }


async def list_stories(
    temporal: Temporal, query: str, *, limit: int, web_ui: str | None = None
) -> AsyncIterator[dict[str, Any]]:
    """One document without steps per saga, newest first. ``query`` is Temporal's own list filter."""
    found = 0
    async for execution in temporal.list_workflows(query):
        if execution.id.endswith(UNDO_SUFFIX):
            continue
        story = await closed_story(execution) or bare_story(execution)
        story.pop("steps", None)
        yield {**story, "web_ui": run_link(web_ui, temporal.namespace, execution.id, execution.run_id)}
        found += 1
        if found >= limit:
            return


def run_link(web_ui: str | None, namespace: str, saga_id: str, run_id: str) -> str | None:
    """The address of a run in the Temporal Web UI; None when no Web UI is known."""
    if not web_ui:
        return None
    from urllib.parse import quote

    return f"{web_ui.rstrip('/')}/namespaces/{quote(namespace)}/workflows/{quote(saga_id, safe='')}/{run_id}/history"
