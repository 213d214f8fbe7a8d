"""The errors by which Temporal learns how an attempt has ended, and when to repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio.exceptions import ApplicationErrorCategory

from saga_activities.reported_failure import reported_failure
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, encode_failure, encode_result
from sagas.workflow.failures import SagaApplicationError
from sagas.workflow.json_payloads import raw_json


def not_performed_error(message: str, number: int, type: str = "NotFoundError") -> SagaApplicationError:
    """The error of an attempt that was not made: its action is not registered, or its call not signed.

    The saga is notified at once, because Temporal would count the attempt, and calls the action again later. If it is
    not the first attempt, those before it count, and may have had an effect: the outcome is unknown.
    """
    details = {"outcome": "unknown", "attempt": number, "counted": False, "details": {}}
    return SagaApplicationError(message, raw_json(details), type=type, non_retryable=True)


def temporal_result(outcome: Outcome, invocation: Invocation, number: int) -> Any:
    """Return the result or raise the error that Temporal records."""
    if outcome.kind == "done":
        return encode_result(outcome, number)
    raise to_application_error(
        outcome,
        number,
        invocation.intervals,
        is_repeated=_is_repeated_rejection(outcome, invocation, number),
        is_returned=invocation.returns_failure and outcome.kind == "failed" and number == 1,
    ) from None


def _is_repeated_rejection(outcome: Outcome, invocation: Invocation, number: int) -> bool:
    """True for a rejection that Temporal repeats: an attempt before it may have had an effect, or be in progress."""
    definite = invocation.guard is not None or invocation.remembers_rejections
    return outcome.kind == "rejected" and not definite and number > 1 and not outcome.nothing_before


def to_application_error(
    outcome: Outcome,
    number: int,
    intervals: Sequence[float] = (),
    *,
    is_repeated: bool = False,
    is_returned: bool = False,
) -> SagaApplicationError:
    """The error with which an attempt that is not done ends; ``intervals``: seconds before the attempts 2, 3 …

    ``is_repeated``: a rejection that is repeated as an unknown attempt is. ``is_returned``: a failure that the saga
    repeats, and not Temporal. Expected outcomes are benign: no stack trace in the log for a rejection or a timeout.
    """
    # Other attempts are also returned to the saga at once where Temporal would count them, and the saga does not.
    hopeless = outcome.kind in ("rejected", "late") or not outcome.retryable
    final = (hopeless and not is_repeated) or is_returned or not (outcome.counted and outcome.charged)
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
