"""What Temporal knows of a run, read from its raw answers.

The client's own classes raise for a run that is paused, one of which would take every list down; so these are read
below them. A paused run counts as running here, and says that it is paused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus
from temporalio.converter import DataConverter, decode_search_attributes
from temporalio.service import RPCError, RPCStatusCode

from sagas.errors import UsageError
from sagas.wire import UNDO_SUFFIX

_PAUSED = 8
_PAGE = 200


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of one workflow. ``attributes`` holds single values, except for lists of keywords."""

    id: str
    run_id: str
    workflow_type: str
    status: WorkflowExecutionStatus
    paused: bool
    start_time: datetime
    close_time: datetime | None
    task_queue: str
    parent_id: str | None
    attributes: Mapping[str, Any]
    raw: WorkflowExecutionInfo
    converter: DataConverter

    @property
    def running(self) -> bool:
        return self.status is WorkflowExecutionStatus.RUNNING

    async def memo(self) -> dict[str, Any]:
        """The memo, decoded."""
        names = list(self.raw.memo.fields)
        return {name: (await self.converter.decode([self.raw.memo.fields[name]]))[0] for name in names}


@dataclass(frozen=True, slots=True)
class Description:
    """A run with what it waits for; ``raw`` has its pending activities and its pending workflow task."""

    run: RunInfo
    raw: DescribeWorkflowExecutionResponse


async def describe(temporal: Temporal, id: str, run_id: str = "") -> Description | None:
    """The newest run under an id (or the one given); None when Temporal knows none."""
    request = DescribeWorkflowExecutionRequest(
        namespace=temporal.namespace, execution=Execution(workflow_id=id, run_id=run_id)
    )
    try:
        answer = await temporal.workflow_service.describe_workflow_execution(request, retry=True)
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            return None
        raise
    return Description(_info(temporal, answer.workflow_execution_info), answer)


async def list_runs(temporal: Temporal, query: str) -> AsyncIterator[RunInfo]:
    """The runs that fit Temporal's list filter, newest first. Raises UsageError: the filter cannot be read."""
    token = b""
    while True:
        request = ListWorkflowExecutionsRequest(
            namespace=temporal.namespace, query=query, page_size=_PAGE, next_page_token=token
        )
        try:
            answer = await temporal.workflow_service.list_workflow_executions(request, retry=True)
        except RPCError as error:
            raise _bad_query(error, query) from error
        for info in answer.executions:
            yield _info(temporal, info)
        token = answer.next_page_token
        if not token:
            return


def _bad_query(error: RPCError, query: str) -> Exception:
    if error.status is not RPCStatusCode.INVALID_ARGUMENT:
        return error
    if "search attribute" in error.message and "Saga" in error.message:
        return UsageError("this namespace has not got the search attributes of sagas", help="saga setup    adds them")
    return UsageError(
        f"Temporal cannot read the filter {query!r}: {error.message}",
        help="""for example --where "WorkflowType = 'checkout' AND SagaState = 'PARKED'" """.strip(),
    )


def _info(temporal: Temporal, info: WorkflowExecutionInfo) -> RunInfo:
    paused = int(info.status) == _PAUSED
    attributes: dict[str, Any] = {}
    for name, values in decode_search_attributes(info.search_attributes).items():
        attributes[name] = values[0] if len(values) == 1 and name != "SagaLabels" else list(values)
    return RunInfo(
        id=info.execution.workflow_id,
        run_id=info.execution.run_id,
        workflow_type=info.type.name,
        status=WorkflowExecutionStatus.RUNNING if paused else WorkflowExecutionStatus(info.status),
        paused=paused,
        start_time=_moment(info.start_time),
        close_time=_moment(info.close_time) if info.HasField("close_time") else None,
        task_queue=info.task_queue,
        parent_id=info.parent_execution.workflow_id or None,
        attributes=attributes,
        raw=info,
        converter=temporal.data_converter,
    )


def _moment(stamp: Any) -> datetime:
    return stamp.ToDatetime().replace(tzinfo=UTC)


def state_of(run: RunInfo) -> str:
    """The saga's state as far as Temporal alone can tell.

    A plain run never writes its state down: RUNNING and COMPLETED come from Temporal's own status. (A run past its
    commit point says COMMITTED here only when it had trouble there.)
    """
    written = run.attributes.get("SagaState")
    match run.status:
        case WorkflowExecutionStatus.RUNNING | WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return written or "RUNNING"
        case WorkflowExecutionStatus.COMPLETED:
            undo = run.id.endswith(UNDO_SUFFIX)
            return written if written == "RESIDUE" else "COMPENSATED" if undo else "COMPLETED"
        case WorkflowExecutionStatus.CANCELED:
            return "COMPENSATED"
        case WorkflowExecutionStatus.FAILED:
            return written if written in ("COMPENSATED", "RESIDUE") else "FAILED"
        case _:
            return "TERMINATED"
