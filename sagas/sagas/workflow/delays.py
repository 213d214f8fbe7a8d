"""Waits of a bulk workflow: a short one is an activity, because a timer of Temporal takes about a second."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

from sagas.bulk.names import DELAY_ACTIVITY, LONGEST_DELAY
from sagas.workflow.json_payloads import raw_json

_GRACE = timedelta(seconds=2)


async def wait_for(seconds: float) -> None:
    """Wait for the next retry or deadline of a saga."""
    summary = "the next retry or deadline of a saga"
    if seconds >= LONGEST_DELAY:
        await workflow.sleep(timedelta(seconds=seconds), summary=summary)
        return
    try:
        await workflow.execute_activity(
            DELAY_ACTIVITY,
            raw_json({"seconds": seconds}),
            result_type=RawValue,
            summary=summary,
            schedule_to_close_timeout=timedelta(seconds=seconds) + _GRACE,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from None
        await workflow.sleep(timedelta(seconds=seconds), summary=summary)  # its worker is lost, or has no time for it
