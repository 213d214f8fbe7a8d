"""How an attempt ended that was rolled back, in the words of an :class:`~sagas.outcomes.Outcome`."""

from __future__ import annotations

from saga_activities.guard import errors, protocol
from saga_activities.guard.codec import UnusableResult
from saga_activities.guard.transaction import BelowWatermark
from sagas.errors import AlreadyCompensated, Infrastructure, Parked, Rejected, Unavailable, UsageError
from sagas.outcomes import Failure, Outcome


def outcome_of(error: BaseException, doom: BaseException | None = None) -> Outcome:
    """The outcome of an attempt that was rolled back because of ``error``.

    ``doom`` is the first error of the transaction's statements: an action may dress a deadlock up as a rejection,
    and trouble of the infrastructure is never a business answer.
    """
    if doom is not None and (trouble := errors.classify(doom)) is not None and trouble.infrastructure:
        return errors.failed(trouble, doom)
    match error:
        case Rejected():
            return Outcome("rejected", failure=Failure("Rejected", error.message, error.details), retryable=False)
        case AlreadyCompensated():
            return protocol.late(str(error))
        case BelowWatermark():
            return protocol.late("this attempt is older than anything the database still remembers")
        case UnusableResult():
            return Outcome("failed", failure=Failure("UnusableResult", str(error)), retryable=False)
        case UsageError():
            # The action uses the engine in a way that cannot work; trying again cannot help.
            return Outcome("failed", failure=Failure("definition", str(error)), retryable=False)
        case Infrastructure():
            return Outcome(
                "failed",
                failure=Failure("Infrastructure", str(error)),
                infrastructure=True,
                counted=not isinstance(error, Unavailable),
            )
        case Parked():
            return Outcome(
                "failed", failure=Failure("Parked", error.why, error.details), retryable=False, parks=error.why
            )
    if (trouble := errors.classify(error)) is not None:
        return errors.failed(trouble, error)
    details = getattr(error, "details", None)
    name = type(error).__name__
    return Outcome("failed", failure=Failure(name, str(error) or name, details if isinstance(details, dict) else {}))


def timed_out(message: str) -> Outcome:
    """The attempt was over before it had decided anything."""
    return Outcome("failed", failure=Failure("Timeout", message))
