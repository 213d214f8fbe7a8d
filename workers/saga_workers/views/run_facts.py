"""Facts about a run in the form of the views: times, the link to the Web UI, why it was closed."""

from __future__ import annotations

from datetime import datetime

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowHistoryEventFilterType

from saga_workers.temporal.run_history import events_of_run
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.operator_names import recorded_name
from sagas.protocol.payloads import REFUSED_TYPE
from sagas.protocol.saga_view import ReasonView


async def close_reason(temporal: Temporal, run: RunInfo) -> ReasonView:
    """The ``reason`` given by a run's close event."""
    only_end = WorkflowHistoryEventFilterType.CLOSE_EVENT
    kind, type_, message = "terminated", None, "closed by Temporal"
    async for event in events_of_run(temporal, run.id, run.run_id, event_filter_type=only_end):
        if event.HasField("workflow_execution_terminated_event_attributes"):
            end = event.workflow_execution_terminated_event_attributes
            by = recorded_name(end.identity) if end.identity else "an unknown client"
            message = f"terminated by {by}" + (f": {end.reason}" if end.reason else "")
        elif event.HasField("workflow_execution_timed_out_event_attributes"):
            message = "the run timeout has passed; sagas must be started without one"
        elif event.HasField("workflow_execution_failed_event_attributes"):
            failure = event.workflow_execution_failed_event_attributes.failure
            kind, message = "failed", failure.message
            type_ = failure.application_failure_info.type or None
            if type_ == REFUSED_TYPE:
                kind = "rejected"
    return ReasonView(kind=kind, type=type_, message=message, quotes=kind == "rejected" or None)


def iso_time(timestamp: datetime | None) -> str | None:
    return None if timestamp is None else timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def web_ui_link(web_ui: str | None, namespace: str, saga_id: str, run_id: str) -> str | None:
    """The address of a run in the Temporal Web UI; None if no Web UI is configured.

    Without a ``run_id``, which is then not known yet, that of the list of its runs.
    """
    if not web_ui:
        return None
    from urllib.parse import quote

    workflows = f"{web_ui.rstrip('/')}/namespaces/{quote(namespace)}/workflows"
    if not run_id:
        text = saga_id.replace("\\", "\\\\").replace('"', '\\"')
        query = quote(f'WorkflowId="{text}"', safe="")
        return f"{workflows}?query={query}"
    return f"{workflows}/{quote(saga_id, safe='')}/{run_id}/history"
