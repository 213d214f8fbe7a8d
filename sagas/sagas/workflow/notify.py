"""Notifications: each is a run of its own, which tries at its intervals and outlives the saga that began it.

It ends Completed when it was delivered and Failed when it was given up, so that the Web UI shows what nobody has heard.
Its memo says at any time how it stands, so `saga show` needs no worker to tell it. The saga only waits until Temporal
has taken the run on: otherwise the end of the saga could come before the beginning of its notification.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError

from sagas.machine.arguments import DefinitionFault
from sagas.machine.commands import Notify
from sagas.machine.moments import iso
from sagas.outcomes import Failure, Outcome
from sagas.wire import AGAIN_SIGNAL, ENVELOPE, NOTIFICATION_MEMO, NOTIFY, UNDO_SUFFIX, decode_done, encode_call
from sagas.workflow.failures import Sentence, outcome_of
from sagas.workflow.limits import Pace, one_line, to_payload
from sagas.workflow.work import Work

MESSAGE_LIMIT = 500
"""Characters of a failure that are kept in the memo."""

_BEGINNING = {"state": "PENDING", "attempts": 0, "error": None, "next_attempt_at": None, "ended_at": None}


class Notices:
    """The notifications that one run of a saga begins."""

    def __init__(self, work: Work, pace: Pace) -> None:
        self._work = work
        self._pace = pace
        self._beginning: set[str] = set()

    @property
    def beginning(self) -> bool:
        """Temporal has not taken all of them on yet."""
        return bool(self._beginning)

    def send(self, command: Notify) -> None:
        self._beginning.add(command.id)
        self._work.spawn(f"notify {command.id}", self._begin(command))

    async def _begin(self, command: Notify) -> None:
        order = _order(command)
        try:
            payload = to_payload(order, "what it tells")
        except DefinitionFault as error:
            payload = to_payload({**order, "call": None, "problem": str(error)}, "what it tells")
        await self._pace.keep(len(payload.data))
        try:
            await workflow.start_child_workflow(
                NOTIFY,
                RawValue(payload),
                id=command.run,
                static_summary=one_line(f"✉ {command.uses}: {order['saga_id']} is {command.moment}"),
                memo={NOTIFICATION_MEMO: {**_BEGINNING, "saga_id": order["saga_id"]}},
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("the notification %s is on its way already", command.run)
        self._beginning.discard(command.id)
        self._work.done(f"notify {command.id}")


def _order(command: Notify) -> dict[str, Any]:
    """The input of the run that delivers it: all it needs, for the saga may be gone by then."""
    info, call = workflow.info(), command.call
    saga_id = info.workflow_id.removesuffix(UNDO_SUFFIX)
    made = None
    if call is not None:
        argument = encode_call(call, saga_id)
        argument[ENVELOPE]["saga"] = info.workflow_type
        made = {"argument": argument, "timeout": call.timeout, "task_queue": call.task_queue, "summary": call.summary}
    return {
        "saga": info.workflow_type,
        "saga_id": saga_id,
        "notification": command.id,
        "when": command.moment,
        "uses": command.uses,
        "intervals": list(command.intervals),
        "call": made,
        "problem": command.problem,
    }


@workflow.defn(name=NOTIFY)
class NotifyWorkflow:
    """Delivers one notification, or gives it up."""

    def __init__(self) -> None:
        self._wanted_now = False
        self._saga = ""
        self._status: dict[str, Any] = dict(_BEGINNING)

    @property
    def ended(self) -> tuple[str, str] | None:
        """The saga's name and DELIVERED or EXHAUSTED, for the metrics; None while it is under way."""
        return (self._saga, self._status["state"]) if self._status["ended_at"] is not None else None

    @workflow.run
    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        self._saga, self._status["saga_id"] = order["saga"], order["saga_id"]
        failure = Failure("definition", order.get("problem") or "")
        for wait in (0.0, *order["intervals"]) if order["call"] is not None else ():
            if self._status["attempts"]:
                await self._rest(order, wait, failure)
            outcome = await self._attempt(order)
            if outcome.kind == "done":
                return self._end(order, "DELIVERED", None)
            failure = outcome.failure or Failure("Unknown", "no reason was given")
            if outcome.kind in ("rejected", "late"):
                break  # the receiver itself says that it wants no more of it
        self._end(order, "EXHAUSTED", failure)
        attempts = self._status["attempts"]
        raise Sentence(
            f"given up after {attempts} attempt{'' if attempts == 1 else 's'}: {failure.message[:MESSAGE_LIMIT]}",
            type="NotificationExhausted",
            non_retryable=True,
        )

    @workflow.signal(name=AGAIN_SIGNAL, description="Do not wait: make the next attempt now.")
    def again(self) -> None:
        self._wanted_now = True

    async def _attempt(self, order: dict[str, Any]) -> Outcome:
        call, made = order["call"], self._status["attempts"]
        self._status["attempts"] = made + 1
        argument = {**call["argument"], ENVELOPE: {**call["argument"][ENVELOPE], "earlier_attempts": made}}
        try:
            value = await workflow.execute_activity(
                order["uses"],
                argument,
                activity_id=f"attempt {made + 1}",
                summary=one_line(call["summary"]),
                task_queue=call["task_queue"],
                start_to_close_timeout=timedelta(seconds=call["timeout"]),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except FailureError as error:
            return outcome_of(error)
        return decode_done(value)

    async def _rest(self, order: dict[str, Any], seconds: float, failure: Failure) -> None:
        """Wait for the next attempt, unless a person wants it now."""
        self._tell(order, "PENDING", failure, next_attempt_at=iso(workflow.time() + seconds))
        self._wanted_now = False
        try:
            await workflow.wait_condition(
                lambda: self._wanted_now,
                timeout=timedelta(seconds=seconds),
                timeout_summary=one_line(f"tries again: {failure.message}"),
            )
        except TimeoutError:
            return

    def _end(self, order: dict[str, Any], state: str, failure: Failure | None) -> dict[str, Any]:
        self._tell(order, state, failure, ended_at=iso(workflow.time()))
        if failure is not None:
            who = f"{order['saga_id']}: {order['notification']}"
            workflow.logger.warning("%s is EXHAUSTED: %s", who, failure.message[:MESSAGE_LIMIT])
        return {"state": state, "attempts": self._status["attempts"]}

    def _tell(self, order: dict[str, Any], state: str, failure: Failure | None, **times: str | None) -> None:
        error = None if failure is None else {"type": failure.type, "message": failure.message[:MESSAGE_LIMIT]}
        self._status.update(state=state, error=error, **{"next_attempt_at": None, "ended_at": None, **times})
        workflow.upsert_memo({NOTIFICATION_MEMO: dict(self._status)})
        told = f"✉ **{order['saga_id']}** is **{order['when']}**: {state}, attempt {self._status['attempts']}"
        workflow.set_current_details(told if error is None else f"{told}\n\n{error['message']}")
