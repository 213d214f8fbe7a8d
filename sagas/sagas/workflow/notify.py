"""Delivery of notifications: each is an abandoned child workflow with its own retries, and may outlive its saga.

It closes as Completed when delivered and as Failed when given up, so that the Web UI shows undelivered notifications.
Its memo holds the delivery status, so `saga show` needs no worker to query it. The saga only waits until Temporal has
started the child workflow: otherwise the saga could close first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import FailureError

from sagas.actions.envelope import ENVELOPE
from sagas.builtins.signal_names import RETRY_NOTIFICATION_SIGNAL
from sagas.definition.model import Operation
from sagas.definition.times import format_timestamp
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.remaining_calls import RemainingCall
from sagas.protocol.messages import Notify
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import (
    NOTIFICATION_MEMO,
    NOTIFICATION_WORKFLOW,
    UNDO_SUFFIX,
    decode_call,
    encode_call,
    is_local_call,
)
from sagas.text.exact_json import decode_json
from sagas.text.markdown import markdown_text
from sagas.text.shell import saga_command
from sagas.workflow.abandoned_runs import AbandonedRun
from sagas.workflow.client_fields import LONGEST_NAME, LONGEST_WAIT, number, optional_text, read_client_value, text
from sagas.workflow.failures import SagaApplicationError, activity_outcome, refused_error
from sagas.workflow.json_payloads import NO_INPUT, raw_json
from sagas.workflow.limits import to_payload
from sagas.workflow.run_start import refuse_foreign_id
from sagas.workflow.run_trust import RunTrust, is_signed_message
from sagas.workflow.signed_answers import is_undecoded_failure, outcome_of_foreign_answer
from sagas.workflow.summaries import limit_summary, run_summary
from sagas.workflow.task_set import CommandContext
from sagas.workflow.undecoded import UNDECODED_ANSWER
from sagas.workflow.waits import wait_until

MESSAGE_LIMIT = 500
"""Maximum characters of a failure message in the memo."""

_INITIAL_STATUS = {"state": "PENDING", "attempts": 0, "error": None, "next_attempt_at": None, "ended_at": None}


class Notifications:
    """Starts the notifications of one run of a saga."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._starting: set[str] = set()

    @property
    def is_starting(self) -> bool:
        """True until Temporal has started all of them."""
        return bool(self._starting)

    def send(self, command: Notify) -> None:
        self._starting.add(command.id)
        self._context.tasks.start(f"notify {command.id}", self._start(command))

    async def _start(self, command: Notify) -> None:
        order = _delivery_input(command)
        try:
            payload = to_payload(order, "the content of the notification")
        except DefinitionError as error:
            payload = to_payload({**order, "call": None, "problem": str(error)}, "the content of the notification")
        saga_id = order["saga_id"]
        run = AbandonedRun(
            NOTIFICATION_WORKFLOW,
            "notification",
            command.workflow_id,
            run_summary(f"✉ {command.uses}: {saga_id} is {command.milestone}"),
            {NOTIFICATION_MEMO: {**_INITIAL_STATUS, "saga_id": saga_id}},
        )
        problem = await run.start(self._context.throttle, decode_json(payload.data))
        self._end(command, None if problem is None else f"notification {command.id} not sent: {problem}")

    def _end(self, command: Notify, problem: str | None = None) -> None:
        if problem is not None:
            workflow.logger.warning(problem)
        self._starting.discard(command.id)
        self._context.tasks.discard(f"notify {command.id}")


def _delivery_input(command: Notify) -> dict[str, Any]:
    """The input of the delivering run. It is self-contained, because the saga may have closed by then."""
    info, call = workflow.info(), command.call
    saga_id = info.workflow_id.removesuffix(UNDO_SUFFIX)
    call_data = None
    if call is not None:
        argument = encode_call(call, saga_id)
        argument[ENVELOPE]["saga"] = info.workflow_type
        call_data = {
            "argument": argument,
            "timeout": call.timeout,
            "task_queue": call.task_queue,
            "summary": call.summary,
        }
    return {
        "saga": info.workflow_type,
        "saga_id": saga_id,
        "notification": command.id,
        "when": command.milestone,
        "uses": command.uses,
        "intervals": list(command.intervals),
        "call": call_data,
        "problem": command.problem,
    }


def _read_order(input: RawValue) -> dict[str, Any]:
    """The input of the delivering run, which any client may have started. Raises SagaApplicationError."""
    expected = f"the input of {NOTIFICATION_WORKFLOW} is not a notification; start the saga"
    return read_client_value(expected, input.payload, _checked_order)


def _checked_order(order: Any) -> dict[str, Any]:
    for field in ("saga", "saga_id", "notification", "when"):
        text(order[field])
    text(order["uses"], longest=LONGEST_NAME)
    optional_text(order.get("problem"))
    for seconds in (*order["intervals"], *(() if (call := order["call"]) is None else (call["timeout"],))):
        number(seconds, 0, LONGEST_WAIT)
    if call is not None:
        text(call["summary"])
        if call["timeout"] <= 0 or not isinstance(call["argument"][ENVELOPE], dict):
            raise ValueError("no call")
        if call["task_queue"] is not None and text(call["task_queue"], longest=LONGEST_NAME).startswith("/"):
            raise ValueError("a task queue of Temporal's own")
    return order


@workflow.defn(name=NOTIFICATION_WORKFLOW)
class NotifyWorkflow:
    """Delivers one notification, or gives it up."""

    def __init__(self) -> None:
        self.trust: RunTrust | None = None
        """Set by the worker before the run."""
        self._retry_requested = False
        self._saga = ""
        self._order: dict[str, Any] | None = None
        self._status: dict[str, Any] = dict(_INITIAL_STATUS)

    @property
    def ended(self) -> tuple[str, str] | None:
        """The saga's name and DELIVERED or EXHAUSTED, for metrics; None while delivery is in progress."""
        return (self._saga, self._status["state"]) if self._status["ended_at"] is not None else None

    def remaining_calls(self) -> list[RemainingCall]:
        """The call with which it is delivered; none of a worker in another language."""
        order, call = self._order, None if self._order is None else self._order["call"]
        if order is None or call is None or not is_local_call(call["argument"]):
            return []
        invocation = decode_call(order["uses"], call["argument"])
        connection = None if invocation.guard is None else invocation.guard.connection
        operation = Operation(order["uses"], connection=connection)
        return [RemainingCall(order["notification"], "notify", operation, invocation.arguments, recorded=True)]

    @workflow.run
    async def run(self, input: RawValue = NO_INPUT) -> dict[str, Any]:
        try:
            refuse_foreign_id(needs_owner=True)
            order = _read_order(input)
            self._refuse_forged(order)
        except SagaApplicationError:
            workflow.upsert_memo({NOTIFICATION_MEMO: None})  # the status of a delivery, which this is not
            raise
        self._saga, self._status["saga_id"], self._order = order["saga"], order["saga_id"], order
        failure = Failure("definition", order.get("problem") or "")
        for wait in (0.0, *map(float, order["intervals"])) if order["call"] is not None else ():
            if self._status["attempts"]:
                await self._wait_for_next_attempt(order, wait, failure)
            outcome = await self._attempt(order)
            if outcome.kind == "done":
                return self._finish(order, "DELIVERED", None)
            failure = outcome.failure or Failure("Unknown", "no reason was given")
            if outcome.kind in ("rejected", "late") or (outcome.kind == "failed" and not outcome.retryable):
                break  # the receiver refuses it, or it can never be made: a retry cannot help
        self._finish(order, "EXHAUSTED", failure)
        attempts = self._status["attempts"]
        again = saga_command("notify", order["saga_id"], order["notification"], again=True)
        raise SagaApplicationError(
            f"the notification is given up after {attempts} attempt{'' if attempts == 1 else 's'}:"
            f" {failure.message[:MESSAGE_LIMIT]}; `{again}` sends it again",
            type="NotificationExhausted",
            non_retryable=True,
        )

    @workflow.signal(name=RETRY_NOTIFICATION_SIGNAL, description="Make the next attempt now.")
    def retry_now(self) -> None:
        self._retry_requested = True

    def _refuse_forged(self, order: dict[str, Any]) -> None:
        """Raise SagaApplicationError unless a saga of this project has signed this input for this run: it chooses the
        action and its arguments, and a parent may be any workflow, or a saga that was made to start this one.
        """
        if not is_signed_message("notification", [workflow.info().workflow_id], order):
            raise refused_error(
                "the notification is not signed with the key of the project for this id; only one that a saga of this "
                "project has sent can be sent again, by saga notify --again"
            )

    async def _attempt(self, order: dict[str, Any]) -> Outcome:
        call, attempts = order["call"], self._status["attempts"]
        self._status["attempts"] = attempts + 1
        argument = {**call["argument"], ENVELOPE: {**call["argument"][ENVELOPE], "earlier_attempts": attempts}}
        marker = f"attempt {attempts + 1}"
        try:
            value = await workflow.execute_activity(
                order["uses"],
                raw_json(argument),
                result_type=RawValue,
                activity_id=marker,
                summary=limit_summary(call["summary"]),
                task_queue=call["task_queue"],
                start_to_close_timeout=timedelta(seconds=float(call["timeout"])),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except FailureError as error:
            if is_undecoded_failure(error, marker):
                return Outcome("unknown", failure=UNDECODED_ANSWER)
            return activity_outcome(error)
        return outcome_of_foreign_answer(value, marker)

    async def _wait_for_next_attempt(self, order: dict[str, Any], seconds: float, failure: Failure) -> None:
        """Wait for the next attempt, or until an operator requests it."""
        self._publish_status(order, "PENDING", failure, next_attempt_at=format_timestamp(workflow.time() + seconds))
        self._retry_requested = False
        await wait_until(
            lambda: self._retry_requested, timeout=seconds, summary=limit_summary(f"retried: {failure.message}")
        )

    def _finish(self, order: dict[str, Any], state: str, failure: Failure | None) -> dict[str, Any]:
        self._publish_status(order, state, failure, ended_at=format_timestamp(workflow.time()))
        if failure is not None:
            who = f"{order['saga_id']}: {order['notification']}"
            workflow.logger.warning("notification %s EXHAUSTED: %s", who, failure.message[:MESSAGE_LIMIT])
        return {"state": state, "attempts": self._status["attempts"]}

    def _publish_status(self, order: dict[str, Any], state: str, failure: Failure | None, **times: str | None) -> None:
        error = None if failure is None else {"type": failure.type, "message": failure.message[:MESSAGE_LIMIT]}
        self._status.update(state=state, error=error, **{"next_attempt_at": None, "ended_at": None, **times})
        workflow.upsert_memo({NOTIFICATION_MEMO: dict(self._status)})
        about = f"✉ **{markdown_text(order['saga_id'])}** is **{order['when']}**"
        details = f"{about}: {state}, attempt {self._status['attempts']}"
        workflow.set_current_details(details if error is None else f"{details}\n\n{markdown_text(error['message'])}")
