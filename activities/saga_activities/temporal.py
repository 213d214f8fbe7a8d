"""The one dynamic activity through which Temporal reaches every action, and how outcomes become its answers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from saga_activities.attempt import Attempt, AwaitsReply
from saga_activities.beating import beating
from saga_activities.dispatch import Dispatcher, NotServed
from saga_activities.load import Loader
from saga_activities.watching import Watched, Watcher
from sagas.errors import SagaError
from sagas.outcomes import Failure, Outcome
from sagas.wire import LOAD, Invocation, decode_call, encode_done, encode_failure
from sagas.workflow import Sentence

NOT_SERVED_INTERVAL = 60.0
"""Seconds until an attempt that found no action is repeated by the platform."""

DETAILS_LIMIT = 256 * 1024
MESSAGE_LIMIT = 8 * 1024
"""Bytes of a failure's details, characters of its sentence: what is larger would fail on its way to the server."""


class SagaActivities:
    """Holds what the activities of one worker need."""

    def __init__(self, dispatcher: Dispatcher, loader: Loader, watchers: Sequence[Watcher] = ()) -> None:
        self._dispatcher = dispatcher
        self._loader = loader
        self._watchers = tuple(watchers)

    @activity.defn(dynamic=True)
    async def perform(self, args: Sequence[RawValue]) -> Any:
        """Make one attempt of whatever the activity type names."""
        info = activity.info()
        argument = activity.payload_converter().from_payload(args[0].payload)
        if info.activity_type == LOAD:
            return await self._load(argument)
        try:
            invocation = decode_call(info.activity_type, argument)
        except (KeyError, TypeError, AttributeError):
            raise ApplicationError(
                f"activity {info.activity_type} is not an operation of a saga", type="NotFoundError"
            ) from None
        watched = Watched(
            invocation.saga or info.workflow_type or "", invocation, invocation.earlier_attempts + info.attempt
        )
        with contextlib.ExitStack() as watching:
            for watcher in self._watchers:
                watching.enter_context(watcher(watched))
            attempt = _attempt(watched)
            outcome = watched.outcome = await self._perform(invocation, attempt, watched)
        return _answer(outcome, invocation, attempt.number)

    async def _perform(self, invocation: Invocation, attempt: Attempt, watched: Watched) -> Outcome:
        try:
            if not invocation.beats:
                work = self._dispatcher.perform(invocation, attempt)
                return await (_deaf(work) if invocation.deaf else work)
            async with beating(attempt) as beaten:
                return await _deaf(self._dispatcher.perform(invocation, beaten), only_to_cancel=not invocation.deaf)
        except NotServed as error:
            raise _not_served(str(error), invocation, attempt.number) from None
        except AwaitsReply:
            watched.waits = True
            activity.raise_complete_async()
        except asyncio.CancelledError:
            # The saga goes backward, or this worker stops; nobody can say what the attempt did.
            watched.outcome = Outcome("unknown", failure=Failure("Cancelled", "the attempt was cancelled"))
            raise

    async def _load(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._loader.load(request["saga"], request.get("input"), request.get("undo_of"))
        except SagaError as error:
            raise ApplicationError(
                error.message, type="SagaRefused", non_retryable=True, category=ApplicationErrorCategory.BENIGN
            ) from None


def _not_served(sentence: str, invocation: Invocation, number: int) -> ApplicationError:
    """No attempt was made. The first time the saga hears of it at once, and asks again after a while, uncounted.

    Later attempts follow others that may have had an effect, so they stay in the platform's hands until another
    worker answers; when they end like this, only the earlier ones count, and those are unknown.
    """
    details = {"outcome": "unknown", "attempt": number, "details": {}}
    wait = timedelta(seconds=NOT_SERVED_INTERVAL)
    if number == 1:
        return ApplicationError(sentence, details, type="NotFoundError", non_retryable=True)
    return ApplicationError(sentence, details, type="NotFoundError", next_retry_delay=wait)


def _attempt(watched: Watched) -> Attempt:
    info = activity.info()
    timeout = info.start_to_close_timeout or timedelta(seconds=30)
    return Attempt(
        number=info.attempt,
        scheduled_at=info.current_attempt_scheduled_time.timestamp(),
        deadline=(info.started_time + timeout).timestamp(),
        heartbeat=_heartbeat(),
        logger=activity.logger,
        traceparent=watched.traceparent,
        saga=watched.saga,
        token=b"" if info.is_local else info.task_token,
    )


def _heartbeat() -> Callable[[Any], None]:
    """A beat that also works from the thread of a plain `def` action."""
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()

    def beat(details: Any = None) -> None:
        values = () if details is None else (details,)
        loop.call_soon_threadsafe(lambda: context.run(activity.heartbeat, *values))

    return beat


async def _deaf(work: Any, *, only_to_cancel: bool = False) -> Outcome:
    """Run to the end whatever is cancelled meanwhile: a pivot's own row decides, nobody else.

    ``only_to_cancel``: go on when the saga turns back, as an attempt does that sends no heartbeats and so never hears
    of it; but end with the worker, or when the attempt has timed out.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            why = activity.cancellation_details()
            if only_to_cancel and not (why is not None and why.cancel_requested):
                task.cancel()
    return task.result()


def _answer(outcome: Outcome, invocation: Invocation, number: int) -> Any:
    """Return or raise what Temporal records."""
    if outcome.kind == "done":
        return encode_done(outcome, number)
    raise failure_of(outcome, number, invocation.intervals) from None


def failure_of(outcome: Outcome, number: int, intervals: Sequence[float] = ()) -> Sentence:
    """How an attempt that is not done ends for Temporal; ``intervals`` are the waits before the attempts 2, 3 …

    Expected answers are benign: no stack trace in the log for a no.
    """
    failure = outcome.failure or Failure("Unknown", "no reason was given")
    # An attempt that does not count goes back to the saga at once: the platform would count it.
    final = outcome.kind in ("rejected", "late") or not outcome.retryable or not outcome.counted
    benign = outcome.kind in ("rejected", "late") or outcome.infrastructure
    wait = None
    if not final:
        seconds = outcome.retry_after
        if seconds is None and intervals:
            seconds = intervals[min(number - 1, len(intervals) - 1)]
        wait = None if seconds is None else timedelta(seconds=seconds)
    details = json.loads(json.dumps(encode_failure(outcome, number), default=str))
    size = len(json.dumps(details["details"]))
    if size > DETAILS_LIMIT:
        details["details"] = {"omitted": "size", "bytes": size}
    return Sentence(
        failure.message[:MESSAGE_LIMIT],
        details,
        type=failure.type,
        non_retryable=final,
        next_retry_delay=wait,
        category=ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED,
    )
