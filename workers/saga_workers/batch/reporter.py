"""Reports to the record of a batch while its rows are started, and does what operators have asked of it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.concurrency import end_tasks
from saga_activities.ledger.records import BATCH_LABEL
from saga_workers.start.start_gate import StartGate
from saga_workers.start.tally import Tally
from saga_workers.temporal.temporal_runs import describe_run
from sagas.definition.saga_ids import UNPRINTABLE, label_problem, workflow_id_problem
from sagas.errors import RefusedError, UsageError
from sagas.protocol.batch_record import (
    CLOSED_SIGNAL,
    MAX_REFUSAL,
    MAX_REFUSALS,
    OPENED_SIGNAL,
    PROGRESS_SIGNAL,
    RECORD_QUERY,
    BatchRecord,
)
from sagas.protocol.payloads import BATCH_PREFIX, BATCH_WORKFLOW
from sagas.text.printable import printable_line
from sagas.text.shortening import counted
from sagas.workflow.summaries import run_summary

REPORT_INTERVAL = 1.0
"""Seconds between two reports, and between two looks at the record."""

_UNCHANGED_INTERVAL = 60.0
"""Seconds until counts are reported that have not changed, which shows that the command is still there."""

_QUERY_TIMEOUT = timedelta(seconds=2)


def check_batch_id(id: str) -> str:
    """The id. Raises UsageError if no batch may have it."""
    problem = label_problem([f"{BATCH_LABEL}={id}"]) or workflow_id_problem(BATCH_PREFIX + id)
    if problem is None and (not id.strip() or UNPRINTABLE.search(id)):
        problem = f"the batch id {printable_line(id[:80])} must not be empty or contain control characters"
    if problem is not None:
        raise UsageError(problem, help="choose another id with --batch")
    return id


class BatchReporter:
    """The connection of one command to the record of its batch. ``attributes``: those that the namespace has."""

    def __init__(
        self,
        temporal: Temporal,
        batch: str,
        *,
        saga: str,
        bulk: bool,
        task_queue: str,
        attributes: tuple[str, ...],
        tally: Tally,
        gate: StartGate,
    ) -> None:
        self._temporal = temporal
        self._batch = check_batch_id(batch)
        self._task_queue = task_queue
        self._attributes = attributes
        self._tally = tally
        self._gate = gate
        self._began = time.monotonic()
        self._client = str(uuid.uuid4())
        self._saga = saga
        self._bulk = bulk
        self._reported: BatchRecord | None = None
        self._reported_at = 0.0

    @asynccontextmanager
    async def reporting(self, warn: Callable[[str], None]) -> AsyncIterator[None]:
        """Open the record, report to it within the block, and close it afterwards.

        A command that starts the same batch already is taken over, and stops. Raises RefusedError if that batch is one
        of another saga. ``warn`` is called if the record cannot be closed.
        """
        await self._refuse_other_saga()
        await self._open()
        await self._obey()
        task = asyncio.create_task(self._report_on())
        try:
            yield
        finally:
            await end_tasks([task])
            try:
                await self._send(CLOSED_SIGNAL)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:  # somebody has terminated the record
                    warn(f"the record of the batch could not be closed: {error}")

    def _record(self) -> BatchRecord:
        tally = self._tally
        return BatchRecord(
            id=self._batch,
            saga=self._saga,
            bulk=self._bulk,
            client=self._client,
            total=tally.total,
            started=tally.started,
            existing=tally.existing,
            refused=tally.refused,
            refusals=tuple(text[:MAX_REFUSAL] for text in tally.troubles[:MAX_REFUSALS]),
            ended=dict(tally.ended),
            seconds=round(time.monotonic() - self._began, 3),
            stopped=tally.stopped,
        )

    async def _refuse_other_saga(self) -> None:
        described = await describe_run(self._temporal, BATCH_PREFIX + self._batch)
        if described is None or not described.run.running:
            return
        record = await query_record(self._temporal, self._batch)
        if record is not None and record.saga not in ("", self._saga):
            raise RefusedError(
                f"a command is starting the batch {self._batch} with the saga {record.saga}",
                help="choose another id with --batch",
            )

    async def _open(self) -> None:
        attributes = None
        if "SagaLabels" in self._attributes:
            key = SearchAttributeKey.for_keyword_list("SagaLabels")
            attributes = TypedSearchAttributes([SearchAttributePair(key, [f"{BATCH_LABEL}={self._batch}"])])
        record = self._record()
        await self._temporal.start_workflow(
            BATCH_WORKFLOW,
            record.to_json(),
            id=BATCH_PREFIX + self._batch,
            task_queue=self._task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=OPENED_SIGNAL,
            start_signal_args=[record.to_json()],
            static_summary=run_summary(f"batch {self._batch} of {self._saga}: {counted(record.total, 'row')}"),
            search_attributes=attributes,
        )
        self._reported, self._reported_at = record, time.monotonic()

    async def _report_on(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            try:
                if self._has_news():
                    await self._send(PROGRESS_SIGNAL)
                await self._obey()
            except RPCError as error:
                # Without the server nothing is started either, and the starting reports that.
                if error.status is RPCStatusCode.NOT_FOUND:
                    await self._reopen()

    async def _reopen(self) -> None:
        """The record has closed: the machine of this command may have slept for longer than a record waits."""
        try:
            await self._open()
        except RPCError:
            return  # the next report tries again

    def _has_news(self) -> bool:
        if time.monotonic() - self._reported_at >= _UNCHANGED_INTERVAL or self._reported is None:
            return True
        old, new = self._reported, self._record()
        return (old.processed, old.ended, old.refused, old.stopped) != (
            new.processed,
            new.ended,
            new.refused,
            new.stopped,
        )

    async def _send(self, signal: str) -> None:
        record = self._record()
        handle = self._temporal.get_workflow_handle(BATCH_PREFIX + self._batch)
        await handle.signal(signal, record.to_json(), rpc_timeout=timedelta(seconds=5))
        self._reported, self._reported_at = record, time.monotonic()

    async def _obey(self) -> None:
        record = await query_record(self._temporal, self._batch)
        if record is None:
            return  # no worker answers; then nothing runs either
        if record.client != self._client:
            self._gate.stop("taken over")
        elif record.state == "CANCELLED":
            self._gate.stop("cancelled")
        else:
            self._gate.pause(record.state == "PAUSED")


async def query_record(temporal: Temporal, batch: str) -> BatchRecord | None:
    """The record of a batch, from its newest run; None if no worker answers. Raises RPCError if there is none."""
    handle = temporal.get_workflow_handle(BATCH_PREFIX + batch)
    try:
        return BatchRecord.from_json(batch, await handle.query(RECORD_QUERY, rpc_timeout=_QUERY_TIMEOUT))
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None
    except RPCError as error:
        if error.status in (
            RPCStatusCode.DEADLINE_EXCEEDED,
            RPCStatusCode.CANCELLED,
            RPCStatusCode.FAILED_PRECONDITION,
        ):
            return None
        raise


async def read_record(
    temporal: Temporal, batch: str, run_id: str = "", *, task_queue: str | None = None
) -> BatchRecord | None:
    """The record of a batch, also of one that is closed; None if Temporal has none. ``task_queue``: only one of it.

    If no worker answers for an open one, only its id and state are known.
    """
    described = await describe_run(temporal, BATCH_PREFIX + batch, run_id)
    if described is None or described.run.workflow_type != BATCH_WORKFLOW:
        return None
    if task_queue not in (None, described.run.task_queue):
        return None
    if described.run.running:
        return await query_record(temporal, batch) or BatchRecord(batch)
    if described.run.status is WorkflowExecutionStatus.COMPLETED:
        handle = temporal.get_workflow_handle(BATCH_PREFIX + batch, run_id=described.run.run_id)
        return BatchRecord.from_json(batch, await handle.result())
    return BatchRecord(batch, state="INTERRUPTED")
