"""Reads the histories of runs: how they started, their events, and how their last workflow task ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from temporalio.api.common.v1 import Payload
from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.temporal.foreign_payloads import single_payload
from saga_workers.temporal.payload_codec import decrypted
from saga_workers.temporal.temporal_runs import UNREADABLE, RunDescription, RunInfo, describe_run
from sagas.errors import InfrastructureError

_READ_TIMEOUT = timedelta(seconds=10)
_RECENT_EVENTS = 5

_Answer = TypeVar("_Answer")


class RunIds(Protocol):
    """The ids of one run of a workflow, such as a :class:`~saga_workers.temporal.temporal_runs.RunInfo` has them."""

    @property
    def id(self) -> str: ...

    @property
    def run_id(self) -> str: ...


async def start_of_run(temporal: Temporal, id: str, run_id: str) -> WorkflowExecutionStartedEventAttributes | None:
    """The start of a run, from the first event of its history; None if the history is deleted."""
    async for event in events_of_run(temporal, id, run_id, page_size=1):
        return event.workflow_execution_started_event_attributes
    return None


async def input_payload(temporal: Temporal, id: str, run_id: str) -> Payload:
    """The input of a run, decrypted but not decoded.

    Raises InfrastructureError if its history is deleted, UnreadableValue if it was not started with one value.
    """
    started = await start_of_run(temporal, id, run_id)
    if started is None:
        raise InfrastructureError(f"the history of {id} is deleted")
    return await decrypted(single_payload(started.input.payloads), temporal.data_converter.payload_codec)


async def events_of_run(temporal: Temporal, id: str, run_id: str, **options: Any) -> AsyncIterator[HistoryEvent]:
    """The events of a run, with ``options`` for the SDK's ``fetch_history_events``; none if Temporal has deleted it."""
    try:
        async for event in temporal.get_workflow_handle(id, run_id=run_id).fetch_history_events(**options):
            yield event
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


async def describe_bulk(temporal: Temporal, id: str) -> RunDescription | None:
    """The run of a bulk workflow that has its sagas; None if Temporal knows none.

    That is not always the newest: a reset makes a run of an earlier time, which is refused, and ends the one before.
    """
    described = await describe_run(temporal, id)
    if described is None or described.run.status is not WorkflowExecutionStatus.FAILED:
        return described
    started = await start_of_run(temporal, id, described.run.run_id)
    if started is None or started.original_execution_run_id == described.run.run_id:
        return described
    return await describe_run(temporal, id, started.original_execution_run_id) or described


async def readable_events(temporal: Temporal, run: RunIds) -> AsyncIterator[HistoryEvent]:
    """The events of a run, up to one that cannot be decoded, for which the SDK's own iterator would ask again and
    again; none if Temporal has deleted the run.
    """
    token = b""
    while True:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=temporal.namespace, execution=_execution(run), next_page_token=token
        )
        answer = await _readable(temporal.workflow_service.get_workflow_execution_history, request)
        for event in () if answer is None else answer.history.events:
            yield event
        if answer is None or not (token := answer.next_page_token):
            return


async def last_task_failure(temporal: Temporal, run: RunInfo) -> Failure | None:
    """Return the failure because of which the workflow task of a run is retried; None if it timed out.

    An empty one if its history cannot be read: the worker cannot read it either.
    """
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=temporal.namespace, execution=_execution(run), maximum_page_size=_RECENT_EVENTS
    )
    answer = await _readable(temporal.workflow_service.get_workflow_execution_history_reverse, request)
    if answer is None:
        return Failure()
    for event in answer.history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
            return None
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            return event.workflow_task_failed_event_attributes.failure
    return Failure()


def _execution(run: RunIds) -> Execution:
    return Execution(workflow_id=run.id, run_id=run.run_id)


async def _readable(call: Callable[..., Awaitable[_Answer]], request: Any) -> _Answer | None:
    """The answer to a request; None if it cannot be decoded or the run is deleted, for which no retry helps."""
    try:
        return await call(request, retry=False, timeout=_READ_TIMEOUT)
    except RPCError as error:
        if error.status in UNREADABLE or error.status is RPCStatusCode.NOT_FOUND:
            return None
    return await call(request, retry=True)
