"""The delivery states of notifications, read from the memos of the runs that deliver them: no worker is needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.temporal.foreign_payloads import UNREADABLE_VALUE, read_single_payload
from saga_workers.temporal.holding_runs import holder_in_words
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.temporal_client import start_headers
from saga_workers.temporal.temporal_runs import (
    RunDescription,
    RunInfo,
    count_pollers,
    describe_run,
    list_runs,
    list_runs_below,
)
from saga_workers.temporal.visibility_filter import keyword_condition
from sagas.builtins.signal_names import RETRY_NOTIFICATION_SIGNAL
from sagas.definition.times import format_timestamp
from sagas.errors import RefusedError, UsageError, did_you_mean
from sagas.protocol.operator_names import recorded_name
from sagas.protocol.payloads import (
    NOTIFICATION_MEMO,
    NOTIFICATION_PREFIX,
    NOTIFICATION_WORKFLOW,
    OWNER_HEADER,
    UNDO_SUFFIX,
    second_workflow_id,
)
from sagas.protocol.saga_view import DeliveryState, ErrorView, NotificationView, SagaView
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS, MAX_TYPE_CHARACTERS
from sagas.text.shell import saga_command
from sagas.text.shortening import shorten_middle
from sagas.workflow.summaries import run_summary

_CONCURRENCY = 16
_LONGEST_TIME = 40
_CLOSING_DELAY = timedelta(hours=1)
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
            if described is None:
                return row
            first = described.run
            if not _is_of(first, view.id) and (other := await _other_run(temporal, row, view.id)) is not None:
                return await _with_delivery_state(replace(row, run=other.id), other)
            # `saga notify --again` starts one without a parent.
            if _is_of(first, view.id) or (first.workflow_type == NOTIFICATION_WORKFLOW and first.parent_id is None):
                return await _with_delivery_state(row, first)
            return replace(row, error=ErrorView(type="IdTaken", message=_taken(first)))

    return replace(view, notifications=tuple(await asyncio.gather(*(ask(row) for row in view.notifications))))


def _is_of(run: RunInfo, saga_id: str) -> bool:
    """True for a run that the saga, or its undo, has started to deliver: Temporal itself writes the parent of a run."""
    return run.workflow_type == NOTIFICATION_WORKFLOW and run.parent_id in (saga_id, saga_id + UNDO_SUFFIX)


async def _other_run(temporal: Temporal, row: NotificationView, saga_id: str) -> RunInfo | None:
    """The run that the saga has started under the second id, because somebody else had the first one, or under one that
    nobody can guess, because both were taken.
    """
    described = await describe_run(temporal, second_workflow_id(row.run))
    if described is not None and _is_of(described.run, saga_id):
        return described.run
    if described is not None:
        async for run in list_runs_below(temporal, f"{row.run}."):
            if _is_of(run, saga_id):
                return run
    return None


def _taken(run: RunInfo) -> str:
    return f"{holder_in_words(run)} has its id, so nothing tells whether it was delivered"


async def _with_delivery_state(row: NotificationView, run: RunInfo) -> NotificationView:
    """PENDING, DELIVERED, EXHAUSTED, SKIPPED by an operator, or STOPPED if it was ended in Temporal."""
    memo = await _delivery_status(run)
    attempts, error = memo.get("attempts"), memo.get("error")
    next_attempt_at, ended_at = memo.get("next_attempt_at"), memo.get("ended_at")
    closed = memo.get("closed")
    skipped = run.status is WorkflowExecutionStatus.TERMINATED and memo.get("state") == "SKIPPED"
    return replace(
        row,
        state="PENDING" if run.running else "SKIPPED" if skipped else _CLOSED_STATES.get(run.status, "STOPPED"),
        closed=_short(closed, MAX_MESSAGE_CHARACTERS) if skipped else None,
        attempts=attempts if type(attempts) is int and attempts >= 0 else None,
        error=ErrorView(
            type=_short(error.get("type"), MAX_TYPE_CHARACTERS) or "Error",
            message=_short(error.get("message"), MAX_MESSAGE_CHARACTERS) or "",
        )
        if isinstance(error, Mapping)
        else None,
        next_attempt_at=_time(next_attempt_at),
        ended_at=_time(ended_at),
    )


def _short(value: Any, limit: int) -> str | None:
    return shorten_middle(value, limit) if isinstance(value, str) else None


def _time(value: Any) -> str | None:
    """The value, if it is a time as :func:`format_timestamp` writes it."""
    if not isinstance(value, str) or len(value) > _LONGEST_TIME:
        return None
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return None
    return value


async def _delivery_status(run: RunInfo) -> Mapping[str, Any]:
    """The status in the memo of a delivering run. Any client may have started it, with any values in the fields."""
    memo = (await run.memo()).get(NOTIFICATION_MEMO)
    return memo if isinstance(memo, Mapping) else {}


async def list_exhausted(temporal: Temporal, task_queue: str | None) -> AsyncIterator[str]:
    """The ids, each once, of sagas with a notification that was given up and has not been sent again since."""
    query = f"WorkflowType = '{NOTIFICATION_WORKFLOW}' AND ExecutionStatus = 'Failed'"
    if task_queue is not None:
        query += f" AND {keyword_condition('TaskQueue', task_queue)}"
    seen: set[str] = set()
    async for run in list_runs(temporal, query):
        newest = await describe_run(temporal, run.id)
        if task_queue not in (None, run.task_queue) or newest is None or newest.run.run_id != run.run_id:
            continue
        saga_id = (await _delivery_status(run)).get("saga_id")
        if isinstance(saga_id, str) and saga_id not in seen:
            seen.add(saga_id)
            yield saga_id


def exhausted_reasons(view: SagaView) -> list[str]:
    """One message for each notification of this view that was given up."""
    return [
        f"{row.id} is EXHAUSTED after {_attempts_text(row.attempts)}: {row.error and row.error.message}; "
        + " or ".join(f"{command}    {_EFFECTS[command.split()[1]]}" for command in row.commands(view.id))
        for row in view.notifications
        if row.state == "EXHAUSTED"
    ]


_EFFECTS = {"notify": "sends it again", "resolve": "closes it"}


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


async def resend(
    temporal: Temporal, view: SagaView, name: str | None, *, queue: str | None = None
) -> list[dict[str, Any]]:
    """Send the notification of this name, or all that were given up; a pending one is attempted again at once.

    ``queue``: the task queue of the project, which sends what is on one that no worker polls any more.
    The event id stays the same, so a receiver that already got it recognizes the duplicate. Returns the rows as JSON,
    each with ``done``: ``sent again``, ``tried now``, or ``not sent`` with the ``failure`` if it is one of several.
    Raises UsageError if there is no such notification, RefusedError if Temporal has deleted it or there is nothing to
    send.
    """
    wanted = select_notifications(view, name)
    if name is None:
        wanted = [row for row in wanted if row.state not in ("DELIVERED", "SKIPPED", None)]
        if not wanted:
            raise RefusedError(f"no notification of {view.id} is pending or exhausted")
    rows: list[dict[str, Any]] = []
    for row in wanted:
        try:
            rows.append({**row.to_json(), "done": await _resend_one(temporal, row, queue)})
        except RefusedError as error:
            if len(wanted) == 1:
                raise
            rows.append({**row.to_json(), "done": "not sent", "failure": error.message})
    return rows


def is_notification(decision: Mapping[str, Any]) -> bool:
    """Return whether a decision is about a notification: no step has such an id."""
    return str(decision.get("step")).startswith(NOTIFICATION_PREFIX)


def check_notification_decision(view: SagaView, decision: Mapping[str, Any]) -> NotificationView:
    """The notification that is decided about. Raises UsageError if there is none, RefusedError if it cannot be done."""
    [row] = select_notifications(view, str(decision["step"]))
    if decision["decision"] not in ("retry", "skip"):
        raise RefusedError(
            f"a notification can only be sent again (retry) or closed (skip), not {decision['decision']}"
        )
    if decision.get("with") is not None or decision.get("definition") is not None:
        raise RefusedError(f"{row.id} is sent again as it was, without --with and --definition")
    if row.state == "DELIVERED":
        raise RefusedError(f"{row.id} of {view.id} has been delivered, so there is nothing to decide")
    if decision["decision"] == "retry":
        _require_content(row)
    return row


async def decide_notification(
    temporal: Temporal, view: SagaView, decision: Mapping[str, Any], *, queue: str | None = None
) -> None:
    """Send a notification again, or close it undelivered. ``queue``: as of :func:`resend`. Raises like
    :func:`check_notification_decision`.
    """
    row = check_notification_decision(view, decision)
    if decision["decision"] == "retry":
        await _resend_one(temporal, row, queue)
    else:
        await _close(temporal, row, decision)


async def _close(temporal: Temporal, row: NotificationView, decision: Mapping[str, Any]) -> None:
    """Replace the run of a notification by one that is terminated before it begins: its memo has the decision.

    So it needs no worker. If this process dies in between, the notification is sent after the delay.
    """
    described = await _described(temporal, row)
    order, saga_id = await _read_delivery(temporal, row.run, described.run.run_id)
    closed = f"{recorded_name(decision.get('who') or temporal.identity)}: {decision['reason']}"
    memo = {
        "state": "SKIPPED",
        "saga_id": saga_id,
        "attempts": row.attempts,
        "error": None if row.error is None else row.error.to_json(),
        "ended_at": format_timestamp(time.time()),
        "closed": closed,
    }
    with start_headers({OWNER_HEADER: saga_id}):
        handle = await temporal.start_workflow(
            NOTIFICATION_WORKFLOW,
            order,
            id=row.run,
            task_queue=described.run.task_queue,
            memo={NOTIFICATION_MEMO: memo},
            static_summary=run_summary(f"✉ {row.uses}, closed undelivered"),
            start_delay=_CLOSING_DELAY,
            id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
        )
    await handle.terminate(closed)


async def _described(temporal: Temporal, row: NotificationView) -> RunDescription:
    described = await describe_run(temporal, row.run)
    if described is None and row.error is not None:
        raise RefusedError(f"the notification {row.id} cannot be sent again: {row.error.message}")
    if described is None:
        raise RefusedError(f"Temporal has deleted the run of the notification {row.id}")
    return described


def _require_content(row: NotificationView) -> None:
    """Raise RefusedError for a notification whose arguments could not be computed."""
    if not row.can_be_sent:
        raise RefusedError(
            f"{row.id} would fail the same way: {row.error and row.error.message}; close it with skip, and correct the "
            "definition for later sagas"
        )


async def _resend_one(temporal: Temporal, row: NotificationView, own_queue: str | None) -> str:
    _require_content(row)
    described = await _described(temporal, row)
    handle = temporal.get_workflow_handle(row.run, run_id=described.run.run_id)
    queue = described.run.task_queue
    if own_queue is not None and queue != own_queue and not await count_pollers(temporal, queue):
        queue = own_queue  # that of the run was renamed, or belongs to nobody any more
    if described.run.running and queue == described.run.task_queue:
        await handle.signal(RETRY_NOTIFICATION_SIGNAL)
        return "tried now"
    order, saga_id = await _read_delivery(temporal, row.run, described.run.run_id)
    with start_headers({OWNER_HEADER: saga_id}):
        await temporal.start_workflow(
            NOTIFICATION_WORKFLOW,
            order,
            id=row.run,
            task_queue=queue,
            memo={NOTIFICATION_MEMO: {"state": "PENDING", "attempts": 0, "saga_id": saga_id}},
            static_summary=run_summary(f"✉ {row.uses}, sent again"),
            id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
        )
    return "sent again"


async def _read_delivery(temporal: Temporal, run: str, run_id: str) -> tuple[dict[str, Any], str]:
    """The input of a delivery run and the id of its saga, from the first event of its history. Raises RefusedError if
    that is not an order: any client may start a run under the id of a notification.
    """
    started = await start_of_run(temporal, run, run_id)
    if started is None:
        raise RefusedError(f"the history of {run} is deleted, so its content is unknown")
    with suppress(LookupError, TypeError, *UNREADABLE_VALUE):
        order = await read_single_payload(started.input.payloads, temporal.data_converter)
        return order, order["saga_id"]
    raise RefusedError(f"{run} was not started as a notification of a saga, or its content cannot be read here")
