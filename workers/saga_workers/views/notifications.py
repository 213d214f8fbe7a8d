"""The delivery states of notifications, read from the memos of the runs that deliver them: no worker is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus

from saga_workers.temporal.temporal_client import start_headers
from saga_workers.temporal.temporal_runs import RunInfo, describe_run, list_runs
from sagas.errors import RefusedError, UsageError, did_you_mean
from sagas.protocol.payloads import (
    NOTIFICATION_MEMO,
    NOTIFICATION_WORKFLOW,
    OWNER_HEADER,
    RETRY_NOTIFICATION_SIGNAL,
)
from sagas.protocol.saga_view import DeliveryState, ErrorView, NotificationView, SagaView
from sagas.text.shell import saga_command
from sagas.workflow.limits import run_summary

_CONCURRENCY = 16
_CLOSED_STATES: Mapping[WorkflowExecutionStatus | None, DeliveryState] = {
    WorkflowExecutionStatus.COMPLETED: "DELIVERED",
    WorkflowExecutionStatus.FAILED: "EXHAUSTED",
}


async def with_notifications(temporal: Temporal, view: SagaView) -> SagaView:
    """The view with the state of each notification. ``state`` is None if Temporal has deleted its run."""
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def ask(row: NotificationView) -> NotificationView:
        async with gate:
            described = await describe_run(temporal, row.run)
        return row if described is None else await _with_delivery_state(row, described.run)

    return replace(view, notifications=tuple(await asyncio.gather(*(ask(row) for row in view.notifications))))


async def _with_delivery_state(row: NotificationView, run: RunInfo) -> NotificationView:
    """PENDING, DELIVERED, EXHAUSTED, or STOPPED if it was ended in Temporal."""
    memo = await _delivery_status(run)
    attempts, error = memo.get("attempts"), memo.get("error")
    next_attempt_at, ended_at = memo.get("next_attempt_at"), memo.get("ended_at")
    return replace(
        row,
        state="PENDING" if run.running else _CLOSED_STATES.get(run.status, "STOPPED"),
        attempts=attempts if isinstance(attempts, int) else None,
        error=ErrorView(type=str(error.get("type")), message=str(error.get("message")))
        if isinstance(error, Mapping)
        else None,
        next_attempt_at=next_attempt_at if isinstance(next_attempt_at, str) else None,
        ended_at=ended_at if isinstance(ended_at, str) else None,
    )


async def _delivery_status(run: RunInfo) -> Mapping[str, Any]:
    """The status in the memo of a delivering run. Any client may have started it, with any values in the fields."""
    memo = (await run.memo()).get(NOTIFICATION_MEMO)
    return memo if isinstance(memo, Mapping) else {}


async def list_exhausted(temporal: Temporal, task_queue: str | None) -> AsyncIterator[str]:
    """The ids, each once, of sagas with a notification that was given up and has not been sent again since."""
    query = f"WorkflowType = '{NOTIFICATION_WORKFLOW}' AND ExecutionStatus = 'Failed'"
    if task_queue is not None:
        query += f" AND TaskQueue = '{task_queue}'"
    seen: set[str] = set()
    async for run in list_runs(temporal, query):
        newest = await describe_run(temporal, run.id)
        if newest is None or newest.run.run_id != run.run_id:
            continue
        saga_id = (await _delivery_status(run)).get("saga_id")
        if isinstance(saga_id, str) and saga_id not in seen:
            seen.add(saga_id)
            yield saga_id


def exhausted_reasons(view: SagaView) -> list[str]:
    """One message for each notification of this view that was given up."""
    return [
        f"{row.id} is EXHAUSTED after {_attempts_text(row.attempts)}: {row.error and row.error.message}; "
        f"{saga_command('notify', view.id, row.id, again=True)}    sends it again"
        for row in view.notifications
        if row.state == "EXHAUSTED"
    ]


def _attempts_text(attempts: int | None) -> str:
    return f"{attempts} attempt{'' if attempts == 1 else 's'}"


def select_notifications(view: SagaView, name: str | None) -> list[NotificationView]:
    """The notification of this name, or all of them. Raises UsageError if there is none of this name."""
    wanted = [row for row in view.notifications if name in (None, row.id)]
    if name is not None and not wanted:
        rows = {row.id: row for row in view.notifications}
        raise UsageError(
            f"{view.id} has no notification {name}{did_you_mean(name, rows)}",
            help=f"{saga_command('notify', view.id)}    lists them",
        )
    return wanted


async def resend(temporal: Temporal, view: SagaView, name: str | None) -> list[dict[str, Any]]:
    """Send the notification of this name, or all that were given up; a pending one is attempted again at once.

    The event id stays the same, so a receiver that already got it recognizes the duplicate. Returns the rows as JSON,
    each with ``done``: ``sent again``, ``tried now``, or ``not sent`` with the ``failure`` if it is one of several.
    Raises UsageError if there is no such notification, RefusedError if Temporal has deleted it or there is nothing to
    send.
    """
    wanted = select_notifications(view, name)
    if name is None:
        wanted = [row for row in wanted if row.state not in ("DELIVERED", None)]
        if not wanted:
            raise RefusedError(f"no notification of {view.id} is pending or exhausted")
    rows: list[dict[str, Any]] = []
    for row in wanted:
        try:
            rows.append({**row.to_json(), "done": await _resend_one(temporal, row)})
        except RefusedError as error:
            if len(wanted) == 1:
                raise
            rows.append({**row.to_json(), "done": "not sent", "failure": error.message})
    return rows


async def _resend_one(temporal: Temporal, row: NotificationView) -> str:
    described = await describe_run(temporal, row.run)
    if described is None:
        raise RefusedError(f"Temporal has deleted the run of the notification {row.id}")
    handle = temporal.get_workflow_handle(row.run, run_id=described.run.run_id)
    if described.run.running:
        await handle.signal(RETRY_NOTIFICATION_SIGNAL)
        return "tried now"
    order, saga_id = await _read_delivery(temporal, row.run, described.run.run_id)
    with start_headers({OWNER_HEADER: saga_id}):
        await temporal.start_workflow(
            NOTIFICATION_WORKFLOW,
            order,
            id=row.run,
            task_queue=described.run.task_queue,
            memo={NOTIFICATION_MEMO: {"state": "PENDING", "attempts": 0, "saga_id": saga_id}},
            static_summary=run_summary(f"✉ {row.uses}, sent again"),
        )
    return "sent again"


async def _read_delivery(temporal: Temporal, run: str, run_id: str) -> tuple[dict[str, Any], str]:
    """The input of a delivery run and the id of its saga, from the first event of its history."""
    async for event in temporal.get_workflow_handle(run, run_id=run_id).fetch_history_events():
        [order] = await temporal.data_converter.decode(event.workflow_execution_started_event_attributes.input.payloads)
        return order, order["saga_id"]
    raise RefusedError(f"the history of {run} is deleted, so its content is unknown")
