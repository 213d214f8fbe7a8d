"""An outcome of an attempt tells whether the connection that it needs has answered."""

from __future__ import annotations

from sagas.protocol.outcomes import Outcome


def has_answered(outcome: Outcome, *, is_database: bool) -> bool | None:
    """Return whether the connection has answered the attempt; None if the outcome does not tell.

    An HTTP service fails with the attempt, unless that was wrong before it was sent. A database has also answered with
    each error about the rows, the locks or the statement of the attempt, and where the action itself fails.
    """
    if outcome.kind in ("done", "rejected", "late"):
        return True
    if is_database and outcome.answered is not None:
        return outcome.answered
    if not outcome.counted or not outcome.retryable or outcome.not_started:
        return None
    if not is_database or outcome.infrastructure:
        return False
    if outcome.failure is not None and outcome.failure.type == "Timeout":
        return False if outcome.kind == "unknown" else None
    return True if outcome.kind == "failed" else None
