"""Performs the engine's own activities, which a run cannot do without: they are repeated until a worker answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import FailureError, is_cancelled_exception

from sagas.workflow.failures import activity_failure
from sagas.workflow.json_payloads import read_payload
from sagas.workflow.run_trust import latest_call
from sagas.workflow.signed_answers import is_signed_answer
from sagas.workflow.summaries import limit_summary

_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10), maximum_attempts=1_000_000
)


LOCAL_TIMEOUT = timedelta(seconds=5)
"""Timeout of a local attempt. Meanwhile the run takes no signals and updates."""


class _LocalAttemptFailed(Exception):
    """A local attempt got no answer; another worker may give one."""


async def perform_until_answered(
    name: str,
    request: RawValue,
    summary: str,
    *,
    timeout: timedelta,
    heartbeat: timedelta | None = None,
    activity_id: str | None = None,
    may_end: Callable[[str], bool] | None = None,
    local: bool = False,
) -> dict[str, Any]:
    """The answer of a worker of the project; ``timeout`` is that of an attempt, ``heartbeat`` that of a lost worker.

    Raises CancelledError when it is cancelled, and FailureError for a failure whose type ``may_end`` accepts. After
    any other failure, which is shown in the log, another worker may answer: this one is foreign, or lacks a connection.
    So it may after an answer that no worker of this project has signed for this request of this run: anybody who
    reaches Temporal can complete an activity by its id.

    ``local``: the first attempt is a local activity. It costs the server a tenth, and is for requests that a worker
    usually answers in much less than :data:`LOCAL_TIMEOUT`; one that fails, or is slower, is sent to all workers.
    """
    if local:
        with contextlib.suppress(_LocalAttemptFailed):
            return await _perform_locally(name, request, summary, may_end)
    attempt = 0
    while True:
        attempt += 1
        try:
            handle = workflow.start_activity(
                name,
                request,
                activity_id=activity_id,
                result_type=RawValue,
                summary=limit_summary(summary),
                start_to_close_timeout=timeout,
                heartbeat_timeout=heartbeat,
                retry_policy=_RETRY,
            )
            call = latest_call()
            answer = await handle
            if is_signed_answer(name, request.payload, answer.payload, f"{name} {attempt}", call=call):
                return read_payload(answer.payload)
            problem: Any = "its answer is not signed with a key of this worker"
        except FailureError as error:
            _raise_if_final(error, may_end)
            problem = activity_failure(error) or error
        workflow.logger.warning("%s failed, it is tried again: %s", name, problem)
        await workflow.sleep(timedelta(seconds=10), summary=limit_summary(f"retry: {summary}"))


async def _perform_locally(
    name: str, request: RawValue, summary: str, may_end: Callable[[str], bool] | None
) -> dict[str, Any]:
    try:
        handle = workflow.start_local_activity(
            name,
            request,
            result_type=RawValue,
            summary=limit_summary(summary),
            start_to_close_timeout=LOCAL_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        call = latest_call()
        answer = await handle
        if is_signed_answer(name, request.payload, answer.payload, f"{name} 0", call=call):
            return read_payload(answer.payload)
    except FailureError as error:
        if not is_cancelled_exception(error):  # nobody cancels it; the SDK does when it evicts the run
            _raise_if_final(error, may_end)
    raise _LocalAttemptFailed from None


def _raise_if_final(error: FailureError, may_end: Callable[[str], bool] | None) -> None:
    if is_cancelled_exception(error):
        raise asyncio.CancelledError from None
    if may_end is not None and may_end(getattr(activity_failure(error), "type", None) or ""):
        raise error
