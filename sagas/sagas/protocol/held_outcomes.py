"""Outcomes of attempts that a standing pause holds back, or that an open circuit breaker explains."""

from __future__ import annotations

from sagas.protocol.outcomes import PAUSED, Failure, Outcome, is_held_back
from sagas.protocol.standing_pause import StandingPause


def pause_behind(outcome: Outcome) -> StandingPause | None:
    """The pause for whose end a call waits: it has held back this attempt, or is the open circuit breaker that explains
    its failure. None if none does.
    """
    if is_held_back(outcome) and outcome.failure is not None:
        return StandingPause.from_json(outcome.failure.details)
    return outcome.breaker


def held_outcome(pause: StandingPause, attempt: int, retry_after: float) -> Outcome:
    """The outcome of an attempt that was not made because of the pause; it does not count as one."""
    failure = Failure(PAUSED, pause.text, pause.to_json())
    return Outcome(
        "failed", failure=failure, attempt=attempt, infrastructure=True, counted=False, retry_after=retry_after
    )
