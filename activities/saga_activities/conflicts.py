"""Limits the retries of a conflict: rows of other transactions are in the way, and may be gone soon or never."""

from __future__ import annotations

import time
from dataclasses import replace

from saga_activities.attempt_context import AttemptContext
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation

CONFLICT_INTERVALS = (1.0, 3.0)
"""Seconds before the attempts 2 and 3, after which a conflict is final."""

CONFLICT_TIME = 10.0
"""Seconds from the begin of the first attempt in which the last one has to begin."""


def limit_conflict(outcome: Outcome, invocation: Invocation, attempt: AttemptContext) -> Outcome:
    """The outcome, which is final if the conflict has had its attempts.

    A `retry` that is written at the operation applies instead.
    """
    if not outcome.conflict or invocation.own_retry:
        return outcome
    number = invocation.earlier_attempts + attempt.number
    if number > len(CONFLICT_INTERVALS):
        return replace(outcome, retryable=False)
    interval = CONFLICT_INTERVALS[number - 1]
    if number > 1 and time.time() + interval > attempt.first_scheduled_at + CONFLICT_TIME:
        return replace(outcome, retryable=False)
    return replace(outcome, retry_after=interval)
