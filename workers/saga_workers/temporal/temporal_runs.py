"""Runs as Temporal describes them, read from its raw responses.

The SDK's own classes raise for a paused run, and one such run would fail a whole list; so this works below them. A
paused run counts as running here, with ``paused`` set.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
)
from temporalio.client import Client as Temporal
from temporalio.converter import DataConverter, decode_search_attributes
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.temporal.known_silence import is_known_silent
from saga_workers.temporal.payload_codec import EncryptingCodec, decrypted, missing_key_id
from saga_workers.temporal.search_attributes import SEARCH_ATTRIBUTES
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.visibility_filter import prefix_condition
from sagas.definition.saga_ids import workflow_id_problem
from sagas.errors import SagaError, UsageError
from sagas.text.shortening import shorten_middle
from sagas.workflow.json_payloads import UnreadableValue, read_payload

UNREADABLE = (RPCStatusCode.INTERNAL, RPCStatusCode.DATA_LOSS, RPCStatusCode.RESOURCE_EXHAUSTED)
"""How a call ends whose answer cannot be decoded or is too large, such as a failure that is nested very deeply."""

ENDED_FROM_OUTSIDE = "ExecutionStatus IN ('Terminated', 'TimedOut')"
"""The list filter for the runs of which :attr:`RunInfo.ended_from_outside` is true."""

_SHOWN = 300
"""Characters of a filter, and of what Temporal says about it, in a message."""

_PAUSED_STATUS = 8
_PAGE_SIZE = 200
_SMALL_PAGE_SIZE = 50
"""Each run has its memo, of up to 2 MB, in an answer of which gRPC takes 128 MiB."""

_PAGE_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of one workflow. ``attributes``: single values, except for keyword lists."""

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

    @property
    def begins_at(self) -> datetime:
        """The time of its first workflow task, before which no worker knows it; later than its start after a delay."""
        if not self.raw.HasField("execution_time"):
            return self.start_time
        return min(_to_datetime(self.raw.execution_time), self.close_time or datetime.max.replace(tzinfo=UTC))

    @property
    def ended_from_outside(self) -> bool:
        """True if it was closed before the saga could end."""
        return self.status in (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)

    @property
    def ended_by_itself(self) -> bool:
        """True if its own last command closed it: only then can it have left an outcome."""
        status = WorkflowExecutionStatus
        return self.status in (status.COMPLETED, status.FAILED, status.CANCELED)

    async def memo(self) -> dict[str, Any]:
        """The decoded memo, without fields that are not JSON: any client may start a run with any memo."""
        values: dict[str, Any] = {}
        for name in self.raw.memo.fields:
            with contextlib.suppress(UnreadableValue):
                values[name] = read_payload(await self.memo_payload(name))
        return values

    async def memo_payload(self, name: str) -> Payload:
        """A field of the memo, decrypted; as Temporal has it if the project does not have its key."""
        return await decrypted(self.raw.memo.fields[name], self.converter.payload_codec)

    async def missing_memo_key(self, name: str) -> str | None:
        """The id of the key with which a field of the memo is encrypted, as it says, and which is not here."""
        payload = await self.memo_payload(name)
        codec = self.converter.payload_codec
        if codec is not None and not isinstance(codec, EncryptingCodec):
            return None
        return missing_key_id(payload, codec)


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run with its pending work; ``raw`` has the pending activities and the pending workflow task.

    ``never_accepted``: it has the id of a saga that it never was, and no other run of the id was it, see
    :func:`saga_workers.temporal.saga_runs.describe_saga_run`.
    """

    run: RunInfo
    raw: DescribeWorkflowExecutionResponse
    never_accepted: bool = False

    def as_never_accepted(self) -> RunDescription:
        return replace(self, never_accepted=True)


async def describe_run(temporal: Temporal, id: str, run_id: str = "") -> RunDescription | None:
    """The newest run of an id, or the given one; None if Temporal knows none."""
    if workflow_id_problem(id) is not None:
        return None
    request = DescribeWorkflowExecutionRequest(
        namespace=temporal.namespace, execution=Execution(workflow_id=id, run_id=run_id)
    )
    try:
        answer = await temporal.workflow_service.describe_workflow_execution(request, retry=True)
    except RPCError as error:
        if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            return None
        raise
    return RunDescription(_run_info(temporal, answer.workflow_execution_info), answer)


async def list_runs(temporal: Temporal, query: str) -> AsyncIterator[RunInfo]:
    """The runs that match Temporal's list filter, newest first. Raises UsageError if the filter is invalid."""
    token, size = b"", _PAGE_SIZE
    while True:
        request = ListWorkflowExecutionsRequest(
            namespace=temporal.namespace, query=query, page_size=size, next_page_token=token
        )
        service = temporal.workflow_service
        try:
            answer = await service.list_workflow_executions(request, retry=size < _PAGE_SIZE, timeout=_PAGE_TIMEOUT)
        except RPCError as error:
            if size == _PAGE_SIZE and error.status is not RPCStatusCode.INVALID_ARGUMENT:
                size = _SMALL_PAGE_SIZE  # it may have been too large, of which any client can take care
                continue
            raise _query_error(error, query) from error
        for info in answer.executions:
            yield _run_info(temporal, info)
        token = answer.next_page_token
        if not token:
            return


async def list_runs_below(temporal: Temporal, start: str) -> AsyncIterator[RunInfo]:
    """The runs whose ids begin with ``start``, newest first; none if it has no literal to ask Temporal for."""
    condition = prefix_condition("WorkflowId", start)
    if condition is not None:
        async for run in list_runs(temporal, condition):
            if run.id.startswith(start):
                yield run


async def namespace_retention(temporal: Temporal) -> float:
    """Seconds for which Temporal keeps a closed run."""
    request = DescribeNamespaceRequest(namespace=temporal.namespace)
    answer = await temporal.workflow_service.describe_namespace(request, retry=True)
    return float(answer.config.workflow_execution_retention_ttl.ToSeconds())


_ATTRIBUTE = re.compile(r"search attribute:? ['\"`]?(\w+)")
"""The attribute that Temporal does not know, in its message; one of a filter of the user may have any name."""


def _query_error(error: RPCError, query: str) -> Exception:
    if error.status is not RPCStatusCode.INVALID_ARGUMENT:
        return error
    if not SEARCH_ATTRIBUTES.keys().isdisjoint(_ATTRIBUTE.findall(error.message)):
        return UsageError("the namespace lacks the search attributes of sagas", help="saga setup    creates them")
    return UsageError(
        f"Temporal rejects the filter {shorten_middle(query, _SHOWN)!r}: {shorten_middle(error.message, _SHOWN)}",
        help="""for example --where "WorkflowType = 'checkout' AND SagaState = 'PARKED'" """.strip(),
    )


def _run_info(temporal: Temporal, info: WorkflowExecutionInfo) -> RunInfo:
    paused = int(info.status) == _PAUSED_STATUS
    attributes: dict[str, Any] = {}
    for name, values in decode_search_attributes(info.search_attributes).items():
        attributes[name] = values[0] if len(values) == 1 and name != "SagaLabels" else list(values)
    return RunInfo(
        id=info.execution.workflow_id,
        run_id=info.execution.run_id,
        workflow_type=info.type.name,
        status=WorkflowExecutionStatus.RUNNING if paused else WorkflowExecutionStatus(info.status),
        paused=paused,
        start_time=_to_datetime(info.start_time),
        close_time=_to_datetime(info.close_time) if info.HasField("close_time") else None,
        task_queue=info.task_queue,
        parent_id=info.parent_execution.workflow_id or None,
        attributes=attributes,
        raw=info,
        converter=temporal.data_converter,
    )


def _to_datetime(timestamp: Any) -> datetime:
    return timestamp.ToDatetime().replace(tzinfo=UTC)


POLLER_TIMEOUT = 90.0
"""Seconds. The server lists pollers for minutes after they have gone; a poll itself lasts up to 60 s."""

_TOLERANCE = 5.0
"""Seconds by which clocks may differ without a comparison."""


async def count_pollers(client: Client, queue: str, *, workflows: bool = True) -> int:
    """The number of workers that poll ``queue`` for workflow tasks (or for activities); 0 if none of them answers, as
    far as :mod:`saga_workers.temporal.known_silence` knows.
    """
    if is_known_silent():
        return 0
    polls, server_time = await _polls(client, queue, workflows=workflows), ServerTime(client)
    return sum([await is_recent_poll(server_time, polled_at) for polled_at in polls])


async def is_recent_poll(server_time: ServerTime, polled_at: float) -> bool:
    """Return whether a worker that polled at this time of the server polls still.

    The clocks are compared only if that of this machine says no, or that the poll is still to come.
    """
    age = time.time() - polled_at
    if polled_at and not -_TOLERANCE <= age < POLLER_TIMEOUT:
        age = await server_time.likely() - polled_at
    return age < POLLER_TIMEOUT


async def last_poll(client: Client, queue: str, *, workflows: bool = True) -> float:
    """The time at which a worker last polled ``queue``, in seconds since the epoch; 0.0 if the server lists none."""
    return max(await _polls(client, queue, workflows=workflows), default=0.0)


async def _polls(client: Client, queue: str, *, workflows: bool) -> list[float]:
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW if workflows else TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    described = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind),
        retry=True,
    )
    return [poller.last_access_time.ToMicroseconds() / 1e6 for poller in described.pollers]


def no_poller_message(queue: str) -> str:
    """The message for a queue without pollers."""
    return f"no worker polls the task queue {queue}"


def nobody_answers(queue: str) -> str:
    """The message for a queue with recent pollers that do not answer."""
    return f"no worker answers on the task queue {queue}"


def absence_message(queue: str) -> str:
    """The message for a queue of which :func:`count_pollers` counts no worker."""
    return nobody_answers(queue) if is_known_silent() else no_poller_message(queue)


START_WORKER_HELP = "saga worker    (or saga dev up)"


MAY_STILL_HAPPEN = "a worker that returns soon may still process it"
"""The fate of an update: Temporal keeps one that no worker has accepted as long as it has the run in memory."""


class NoAnswer(SagaError):
    """No worker has answered a request to a running saga, or to its bulk workflow; or Temporal's list of runs lags."""


# The definition of a run: the one it was started with, whatever the project's files contain now.
_QUERY_TIMEOUT = timedelta(seconds=5)
