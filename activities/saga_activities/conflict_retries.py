"""Limits the retries of a conflict: rows of other transactions are in the way, and may be gone soon or never.

``guard/sqlstates.py`` says which errors are conflicts (a unique key, a foreign key, an exclusion constraint). A step, a
compensation, a confirm and a consumer have CONFLICT_ATTEMPTS transactions for one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from saga_activities.attempt_context import AttemptContext
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation

CONFLICT_INTERVALS = (1.0, 3.0)
"""Seconds before the second and the third transaction, after which a conflict is final."""

CONFLICT_ATTEMPTS = len(CONFLICT_INTERVALS) + 1

CONFLICT_TIME = 10.0
"""Seconds from the begin of the first transaction in which the last one has to begin."""

LONGEST_SHARE = 0.25
"""The longest pause, as a share of the time that the attempt has left: each transaction also needs some of it."""


async def repeat_conflicts(
    perform: Callable[[Invocation, AttemptContext], Awaitable[Outcome]], invocation: Invocation, attempt: AttemptContext
) -> Outcome:
    """Make one attempt, and repeat its transaction while a conflict may heal.

    The repetitions are part of the attempt: each transaction before the last was rolled back, so the last outcome
    holds for all of them, and they are made wherever the call comes from, however often Temporal would repeat it. A
    `retry` that is written at the operation applies instead.
    """
    outcome = await perform(invocation, attempt)
    latest = time.time() + CONFLICT_TIME
    repeats = 0
    while outcome.conflict and not invocation.own_retry:
        pause = _pause(repeats, attempt.deadline - time.time())
        if pause is None or time.time() + pause > latest:
            return replace(outcome, retryable=False)
        await asyncio.sleep(pause)
        repeats += 1
        again = replace(attempt, number=attempt.number + repeats)
        outcome = replace(await perform(invocation, again), repeats=repeats)
    return outcome


def _pause(repeats: int, remaining: float) -> float | None:
    if repeats == len(CONFLICT_INTERVALS) or remaining <= 0:
        return None
    return min(CONFLICT_INTERVALS[repeats], remaining * LONGEST_SHARE)


def schedule_conflict(outcome: Outcome, invocation: Invocation, number: int) -> Outcome:
    """The outcome of a call in a chunk, which the bulk workflow repeats after `retry_after`, apart from its neighbours.

    ``number`` counts the attempts of this call, from 1.
    """
    if not outcome.conflict or invocation.own_retry:
        return outcome
    if number >= CONFLICT_ATTEMPTS:
        return replace(outcome, retryable=False)
    return replace(outcome, retry_after=CONFLICT_INTERVALS[number - 1])
