"""Runs the machine's calls as remote or local activities, and feeds their results back as events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import Priority, RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from sagas.builtins.callbacks import CALLBACK_ACTION
from sagas.builtins.messaging import REQUEST
from sagas.definition.model import exponential
from sagas.input_limits import MAX_DURATION, MAX_RETRY_DELAY
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.protocol.messages import Call, CallEnded
from sagas.protocol.outcomes import Failure, Outcome, refused_value
from sagas.protocol.payloads import UNDO_SUFFIX, encode_call
from sagas.workflow.any_worker import for_any_worker
from sagas.workflow.awaited_replies import AwaitedReply, ReplyObserver, unobserved
from sagas.workflow.callbacks import Callbacks, Ended, awaits_callback
from sagas.workflow.failures import attempts_made, is_final_failure
from sagas.workflow.limits import to_payload
from sagas.workflow.origin_sender import OriginSender
from sagas.workflow.run_trust import latest_call
from sagas.workflow.signed_answers import (
    UNSIGNED_ANSWER,
    outcome_of_answer,
    outcome_of_failure,
    outcome_of_foreign_answer,
    outcome_of_foreign_failure,
    outcome_of_request,
)
from sagas.workflow.summaries import limit_summary
from sagas.workflow.task_set import CommandContext
from sagas.workflow.waits import wait_until

REPLY_GRACE = timedelta(seconds=5)
"""How long a saga that rolls back waits for a reply that may be on its way and would tell exactly what to undo. No
worker holds such an attempt, so it cannot be cancelled; its command can be undone before the reply."""

GUARDED_HEARTBEAT_TIMEOUT = 3.0
"""Heartbeat timeout (seconds) of a guarded attempt. The guard makes a wrong timeout harmless: the next attempt waits
for the transaction of the previous one and finds its result."""

FEW_ATTEMPTS = 2
"""Up to this many attempts there is no heartbeat timeout: a busy worker taken for dead could fail the step."""

EVENT_LOOP_TURNS = 8
"""Turns of the event loop from an activity's result to the code that awaits it; it takes four."""


@dataclass(frozen=True, slots=True)
class _Abandonable:
    """An activity whose end is not awaited once it is cancelled: from ``grace`` later on, which sets ``over``."""

    grace: timedelta
    over: asyncio.Future[None]


class ActivityCalls:
    """The activities of one run."""

    def __init__(self, context: CommandContext) -> None:
        self.origin = OriginSender()
        self.callbacks = Callbacks()
        self.reply_observer: ReplyObserver = unobserved
        self._context = context
        self._running: dict[str, workflow.ActivityHandle[Any]] = {}
        self._cancelled: set[str] = set()
        self._abandonable: dict[str, _Abandonable] = {}
        self._abandoned: dict[str, int] = {}
        self._cancelling: set[str] = set()
        self._not_performed: set[str] = set()
        self._answers = 0

    def start(self, call: Call) -> None:
        """Start the call; its end is reported as an event."""
        self._context.tasks.start(call.id, self._run(call))

    async def _run(self, call: Call) -> None:
        if awaits_callback(call) or call.action == REQUEST:
            ended = await self._await_reply(call)
        else:
            ended = await self._send(call)
        self._cancelled.discard(call.id)
        if ended is None:
            self._context.tasks.discard(call.id)
        else:
            self._end(call.id, *ended)

    async def _await_reply(self, call: Call) -> Ended | None:
        """Perform a call that another process answers. None: the next run goes on."""
        awaited = AwaitedReply(call, self.callbacks.accepted_at(call.key) or workflow.time())
        with self.reply_observer(awaited):
            if awaits_callback(call):
                ended = await self.callbacks.perform(call, self._send, lambda: call.id in self._cancelled)
            else:
                ended = await self._send(call)
            awaited.outcome = None if ended is None else ended[0]
        return ended

    def cancel(self, id: str) -> None:
        """Cancel a call, or do not start it at all; its end is still reported."""
        if id in self._context.tasks:
            self._cancelled.add(id)
        if id in self._running:
            self._context.tasks.start(f"cancel {id}", self._cancel_activity(id))

    async def _send(self, call: Call) -> Ended:
        """Perform the attempts of a call; returns how they have ended."""
        beats = _beats(call)
        argument = encode_call(call, workflow.info().workflow_id.removesuffix(UNDO_SUFFIX), beats=beats)
        self.origin.attach(call, argument)
        try:
            payload = to_payload(argument, f"the arguments of {call.action}")
        except DefinitionError as error:
            return _unstarted(refused_value(str(error)))
        if call.delay:
            await self._wait_until_due(call)
        is_reading = call.action == CALLBACK_ACTION  # which ends a call that was made before a pause
        await self._context.wait_to_send(call, len(payload.data), lambda: is_reading or call.id in self._cancelled)
        if call.id in self._cancelled:
            return _unstarted(Failure("Cancelled", "it was cancelled before it started"))
        # The reply to a request comes from the listener, with a token of its own.
        is_ours = call.local and call.action != REQUEST
        started = ""
        try:
            heartbeat = GUARDED_HEARTBEAT_TIMEOUT if beats else call.heartbeat
            handle = self._start_activity(call, payload, heartbeat)
            started = latest_call()
            value = await self._await_worker(handle, call, lambda: self._start_activity(call, payload, heartbeat))
        except FailureError as error:
            if is_ours:
                outcome = outcome_of_failure(
                    call.action,
                    payload,
                    error,
                    self._marker(call.id),
                    _retry_policy(call).maximum_attempts,
                    call=started,
                    is_guarded=call.guard is not None,
                    is_local=call.execution == "local",
                )
                if outcome.not_started and call.at_most_once and not _is_first_attempt(call, outcome):
                    # Anybody can say so; after an attempt with an effect the step must not be repeated.
                    outcome = Outcome("unknown", failure=UNSIGNED_ANSWER)
            elif call.local:
                outcome = outcome_of_request(call.action, payload, error, self._marker(call.id), call=started)
            else:  # only a worker of this project may try without end
                outcome = outcome_of_foreign_failure(error, self._marker(call.id))
                outcome = replace(outcome, counted=outcome.counted or call.op != "do", breaker=None)
            is_last = not call.local and outcome.kind == "unknown" and is_final_failure(error)
            if outcome.kind in ("unknown", "rejected") and outcome.attempt is None and not is_last:
                outcome = replace(outcome, attempt=attempts_made(error, _retry_policy(call).maximum_attempts))
        except asyncio.CancelledError:
            if call.id not in self._cancelling:
                raise  # the workflow run itself is being evicted
            # The SDK loses a result that arrives with the cancel, and that of a local activity in its backoff.
            outcome = Outcome("unknown", failure=Failure("Cancelled", "the attempt was cancelled"))
        else:
            if is_ours:
                outcome = outcome_of_answer(call.action, payload, value, self._marker(call.id), call=started)
            else:
                outcome = outcome_of_foreign_answer(value, self._marker(call.id))
        self._running.pop(call.id, None)
        self._cancelling.discard(call.id)
        (self._not_performed.add if outcome.not_started else self._not_performed.discard)(call.id)
        return outcome, _counted(call, outcome)

    async def _wait_until_due(self, call: Call) -> None:
        """Wait for the call's delay, or until it is cancelled."""
        await wait_until(
            lambda: call.id in self._cancelled, timeout=call.delay, summary=limit_summary(f"retry {call.summary}")
        )

    def _marker(self, id: str) -> str:
        self._answers += 1
        return f"{id} {self._answers}"

    def _activity_id(self, id: str) -> str:
        """A unique activity id: Temporal rejects a second activity with the id of one that is still open."""
        times = self._abandoned.get(id, 0)
        return f"{id}~{times}" if times else id

    def _start_activity(self, call: Call, payload: Payload, heartbeat: float | None) -> workflow.ActivityHandle[Any]:
        with for_any_worker(call.id in self._not_performed):
            handle = self._running[call.id] = _start_activity(
                call, RawValue(payload), self._activity_id(call.id), heartbeat
            )
        return handle

    async def _await_worker(
        self,
        handle: workflow.ActivityHandle[Any],
        call: Call,
        start_again: Callable[[], workflow.ActivityHandle[Any]],
    ) -> Any:
        """Await the result of a call. While no worker takes it, it waits without limit, unless its author sets one."""
        while True:
            try:
                return await self._await_result(handle, call)
            except ActivityError as error:
                is_limited = call.retry.give_up_after is not None or call.execution == "local"
                if is_limited or call.id in self._cancelled or not _waited(error):
                    raise
            handle = start_again()

    async def _await_result(self, handle: workflow.ActivityHandle[Any], call: Call) -> Any:
        """Await the result of an activity. Raises CancelledError when it is abandoned."""
        grace = _grace(call)
        if grace is None:
            return await handle
        waiting = self._abandonable[call.id] = _Abandonable(grace, asyncio.get_running_loop().create_future())
        await workflow.wait([handle, waiting.over], return_when=asyncio.FIRST_COMPLETED)
        del self._abandonable[call.id]
        self._context.tasks.cancel(_grace_timer(call.id))
        if handle.done():
            return handle.result()
        self._abandoned[call.id] = self._abandoned.get(call.id, 0) + 1
        handle.add_done_callback(lambda late: late.cancelled() or late.exception())  # avoids "never retrieved" warnings
        raise asyncio.CancelledError

    async def _end_grace(self, id: str, grace: timedelta) -> None:
        await workflow.sleep(grace, summary=limit_summary(f"wait for the reply to {id}"))
        self._context.tasks.discard(_grace_timer(id))
        if id in self._abandonable:
            self._abandonable[id].over.set_result(None)

    async def _cancel_activity(self, id: str) -> None:
        """Cancel an attempt, unless its result arrived in the same workflow task as the reason to cancel.

        Cancelling an activity whose result has arrived but has not been read loses the result: the SDK then raises a
        bare CancelledError. So all results that have arrived are processed first.
        """
        for _ in range(EVENT_LOOP_TURNS):
            await asyncio.sleep(0)
        self._context.tasks.discard(f"cancel {id}")
        handle = self._running.get(id)
        if handle is not None:
            self._cancelling.add(id)
            handle.cancel()
            waiting = self._abandonable.get(id)
            if waiting is not None and waiting.grace:
                self._context.tasks.start(_grace_timer(id), self._end_grace(id, waiting.grace))
            elif waiting is not None and not waiting.over.done():
                waiting.over.set_result(None)

    def _end(self, id: str, outcome: Outcome, attempts: int | None) -> None:
        self._context.tasks.discard(id)
        self.origin.ended(id, done=outcome.kind == "done")
        self._context.report(CallEnded(id=id, outcome=outcome, at=workflow.time(), attempts=attempts))


def _unstarted(failure: Failure) -> Ended:
    return Outcome("failed", failure=failure, attempt=1, retryable=False), 0


def _counted(call: Call, outcome: Outcome) -> int | None:
    """The number of attempts of the call that count; None when it is not known."""
    if outcome.not_started:
        return 0 if _is_first_attempt(call, outcome) else None
    if outcome.attempt is None:
        return None
    return outcome.attempt + outcome.repeats - (0 if outcome.counted else 1)


def _is_first_attempt(call: Call, outcome: Outcome) -> bool:
    """True if no attempt is before the one with this outcome, which found no worker with the action.

    Temporal reports the last attempt only, without its number. A worker of the project signs the number. Without a
    signature anybody may have ended an attempt that has had its effect, and a repeated workflow task repeats local
    attempts; a worker of another project is believed about the only attempt it may make.
    """
    if call.execution == "local":
        return False
    return outcome.attempt == 1 or (not call.local and _retry_policy(call).maximum_attempts == 1)


def _grace_timer(id: str) -> str:
    return f"timer grace of {id}"


def _grace(call: Call) -> timedelta | None:
    """How long after its cancel an activity is awaited; None: until its end, which says what to undo.

    Nothing depends on the end of a read. No worker holds the attempt of a request, and the undo of its command may be
    sent at any time. A local activity ends with its workflow task.
    """
    if call.execution == "local" or not call.cancellable:
        return None
    if call.reads:
        return timedelta(0)
    return REPLY_GRACE if call.action == REQUEST and call.op == "do" else None


def _beats(call: Call) -> bool:
    """True when the worker itself sends heartbeats, so that its death is detected before the attempt times out.

    False with `heartbeat` in the definition, where heartbeats mean progress of the action; and without a guard, where
    an attempt that is still running and the next one could both have an effect.
    """
    return (
        call.guard is not None
        and call.local
        and call.execution == "remote"
        and call.heartbeat is None
        and call.retry.max_attempts > FEW_ATTEMPTS
        # Otherwise the timeout is as fast, and Temporal's Web UI flags the heartbeat.
        and call.timeout >= GUARDED_HEARTBEAT_TIMEOUT + 1.0
        and not call.at_most_once
        and call.action != REQUEST
    )


def _retry_policy(call: Call) -> RetryPolicy:
    retry = exponential(call.retry)
    return RetryPolicy(
        initial_interval=timedelta(seconds=retry.initial_interval),
        backoff_coefficient=retry.backoff_coefficient,
        maximum_interval=timedelta(seconds=max(retry.max_interval, retry.initial_interval)),
        maximum_attempts=1 if call.at_most_once and not call.local else max(retry.max_attempts, 1),
    )


def _time_limit(call: Call) -> float | None:
    """Seconds after which no further attempt of the call is made; None: the number of attempts alone ends it.

    Temporal lets the failure of an attempt choose the delay before the next one, whatever the retry policy says. With
    that a worker of another project may add :data:`MAX_RETRY_DELAY` to what all attempts may take.
    """
    policy = _retry_policy(call)
    if call.retry.give_up_after is not None or call.local or policy.maximum_attempts == 1:
        return call.retry.give_up_after
    assert policy.maximum_interval is not None
    longest = policy.maximum_attempts * (call.timeout + policy.maximum_interval.total_seconds())
    return min(longest + MAX_RETRY_DELAY, MAX_DURATION)


def _waited(error: ActivityError) -> bool:
    """True if the time of a call ended while no worker had its attempt."""
    return isinstance(error.cause, ActivityTimeoutError) and not error.started_event_id


def _start_activity(
    call: Call, argument: RawValue, activity_id: str, heartbeat: float | None
) -> workflow.ActivityHandle[Any]:
    policy = _retry_policy(call)
    limit = _time_limit(call)
    give_up = None if limit is None else timedelta(seconds=limit)
    timeout = timedelta(seconds=call.timeout)
    if call.execution == "local":
        return workflow.start_local_activity(
            call.action,
            argument,
            result_type=RawValue,
            activity_id=activity_id,
            summary=limit_summary(call.summary),
            start_to_close_timeout=timeout,
            schedule_to_close_timeout=give_up,
            retry_policy=policy,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
    return workflow.start_activity(
        call.action,
        argument,
        result_type=RawValue,
        activity_id=activity_id,
        summary=limit_summary(call.summary),
        task_queue=call.task_queue,
        start_to_close_timeout=timeout,
        schedule_to_close_timeout=give_up,
        heartbeat_timeout=None if heartbeat is None else timedelta(seconds=heartbeat),
        retry_policy=policy,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        priority=Priority(priority_key=call.priority, fairness_key=call.fairness_key)
        if call.priority is not None or call.fairness_key is not None
        else Priority.default,
    )


def chunk_heartbeat(call: Call, shortest: timedelta) -> timedelta:
    """The heartbeat timeout of a chunk of calls like this one.

    With few attempts a worker may be silent for as long as a single saga would wait: it may only be busy.
    """
    return shortest if call.retry.max_attempts > FEW_ATTEMPTS else max(shortest, timedelta(seconds=call.timeout))
