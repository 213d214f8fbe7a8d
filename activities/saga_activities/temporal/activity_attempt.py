"""The attempt that an activity makes: its context, and what it leaves for the next one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity

from saga_activities.attempt_context import AttemptContext
from saga_activities.server_clock import ServerClock
from sagas.protocol.outcomes import Outcome
from sagas.workflow.json_payloads import raw_json

_WITHOUT_EFFECT = "attempts_without_effect"


def note_no_effect(outcome: Outcome, info: activity.Info) -> Outcome:
    """The outcome with what is known about the earlier attempts of its call.

    An attempt without an effect leaves the number of all of them in its last heartbeat, which Temporal hands to the
    next attempt. After an attempt that could say nothing the number is too low.
    """
    noted = info.heartbeat_details[1:]
    clean = info.attempt == 1 or (not info.is_local and noted == [{_WITHOUT_EFFECT: info.attempt - 1}])
    repeated = info.retry_policy is None or info.retry_policy.maximum_attempts != info.attempt
    if clean and outcome.kind == "failed" and outcome.retryable and repeated and not info.is_local:
        activity.heartbeat(raw_json(None), raw_json({_WITHOUT_EFFECT: info.attempt}))
    return replace(outcome, nothing_before=clean and info.attempt > 1)


async def attempt_context(saga: str, traceparent: str | None, clock: ServerClock) -> AttemptContext:
    info = activity.info()
    timeout = info.start_to_close_timeout or timedelta(seconds=30)
    return AttemptContext(
        number=info.attempt,
        scheduled_at=info.current_attempt_scheduled_time.timestamp(),
        deadline=await clock.deadline(info, timeout.total_seconds()),
        heartbeat=_no_heartbeat if info.is_local else _heartbeat(),
        logger=activity.logger,
        traceparent=traceparent,
        saga=saga,
        task_token=b"" if info.is_local else info.task_token,
    )


def _heartbeat() -> Callable[[Any], None]:
    """A heartbeat function that also works from the thread of a plain `def` action."""
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()

    def beat(details: Any = None) -> None:
        values = () if details is None else (raw_json(details),)
        loop.call_soon_threadsafe(lambda: context.run(activity.heartbeat, *values))

    return beat


def _no_heartbeat(_: Any = None) -> None:
    """A local activity has none: the SDK would take the server's refusal for a cancel."""


def must_end() -> bool:
    """Return whether the worker stops or the attempt has timed out.

    The saga's own cancellation is ignored, as by an attempt without heartbeats, which never receives it.
    """
    why = activity.cancellation_details()
    return why is None or not why.cancel_requested
