"""An outcome of an attempt tells whether the connection that it needs has answered."""

from __future__ import annotations

from sagas.protocol.outcomes import Outcome


def has_answered(outcome: Outcome, *, is_database: bool) -> bool | None:
    """Return whether the connection has answered the attempt; None if the outcome does not tell.

    An HTTP service fails with the attempt, unless that was wrong before it was sent. A database also answers where the
    action itself fails, or one of its statements.
    """
    if outcome.kind in ("done", "rejected", "late"):
        return True
    if not outcome.counted or not outcome.retryable or outcome.not_started:
        return None
    if not is_database or outcome.infrastructure or _timed_out(outcome):
        return False
    return True if outcome.kind == "failed" else None


def _timed_out(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.type == "Timeout"
