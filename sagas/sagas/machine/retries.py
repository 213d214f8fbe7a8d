"""How long to wait before an attempt that the machine schedules itself."""

from __future__ import annotations

from sagas.definition.model import Retry


def interval(retry: Retry, made: int) -> float:
    """Seconds between attempt ``made`` and the next one."""
    if retry.intervals:
        return retry.intervals[min(max(made, 1), len(retry.intervals)) - 1]
    # The exponent is bounded, so that thousands of attempts do not overflow a float.
    growth = retry.backoff_coefficient ** min(max(made - 1, 0), 64)
    return min(retry.initial_interval * growth, max(retry.max_interval, retry.initial_interval))
