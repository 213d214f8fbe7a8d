"""The dynamic activity through which Temporal performs every action, and the conversion of outcomes for Temporal.

The activity `saga.load` is here, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationErrorCategory

from saga_activities.attempt_context import (
    AttemptContext,
    AttemptObserver,
    ObservedAttempt,
    ReplyPending,
    repeat_heartbeats,
)
from saga_activities.bodies.python_action import ActionNotRegistered
from saga_activities.bulk.bulk_activities import BulkActivities
from saga_activities.concurrency import uncancellable
from saga_activities.dispatcher import Dispatcher
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.input_checks import INPUT_CHECKS, checked_input
from saga_activities.locks.lock_activities import LOCK_ACTIVITIES, LockActivities
from saga_activities.locks.parked_holders import IsParked, with_parked_owner
from saga_activities.reported_failure import reported_failure
from saga_activities.server_clock import ServerClock
from sagas.bulk.wire_format import BULK_ACTIVITIES, CLAIM_ACTIVITY
from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.errors import InfrastructureError, RefusedError, SagaError, UsageError
from sagas.protocol.outcomes import Failure, Outcome, hide_in_failure
from sagas.protocol.payloads import (
    BULK_PREFIX,
    LOAD_ACTIVITY,
    REFUSED_TYPE,
    VERIFY_ACTIVITY,
    Invocation,
    decode_call,
    encode_failure,
    encode_result,
)
from sagas.protocol.size_limits import MAX_STATE_CHARACTERS
from sagas.settings.masking import mask
from sagas.settings.project import Project
from sagas.text.exact_json import decode_json
from sagas.text.hidden_texts import hiding
from sagas.workflow import SagaApplicationError
from sagas.workflow.json_payloads import raw_json, read_payload

NOT_PERFORMED_RETRY_INTERVAL = 60.0
"""Seconds until Temporal retries an attempt that this worker did not make."""

VerifyStart = Callable[..., Awaitable[dict[str, str]]]
"""Verifies a start: called with the fields of the request of ``saga.verify``. Returns why inputs are refused, by the
ids of their sagas; raises SagaError if nothing of it is trusted."""

_BUSY_INTERVAL = timedelta(seconds=2)
"""Until a start is verified again for which this worker had no time."""


class SagaActivities:
    """The activities of one worker."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        loader: DefinitionLoader,
        verify_start: VerifyStart,
        observers: Sequence[AttemptObserver] = (),
        locks: LockActivities | None = None,
        bulk: BulkActivities | None = None,
        is_parked: IsParked | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._locks = locks
        self._bulk = bulk
        self._is_parked = is_parked
        self._clock = clock or ServerClock()
        self._loader = loader
        self._verify_start = verify_start
        self._observers = tuple(observers)

    @activity.defn(dynamic=True)
    async def perform(self, args: Sequence[RawValue]) -> RawValue:
        """Make one attempt of the operation that the activity type names."""
        info = activity.info()
        if not info.in_workflow:
            # Temporal also runs single activities for any client, whose arguments no definition has formed.
            raise SagaApplicationError(
                f"{info.activity_type} is performed for sagas only; start a saga",
                type=REFUSED_TYPE,
                non_retryable=True,
            )
        return raw_json(await self._perform_activity(info, args[0].payload))

    async def _perform_activity(self, info: activity.Info, payload: Payload) -> Any:
        if info.activity_type in BULK_ACTIVITIES and self._bulk is not None:
            return await _perform_bulk_activity(self._bulk, info.activity_type, payload, self._clock)
        if info.activity_type in (LOAD_ACTIVITY, VERIFY_ACTIVITY):
            return await self._prepare_run(info, payload)
        argument = read_payload(payload)
        if info.activity_type in LOCK_ACTIVITIES and self._locks is not None:
            return await _perform_lock_activity(self._locks, info.activity_type, argument, self._clock)
        try:
            invocation = decode_call(info.activity_type, argument)
        except (KeyError, TypeError, AttributeError):
            raise SagaApplicationError(
                f"activity {info.activity_type} is not an operation of a saga", type="NotFoundError"
            ) from None
        watched = ObservedAttempt(
            invocation.saga or info.workflow_type or "", invocation, invocation.earlier_attempts + info.attempt
        )
        with hiding(invocation.hidden), contextlib.ExitStack() as watching:
            for watcher in self._observers:
                watching.enter_context(watcher(watched))
            attempt = await _attempt_context(watched.saga, watched.traceparent, self._clock)
            ended = await self._perform(invocation, attempt, watched)
            outcome = watched.outcome = hide_in_failure(note_no_effect(ended, info), invocation.hidden)
        return _temporal_result(outcome, invocation, attempt.number)

    async def _perform(self, invocation: Invocation, attempt: AttemptContext, observed: ObservedAttempt) -> Outcome:
        try:
            if not invocation.beats:
                work = self._attempt(invocation, attempt)
                return await (uncancellable(work) if invocation.ignores_cancel else work)
            with repeat_heartbeats(attempt) as beaten:
                work = self._attempt(invocation, beaten)
                return await uncancellable(work, unless=None if invocation.ignores_cancel else _must_end)
        except ActionNotRegistered as error:
            raise not_performed_error(str(error), attempt.number) from None
        except ReplyPending:
            observed.awaits_reply = True
            activity.raise_complete_async()
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and (details.timed_out or details.not_found):
                # Temporal has given the attempt up and takes no result. For a cancellation the SDK logs a traceback.
                return Outcome("unknown", failure=Failure("Timeout", "the attempt timed out"))
            # The saga rolls back, or this worker stops; the effect of the attempt is unknown.
            observed.outcome = Outcome("unknown", failure=Failure("Cancelled", "the attempt was cancelled"))
            raise

    async def _attempt(self, invocation: Invocation, attempt: AttemptContext) -> Outcome:
        outcome = await self._dispatcher.perform(invocation, attempt)
        return outcome if self._is_parked is None else await with_parked_owner(outcome, self._is_parked)

    async def _prepare_run(self, info: activity.Info, payload: Payload) -> dict[str, Any]:
        """Check the input of a start, which any client may have sent."""
        caller = info.workflow_type or ""
        if INPUT_CHECKS.is_busy(caller):
            message = f"other inputs of {caller} are being checked; this one is checked later"
            busy = {"next_retry_delay": _BUSY_INTERVAL, "category": ApplicationErrorCategory.BENIGN}
            raise SagaApplicationError(message, type="Busy", **busy)
        request = await INPUT_CHECKS.run(lambda: read_payload(payload), caller=caller, size=len(payload.data))
        try:
            if info.activity_type == VERIFY_ACTIVITY:
                refused = await self._verify_start(**request)
                return {"refused": refused} if refused else {}
            loading = self._loader.load(request["saga"], request.get("input"), request.get("undo_of"))
            return await _unless_worker_stops(loading)
        except SagaError as error:
            raise SagaApplicationError(
                mask(error.message), type=REFUSED_TYPE, non_retryable=True, category=ApplicationErrorCategory.BENIGN
            ) from None


async def _unless_worker_stops(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Cancel ``work`` when this worker stops, which answers no queries of workflows then: another worker repeats it."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(activity.wait_for_worker_shutdown())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise InfrastructureError("this worker stops")
        return working.result()
    finally:
        stopping.cancel()
        working.cancel()


async def _perform_lock_activity(
    locks: LockActivities, activity_type: str, request: Mapping[str, Any], clock: ServerClock
) -> Any:
    info = activity.info()
    attempt = await _attempt_context(info.workflow_type or "", None, clock)
    try:
        outcome = await locks.perform(activity_type, request, attempt, info.workflow_id or "")
    except (KeyError, TypeError, AttributeError):
        raise SagaApplicationError(
            f"the argument of {activity_type} is not a request of a saga", type=REFUSED_TYPE, non_retryable=True
        ) from None
    except UsageError as error:
        # A connection that this worker does not have. Temporal tries again, and shows the attempts and this reason.
        failure = Failure("Infrastructure", str(error))
        outcome = Outcome("failed", failure=failure, attempt=attempt.number, infrastructure=True)
    if outcome.kind == "done":
        return outcome.result
    raise to_application_error(outcome, attempt.number)


async def _perform_bulk_activity(bulk: BulkActivities, activity_type: str, request: Payload, clock: ServerClock) -> Any:
    info = activity.info()
    try:
        attempt = await _attempt_context(info.workflow_type or "", None, clock)
        return await bulk.perform(activity_type, decode_json(request.data), attempt)
    except (KeyError, TypeError, AttributeError, ValueError):
        if not info.workflow_id or not info.workflow_id.startswith(BULK_PREFIX):
            message = f"the argument of {activity_type} is not a request of a bulk workflow"
            raise SagaApplicationError(message, type=REFUSED_TYPE, non_retryable=True) from None
        raise
    except SagaError as error:
        # Once ids are claimed, sagas depend on an answer: Temporal tries again, and shows the attempts and the reason.
        refused = isinstance(error, RefusedError) and activity_type == CLAIM_ACTIVITY
        raise SagaApplicationError(
            mask(error.message),
            type=REFUSED_TYPE if refused else type(error).__name__,
            non_retryable=refused,
            category=ApplicationErrorCategory.BENIGN,
        ) from None
    except Exception as error:
        classified = classify_database_error(error)
        if classified is None:
            raise
        raise SagaApplicationError(mask(classified.message), type="Infrastructure") from None


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


def not_performed_error(message: str, number: int, type: str = "NotFoundError") -> SagaApplicationError:
    """The error of an attempt that was not made: its action is not registered, or its call not signed.

    On the first attempt the saga is notified at once and retries later, without counting the attempt. Later attempts
    follow others that may have had an effect, so Temporal retries them until another worker performs them; if they
    end like this, only the earlier ones count, and those are unknown.
    """
    details = {"outcome": "unknown", "attempt": number, "details": {}}
    wait = timedelta(seconds=NOT_PERFORMED_RETRY_INTERVAL)
    if number == 1:
        return SagaApplicationError(message, raw_json(details), type=type, non_retryable=True)
    return SagaApplicationError(message, raw_json(details), type=type, next_retry_delay=wait)


async def _attempt_context(saga: str, traceparent: str | None, clock: ServerClock) -> AttemptContext:
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


def _must_end() -> bool:
    """Return whether the worker stops or the attempt has timed out.

    The saga's own cancellation is ignored, as by an attempt without heartbeats, which never receives it.
    """
    why = activity.cancellation_details()
    return why is None or not why.cancel_requested


def _temporal_result(outcome: Outcome, invocation: Invocation, number: int) -> Any:
    """Return the result or raise the error that Temporal records."""
    if outcome.kind == "done":
        return encode_result(outcome, number)
    raise to_application_error(
        outcome, number, invocation.intervals, is_repeated=_is_repeated_rejection(outcome, invocation, number)
    ) from None


def _is_repeated_rejection(outcome: Outcome, invocation: Invocation, number: int) -> bool:
    """True for a rejection that Temporal repeats: an attempt before it may have had an effect, or be in progress."""
    definite = invocation.guard is not None or invocation.remembers_rejections
    return outcome.kind == "rejected" and not definite and number > 1 and not outcome.nothing_before


def to_application_error(
    outcome: Outcome, number: int, intervals: Sequence[float] = (), *, is_repeated: bool = False
) -> SagaApplicationError:
    """The error with which an attempt that is not done ends; ``intervals``: seconds before the attempts 2, 3 …

    ``is_repeated``: a rejection that is repeated as an unknown attempt is. Expected outcomes are benign: no stack trace
    in the log for a rejection or a timeout.
    """
    # An uncounted attempt is returned to the saga at once: Temporal would count it.
    hopeless = outcome.kind in ("rejected", "late") or not outcome.retryable
    final = (hopeless and not is_repeated) or not outcome.counted
    is_timeout = outcome.failure is not None and outcome.failure.type == "Timeout"
    benign = outcome.kind in ("rejected", "late") or outcome.infrastructure or is_timeout
    wait = None
    if not final:
        seconds = outcome.retry_after
        if seconds is None and intervals:
            seconds = intervals[min(number - 1, len(intervals) - 1)]
        wait = None if seconds is None else timedelta(seconds=seconds)
    failure = reported_failure(outcome)
    details = encode_failure(replace(outcome, failure=failure), number)
    return SagaApplicationError(
        failure.message,
        raw_json(details),
        type=failure.type,
        non_retryable=final,
        next_retry_delay=wait,
        category=ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED,
    )


# The activity `saga.load`: loads what a run needs if its starter did not send the definition.
ReadMachine = Callable[[str], Awaitable[str | None]]
ListAttributes = Callable[[], Awaitable[list[str]]]
FindDefinition = Callable[[str], Awaitable[Definition]]


class DefinitionLoader:
    """Resolves definitions for runs.

    ``find_definition`` raises UsageError for an unknown name; ``read_machine`` queries a closed run for its state (for
    `saga undo`).
    """

    def __init__(
        self,
        project: Project,
        find_definition: FindDefinition,
        read_machine: ReadMachine,
        list_attributes: ListAttributes,
    ) -> None:
        self._project = project
        self._find_definition = find_definition
        self._read_machine = read_machine
        self._list_attributes = list_attributes

    async def load(self, saga: str, input: Any, undo_of: str | None) -> dict[str, Any]:
        """The snapshot, the validated input, the variables and the existing search attributes.

        Raises UsageError: unknown saga or invalid input; RefusedError: the run cannot be undone.
        """
        attributes = await self._list_attributes()
        if undo_of is not None:
            return {"attributes": attributes, "input": None, "machine": await self._load_undo(undo_of)}
        definition = await self._find_definition(saga)
        checked = await checked_input(definition, input)
        return {
            "definition": to_snapshot(definition),
            "input": checked,
            "vars": dict(self._project.settings.vars),
            "attributes": attributes,
        }

    async def _load_undo(self, undo_of: str) -> str:
        packed = await self._read_machine(undo_of)
        if packed is None:
            raise RefusedError(f"the state of {undo_of} no longer exists, so it cannot be undone")
        if len(packed) > MAX_STATE_CHARACTERS:
            raise RefusedError(
                f"{undo_of} can only be undone by hand: its state has {len(packed):,} bytes, and Temporal accepts "
                f"{MAX_STATE_CHARACTERS:,}"
            )
        return packed
