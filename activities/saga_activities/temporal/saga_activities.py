"""The dynamic activity through which Temporal performs every action."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationErrorCategory

from saga_activities.attempt_admission import AttemptAdmission
from saga_activities.attempt_context import (
    AttemptContext,
    AttemptObserver,
    ObservedAttempt,
    ReplyPending,
    repeat_heartbeats,
    with_masked_heartbeats,
)
from saga_activities.bodies.python_action import ActionNotRegistered
from saga_activities.bulk.bulk_activities import BulkActivities
from saga_activities.circuit_breakers import AdmittedAttempt
from saga_activities.concurrency import run_unless, uncancellable
from saga_activities.dispatcher import Dispatcher
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.input_checks import INPUT_CHECKS, CheckedInputs
from saga_activities.locks.lock_activities import LOCK_ACTIVITIES, LockActivities
from saga_activities.locks.parked_holders import IsParked, with_parked_owner
from saga_activities.server_clock import ServerClock
from saga_activities.temporal.activity_attempt import (
    DEFAULT_TIMEOUT,
    attempt_context,
    attempt_number,
    must_end,
    note_no_effect,
)
from saga_activities.temporal.attempt_errors import not_performed_error, temporal_result, to_application_error
from saga_activities.temporal.bounded_errors import bounded_error
from saga_activities.temporal.definition_loader import DefinitionLoader
from sagas.bulk.names import BULK_ACTIVITIES, CLAIM_ACTIVITY
from sagas.errors import InfrastructureError, RefusedError, SagaError, UsageError
from sagas.protocol.origin import with_ledger
from sagas.protocol.outcomes import Failure, Outcome, mask_failure
from sagas.protocol.payloads import (
    BULK_PREFIX,
    LOAD_ACTIVITY,
    NESTED_ACTIVITY,
    REFUSED_TYPE,
    RESET_ACTIVITY,
    START_ACTIVITIES,
    VERIFY_ACTIVITY,
    Invocation,
    decode_call,
)
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, size_problem
from sagas.settings.masking import mask
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.masked_texts import masking, texts_of_attempt
from sagas.workflow.failures import SagaApplicationError
from sagas.workflow.json_payloads import UnreadableValue, raw_json, read_payload
from sagas.workflow.unread_inputs import value_of_input

VerifyStart = Callable[..., Awaitable[CheckedInputs]]
"""Verifies a start: called with the fields of the request of ``saga.verify``. Raises SagaError if nothing of it is
trusted."""

StartActivity = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Performs an activity that starts a saga, or looks after it: called with its type and its request. Raises SagaError if
it may succeed later."""

LookBeforeReset = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Looks up what a saga had done before the current run, which follows one that was reset or deleted. Called with its
``saga_id``, its ``generation``, its ``input_digest`` and the ``root_start`` of its origin; its steps that are
``nested`` sagas, or ``finishes``, and the ``undos`` in guards: the step, the connection, and whether the same guard has
the step; the ``evidence`` of its commit point, and what an operator says of that (``committed``); the time ``since``
which it has run; the ``guarded`` steps by connection, unless their rows have been looked for; ``is_lost``, if nobody
has the state of an earlier run; and of a nested saga that may have been started before its ``parent``, and the time
``parent_since`` which an earlier run of it may have run."""


class LookUpEarlierChild(Protocol):
    """Looks up the end of a nested saga that an earlier run of ``parent`` has started."""

    async def __call__(self, id: str, parent: str, root_start: str, *, undone: bool) -> Mapping[str, Any]:
        """Return its state and its view. ``root_start``: that of the origin of ``parent``. ``undone``: it is to be
        undone, also if its run was deleted. Raises what Temporal's client does, and SagaError.
        """
        ...


_FIRST_BUSY_INTERVAL, _LONGEST_BUSY_INTERVAL = timedelta(seconds=2), timedelta(minutes=1)
"""Until a start is checked again for which this worker had no time. It grows with the attempts: each of them costs
Temporal and a worker something, with `saga.verify` also the transport of the input."""


class SagaActivities:
    """The activities of one worker."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        admission: AttemptAdmission,
        loader: DefinitionLoader,
        verify_start: VerifyStart,
        look_before_reset: LookBeforeReset,
        look_up_earlier_child: LookUpEarlierChild,
        observers: Sequence[AttemptObserver] = (),
        locks: LockActivities | None = None,
        bulk: BulkActivities | None = None,
        is_parked: IsParked | None = None,
        clock: ServerClock | None = None,
        starts: StartActivity | None = None,
        ledger_id: Callable[[], str] = str,
    ) -> None:
        self._dispatcher = dispatcher
        self._admission = admission
        self._locks = locks
        self._bulk = bulk
        self._is_parked = is_parked
        self._clock = clock or ServerClock()
        self._loader = loader
        self._verify_start = verify_start
        self._starts = starts
        self._ledger_id = ledger_id
        self._look_before_reset = look_before_reset
        self._look_up_earlier_child = look_up_earlier_child
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
        try:
            return raw_json(await self._perform_activity(info, args[0].payload))
        except Exception as error:  # noqa: BLE001 - it would be sent with its causes, and all their tracebacks
            raise bounded_error(error, info).with_traceback(error.__traceback__) from None

    async def _perform_activity(self, info: activity.Info, payload: Payload) -> Any:
        if info.activity_type in BULK_ACTIVITIES and self._bulk is not None:
            return await _perform_bulk_activity(self._bulk, info.activity_type, payload, self._clock)
        if info.activity_type in (LOAD_ACTIVITY, VERIFY_ACTIVITY):
            return await self._prepare_run(info, payload)
        argument = read_payload(payload)
        if info.activity_type in START_ACTIVITIES and self._starts is not None:
            return await _perform_start_activity(self._starts, info.activity_type, argument)
        if info.activity_type == RESET_ACTIVITY:
            return await self._look_before_reset(argument)
        if info.activity_type == NESTED_ACTIVITY:
            child = argument["id"], argument["parent"], argument["root_start"]
            return await self._look_up_earlier_child(*child, undone=argument["undone"])
        if info.activity_type in LOCK_ACTIVITIES and self._locks is not None:
            return await _perform_lock_activity(self._locks, info.activity_type, argument, self._clock)
        try:
            sent = decode_call(info.activity_type, argument)
            invocation = replace(sent, origin=with_ledger(sent.origin, self._ledger_id()))
        except (KeyError, TypeError, AttributeError):
            raise SagaApplicationError(
                f"activity {info.activity_type} is not an operation of a saga", type="NotFoundError"
            ) from None
        saga = invocation.saga or info.workflow_type or ""
        attempt = await attempt_context(saga, self._clock)
        # AttemptAdmission and its end ask the ledger, which may take longer than the heartbeat timeout.
        with repeat_heartbeats(attempt) if invocation.beats else contextlib.nullcontext(attempt) as beaten:
            timeout = info.start_to_close_timeout or DEFAULT_TIMEOUT
            admission = self._admission.admit(invocation, saga, attempt_number(info), timeout.total_seconds())
            admitted = await (uncancellable(admission, unless=must_end) if invocation.beats else admission)
            if isinstance(admitted, Outcome):
                return temporal_result(note_no_effect(admitted, info), invocation, attempt.number)
            outcome = await self._perform_observed(invocation, beaten, info, admitted)
        return temporal_result(outcome, invocation, attempt.number)

    async def _perform_observed(
        self, invocation: Invocation, attempt: AttemptContext, info: activity.Info, admitted: AdmittedAttempt
    ) -> Outcome:
        watched = ObservedAttempt(attempt.saga, invocation, invocation.earlier_attempts + attempt.number)
        with masking(invocation.sensitive_texts), contextlib.ExitStack() as watching:
            for watcher in self._observers:
                watching.enter_context(watcher(watched))
            traced = replace(with_masked_heartbeats(attempt), traceparent=watched.traceparent)
            making = self._perform(invocation, traced, watched)
            ended = await self._admission.make(admitted, making, awaits_reply=lambda: watched.awaits_reply)
            outcome = watched.outcome = mask_failure(note_no_effect(ended, info), texts_of_attempt())
        return outcome

    async def _perform(self, invocation: Invocation, attempt: AttemptContext, observed: ObservedAttempt) -> Outcome:
        try:
            work = self._attempt(invocation, attempt)
            if invocation.beats:
                return await uncancellable(work, unless=None if invocation.ignores_cancel else must_end)
            return await (uncancellable(work) if invocation.ignores_cancel else work)
        except ActionNotRegistered as error:
            raise not_performed_error(str(error), attempt.number) from None
        except ReplyPending:
            observed.awaits_reply = True
            activity.raise_complete_async()
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and (details.timed_out or details.not_found):
                # Temporal has given the attempt up and takes no result. For a cancellation the SDK logs a traceback.
                return Outcome("unknown", failure=Failure("Timeout", "it timed out, or nothing waits for it any more"))
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
            raise SagaApplicationError(
                message,
                type="Busy",
                next_retry_delay=min(_FIRST_BUSY_INTERVAL * 2 ** min(info.attempt - 1, 10), _LONGEST_BUSY_INTERVAL),
                category=ApplicationErrorCategory.BENIGN,
            )
        try:
            request = await self._start_request(info, payload, caller)
            if info.activity_type == VERIFY_ACTIVITY:
                checked = await self._verify_start(**request)
                answers = {"refused": checked.refused, "completed": checked.completed}
                return _within_payload({name: inputs for name, inputs in answers.items() if inputs})
            loading = self._loader.load(
                request["saga"], request.get("input"), request.get("undo_of"), request.get("run_id")
            )
            return _within_payload(await _unless_worker_stops(loading))
        except SagaError as error:
            raise SagaApplicationError(
                mask(error.message), type=REFUSED_TYPE, non_retryable=True, category=ApplicationErrorCategory.BENIGN
            ) from None

    async def _start_request(self, info: activity.Info, payload: Payload, caller: str) -> dict[str, Any]:
        """The request, with the input if no workflow task has read it. Raises UsageError for a wrong one."""
        request = await INPUT_CHECKS.run(lambda: read_payload(payload), caller=caller, size=len(payload.data))
        if not request.get("is_unread"):
            return request
        try:
            async with INPUT_CHECKS.turn(caller):
                sent = await self._loader.read_input(info.workflow_id or "", info.workflow_run_id or "")
            input = await INPUT_CHECKS.run(lambda: value_of_input(sent), caller=caller, size=len(sent.data))
        except UnreadableValue as error:
            raise UsageError(f"the input cannot be read: {error}") from None
        return {**request, "input": input}


def _within_payload(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer. Raises UsageError if Temporal does not take it: defaults can make an input larger without end."""
    if (size := len(encode_json(answer))) > MAX_PAYLOAD_BYTES:
        raise UsageError(size_problem("the definition with the input and its defaults", size))
    return answer


async def _unless_worker_stops(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Cancel ``work`` when this worker stops, which answers no queries of workflows then: another worker repeats it."""
    return await run_unless(activity.wait_for_worker_shutdown(), work, InfrastructureError("this worker stops"))


async def _perform_lock_activity(
    locks: LockActivities, activity_type: str, request: Mapping[str, Any], clock: ServerClock
) -> Any:
    info = activity.info()
    attempt = await attempt_context(info.workflow_type or "", clock)
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


async def _perform_start_activity(
    starts: StartActivity, activity_type: str, request: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return await starts(activity_type, request)
    except SagaError as error:
        raise SagaApplicationError(
            mask(error.message), type=type(error).__name__, category=ApplicationErrorCategory.BENIGN
        ) from None


async def _perform_bulk_activity(bulk: BulkActivities, activity_type: str, request: Payload, clock: ServerClock) -> Any:
    info = activity.info()
    try:
        attempt = await attempt_context(info.workflow_type or "", clock)
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
