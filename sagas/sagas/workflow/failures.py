"""Converts Temporal failures to outcomes, and the end of a saga to a Temporal failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    CancelledError,
    FailureError,
    RetryState,
    TimeoutError,
    TimeoutType,
)

from sagas.protocol.foreign_view import read_foreign_view
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import REFUSED_TYPE, decode_failure
from sagas.protocol.saga_view import ReasonView, SagaView
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS
from sagas.text.json_values import encodable
from sagas.text.shortening import shorten_middle
from sagas.workflow.json_payloads import failure_details, raw_json

if TYPE_CHECKING:
    from sagas.protocol.messages import ChildState, Finish

_TIMEOUTS: Mapping[TimeoutType | None, str] = {
    TimeoutType.START_TO_CLOSE: "no response within the `timeout` of the attempt",
    TimeoutType.SCHEDULE_TO_CLOSE: "no response within the total time of all attempts",
    TimeoutType.SCHEDULE_TO_START: "no worker has started the attempt in time",
    TimeoutType.HEARTBEAT: "no heartbeat in time: the worker of the attempt may be dead",
}


class SagaApplicationError(ApplicationError):
    """A failure whose message stands alone: Temporal would add where in the engine it was raised.

    The message may have text from data: it is bounded, and what UTF-8 cannot express becomes `?`, or the failure would
    arrive empty.
    """

    def __init__(self, message: str, *details: Any, **options: Any) -> None:
        super().__init__(encodable(shorten_middle(message, MAX_MESSAGE_CHARACTERS)), *details, **options)

    @property
    def __traceback__(self) -> None:
        return None

    @__traceback__.setter
    def __traceback__(self, value: object) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Python keeps the real traceback for the log; only the failure sent to Temporal has none."""


class UnexpectedError(SagaApplicationError):
    """An unforeseen error of an activity, so the log has its traceback."""


def refused_error(message: str) -> SagaApplicationError:
    """The failure for a refused start or message: nothing was run or changed."""
    return SagaApplicationError(
        message, type=REFUSED_TYPE, non_retryable=True, category=ApplicationErrorCategory.BENIGN
    )


def closing_error(finish: Finish, document: Mapping[str, Any]) -> SagaApplicationError:
    """The closing failure of a saga that did not complete; its details contain the JSON of the view."""
    return SagaApplicationError(
        _closing_message(finish, document.get("reason") or {}),
        raw_json(document),
        type="SagaCompensated" if finish.state == "COMPENSATED" else "SagaResidue",
        non_retryable=True,
        category=ApplicationErrorCategory.BENIGN,
    )


def _closing_message(finish: Finish, reason: Mapping[str, Any]) -> str:
    what = "undone" if finish.state == "COMPENSATED" else "closed with residue"
    where = f" at {reason['step']}" if reason.get("step") else ""
    return f"{what}: {reason.get('kind', 'unknown')}{where}: {reason.get('message') or 'no reason was given'}"


def activity_failure(error: FailureError) -> BaseException | None:
    """Return what has failed in an activity. A local activity's failure is not wrapped in an ActivityError."""
    return error.cause if isinstance(error, ActivityError) else error


def activity_message(error: FailureError) -> str:
    """The error message of the activity itself."""
    cause = activity_failure(error)
    return cause.message if isinstance(cause, ApplicationError) else str(cause or error)


def activity_outcome(error: FailureError) -> Outcome:
    """The outcome of an activity's last attempt."""
    cause = activity_failure(error)
    if isinstance(cause, ApplicationError):
        return decode_failure(cause.type, cause.message, failure_details(cause))
    if isinstance(cause, TimeoutError):
        return Outcome("unknown", failure=Failure("Timeout", _TIMEOUTS.get(cause.type, "no response in time")))
    if isinstance(cause, CancelledError):
        return Outcome("unknown", failure=Failure("Cancelled", "the attempt was cancelled"))
    return Outcome("unknown", failure=Failure(type(cause).__name__, str(cause or error)))


def is_final_failure(error: FailureError) -> bool:
    """True for a failure after which Temporal repeats nothing, whatever the retry policy."""
    cause = activity_failure(error)
    return isinstance(cause, ApplicationError) and cause.non_retryable


def attempts_made(error: FailureError, maximum: int) -> int | None:
    """The number of attempts of an activity; None if it ended before its ``maximum``, and nothing has told."""
    used_up = isinstance(error, ActivityError) and error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED
    return maximum if used_up or maximum == 1 else None


def child_result(cause: BaseException | None, saga_id: str, saga: str) -> tuple[ChildState, SagaView | None]:
    """The state and the view of a nested saga that did not complete, from its closing failure."""
    if isinstance(cause, ApplicationError):
        view = read_foreign_view(failure_details(cause), saga_id)
        if cause.type == "SagaCompensated":
            return "COMPENSATED", view
        if cause.type == "SagaResidue":
            return "RESIDUE", view
        if cause.type == REFUSED_TYPE:
            # No step has run, or, for an undo, no step was undone.
            return "REFUSED", refused_view(saga_id, saga, cause.message)
    if isinstance(cause, CancelledError):
        # The child closes as Canceled only after a native cancel of the child itself, and after its rollback.
        reason = ReasonView(kind="cancelled", message=str(cause))
        return "COMPENSATED", SagaView(id=saga_id, saga=saga, state="COMPENSATED", reason=reason)
    return "TERMINATED", None


def refused_view(saga_id: str, saga: str, message: str) -> SagaView:
    """The view of a nested saga that was refused: no step of it has run."""
    reason = ReasonView(kind="rejected", type=REFUSED_TYPE, message=message, quotes=True)
    return SagaView(id=saga_id, saga=saga, state="FAILED", reason=reason)
