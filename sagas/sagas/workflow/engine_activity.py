"""Performs the engine's own activities, which a run cannot do without: they are repeated until a worker answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from sagas.workflow.limits import limit_summary

_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10), maximum_attempts=1_000_000
)


async def perform_until_answered(
    name: str,
    request: Mapping[str, Any] | RawValue,
    summary: str,
    *,
    timeout: timedelta,
    heartbeat: timedelta | None = None,
    activity_id: str | None = None,
    may_end: Callable[[str], bool] | None = None,
) -> dict[str, Any]:
    """The answer of a worker of the project; ``timeout`` is that of an attempt, ``heartbeat`` that of a lost worker.

    Raises CancelledError when it is cancelled, and ActivityError for a failure whose type ``may_end`` accepts. After
    any other failure, which is shown in the log, another worker may answer: this one is foreign, or lacks a connection.
    """
    while True:
        try:
            return await workflow.execute_activity(
                name,
                request,
                activity_id=activity_id,
                result_type=dict,
                summary=limit_summary(summary),
                start_to_close_timeout=timeout,
                heartbeat_timeout=heartbeat,
                retry_policy=_RETRY,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise asyncio.CancelledError from None
            if may_end is not None and may_end(getattr(error.cause, "type", None) or ""):
                raise
            workflow.logger.warning("%s failed, it is tried again: %s", name, error.cause or error)
            await workflow.sleep(timedelta(seconds=10), summary=limit_summary(f"retry: {summary}"))
