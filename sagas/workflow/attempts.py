"""Calls of the machine as activities, remote or local, and their ends as its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority, RawValue, RetryPolicy
from temporalio.exceptions import FailureError

from sagas.machine.arguments import DefinitionFault
from sagas.machine.commands import Call
from sagas.machine.events import CallEnded
from sagas.outcomes import Failure, Outcome
from sagas.wire import UNDO_SUFFIX, decode_done, encode_call
from sagas.workflow.failures import outcome_of
from sagas.workflow.limits import Pace, one_line, to_payload
from sagas.workflow.work import Work

TURNS = 8
"""Turns of the event loop from an activity's result to the code that awaits it; it takes four."""


class Attempts:
    """The activities of one run."""

    def __init__(self, work: Work, pace: Pace, ended: Callable[[CallEnded], None]) -> None:
        self._work = work
        self._pace = pace
        self._ended = ended
        self._running: dict[str, workflow.ActivityHandle[Any]] = {}
        self._doomed: set[str] = set()
        self._asked_to_stop: set[str] = set()

    def start(self, call: Call) -> None:
        """Begin the call; its end comes as an event."""
        self._work.spawn(call.id, self._make(call))

    def cancel(self, id: str) -> None:
        """Ask a call to stop, or never start it; its end comes all the same."""
        if id in self._running:
            self._work.spawn(f"cancel {id}", self._stop(id))
        elif id in self._work:
            self._doomed.add(id)

    async def _make(self, call: Call) -> None:
        argument = encode_call(call, workflow.info().workflow_id.removesuffix(UNDO_SUFFIX))
        try:
            payload = to_payload(argument, f"the arguments of {call.action}")
        except DefinitionFault as error:
            self._end_unstarted(call.id, Failure("definition", str(error)))
            return
        await self._pace.keep(len(payload.data))
        if call.id in self._doomed:
            self._doomed.discard(call.id)
            self._end_unstarted(call.id, Failure("Cancelled", "it was cancelled before it started"))
            return
        try:
            handle = _start(call, RawValue(payload))
            self._running[call.id] = handle
            value = await handle
        except FailureError as error:
            outcome = outcome_of(error)
        except asyncio.CancelledError:
            if call.id not in self._asked_to_stop:
                raise  # the run itself is being put away
            # The SDK loses an end that comes with the cancel, and a local attempt's in its back-off. Nobody knows.
            outcome = Outcome("unknown", failure=Failure("Cancelled", "the attempt was cancelled"))
        else:
            outcome = decode_done(value)
        self._running.pop(call.id, None)
        self._asked_to_stop.discard(call.id)
        self._end(call.id, outcome, 0 if outcome.not_started else outcome.attempt)

    async def _stop(self, id: str) -> None:
        """Cancel an attempt, unless its end has come with the very task that leads to the cancel.

        Cancelling an activity whose result has arrived but was not read yet loses the result: the SDK then raises a
        bare CancelledError. So everything that has arrived is heard first.
        """
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._work.done(f"cancel {id}")
        handle = self._running.get(id)
        if handle is not None:
            self._asked_to_stop.add(id)
            handle.cancel()

    def _end_unstarted(self, id: str, failure: Failure) -> None:
        self._end(id, Outcome("failed", failure=failure, attempt=1, retryable=False), 0)

    def _end(self, id: str, outcome: Outcome, attempts: int | None) -> None:
        self._work.done(id)
        self._ended(CallEnded(id=id, outcome=outcome, at=workflow.time(), attempts=attempts))


def _start(call: Call, argument: RawValue) -> workflow.ActivityHandle[Any]:
    retry = call.retry
    policy = RetryPolicy(
        initial_interval=timedelta(seconds=retry.initial_interval),
        backoff_coefficient=retry.backoff_coefficient,
        maximum_interval=timedelta(seconds=max(retry.max_interval, retry.initial_interval)),
        maximum_attempts=1 if call.at_most_once and not call.local else max(retry.max_attempts, 1),
    )
    give_up = None if retry.give_up_after is None else timedelta(seconds=retry.give_up_after)
    timeout = timedelta(seconds=call.timeout)
    if call.execution == "local":
        return workflow.start_local_activity(
            call.action,
            argument,
            activity_id=call.id,
            summary=one_line(call.summary),
            start_to_close_timeout=timeout,
            schedule_to_close_timeout=give_up,
            retry_policy=policy,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
    return workflow.start_activity(
        call.action,
        argument,
        activity_id=call.id,
        summary=one_line(call.summary),
        task_queue=call.task_queue,
        start_to_close_timeout=timeout,
        schedule_to_close_timeout=give_up,
        heartbeat_timeout=None if call.heartbeat is None else timedelta(seconds=call.heartbeat),
        retry_policy=policy,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        priority=Priority(priority_key=call.priority, fairness_key=call.fairness_key)
        if call.priority is not None or call.fairness_key is not None
        else Priority.default,
    )
