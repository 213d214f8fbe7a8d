"""Waits for rows that belong to another saga (`compensate: auto`): short, uncounted retries, then a rejection.

Between two attempts nothing is held: no worker's slot, no transaction, no connection.
"""

from __future__ import annotations

from dataclasses import replace

from sagas.machine.state import Entry, SagaRun
from sagas.protocol.outcomes import ROW_LOCKED, Failure, Outcome

DEFAULT_WAIT = 30.0
"""Seconds until the step is rejected, unless the saga has `locks.wait`."""

SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.5, 5.0
"""Seconds between two attempts: a fifth of the time waited so far, within these limits."""


def after_wait(run: SagaRun, entry: Entry, outcome: Outcome, attempts: int | None) -> tuple[Outcome, int | None]:
    """The outcome of an attempt and its number of attempts: a row that stays locked becomes a rejection."""
    failure = outcome.failure
    if outcome.counted or failure is None or failure.type != ROW_LOCKED:
        entry.row_locked_at = None
        return outcome, attempts
    if entry.row_locked_at is None:
        entry.row_locked_at = run.now
    wait = maximum_wait(run)
    if waited(run, entry.row_locked_at) < wait:
        return outcome, attempts
    entry.row_locked_at = None
    refusal = Failure(ROW_LOCKED, f"still not free after {wait:g} s: {failure.message}", failure.details, quotes=True)
    rejected = replace(outcome, kind="rejected", failure=refusal, retryable=False, infrastructure=False, counted=True)
    return rejected, None if attempts is None else attempts + 1


def waited(run: SagaRun, since: float) -> float:
    """Seconds of a wait, without those of the pause under way."""
    until = run.now if run.operator_pause_at is None else min(run.now, run.operator_pause_at)
    return max(0.0, until - since)


def maximum_wait(run: SagaRun) -> float:
    """Seconds that a step waits for the rows of other sagas."""
    locks = run.definition.locks
    return DEFAULT_WAIT if locks is None else locks.wait


def connections(run: SagaRun) -> tuple[str, ...]:
    """The connections on which this run and its nested sagas may have locked rows.

    Rows belong to the root saga, which may still undo what its nested sagas have done, so only it releases them.
    """
    own = {
        step.do.connection
        for step in run.definition.steps
        if step.do.images and step.do.connection is not None and run.steps[step.id].entries
    }
    return tuple(sorted(own | set(run.child_row_locks)))


def retry_interval(run: SagaRun, entry: Entry) -> float | None:
    """Seconds until the next attempt of an entry that waits for rows; None if it does not."""
    if entry.row_locked_at is None:
        return None
    so_far = waited(run, entry.row_locked_at)
    remaining = maximum_wait(run) - so_far
    return min(max(so_far / 5, SHORTEST_INTERVAL), LONGEST_INTERVAL, max(remaining, SHORTEST_INTERVAL))
